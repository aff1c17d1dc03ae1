"""Labels of a call that has logits computed for some slots only (``logits_to_keep``), laid back to all slots.

A framework that keeps logits where they are trained on shortens its labels to fit: of the kept slots, each learns to
predict the label after its own. That label stands for the token in the slot after.
Guarantee: the same slots learn to predict the same ids as in the call; what does not fit is left as it is.
Price: one tensor of labels.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hermetic.constants import IGNORE_INDEX


def with_all_labels(arguments: Mapping[str, Any], shape: tuple[int, int]) -> dict[str, Any]:
    """Arguments over ``[B, S]`` token slots that keep all logits, with labels to match.

    Args:
        arguments: of a call, by name; ``logits_to_keep`` is a number of last slots, or booleans ``[S]`` or indices.
        shape: ``[B, S]``.

    Example:
        >>> kept = torch.tensor([False, True, True, True])
        >>> labels = torch.tensor([[-100, 7, 8]])
        >>> with_all_labels({"logits_to_keep": kept, "labels": labels}, (1, 4))
        {'labels': tensor([[-100, -100,    7,    8]])}
    """
    found = dict(arguments)
    labels, slots = found.get("labels"), _slots(found.get("logits_to_keep"), shape[1])
    if not isinstance(labels, torch.Tensor) or slots is None or labels.shape != (shape[0], len(slots)):
        return found
    del found["logits_to_keep"]
    found["labels"] = labels.new_full(shape, IGNORE_INDEX)
    found["labels"][:, slots[:-1] + 1] = labels[:, 1:]
    return found


def _slots(kept: Any, width: int) -> torch.Tensor | None:
    """Rising numbers of the slots that are kept; ``None`` where that is not said."""
    if isinstance(kept, torch.Tensor) and kept.ndim == 1 and kept.numel():
        slots = kept.nonzero().flatten() if kept.dtype == torch.bool else kept.long()
        return slots if len(slots) and bool((slots.diff() > 0).all()) and int(slots[-1]) < width else None
    if isinstance(kept, int) and not isinstance(kept, bool) and 0 < kept <= width:
        return torch.arange(width - kept, width)
    return None
