"""What a trainer hands to a model, as the packed batch that it stands for.

Guarantee: the boundaries are those that the call says; a padded batch is one document to a row. Price: the edges come
to the host, which waits for the device.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hermetic.batch import Boundaries, PackedBatch
from hermetic.constants import IGNORE_INDEX


def batch_from_inputs(inputs: Mapping[str, Any]) -> PackedBatch:
    """The batch that a model's arguments describe.

    Args:
        inputs: ``input_ids`` and ``labels``, ``[1, T]`` with ``cu_seq_lens_q``, or ``[B, S]`` of one document each. A
            label on a first token counts as none: nothing predicts it.

    Returns:
        A batch of T, or B x S, slots. Padding is part of it, as tokens without labels.

    Raises:
        BoundariesError: The edges are none.

    Example:
        >>> inputs = {"input_ids": torch.tensor([[5, 6], [7, 0]]), "labels": torch.tensor([[5, 6], [7, -100]])}
        >>> batch_from_inputs(inputs).labels
        tensor([-100,    6, -100, -100])
    """
    ids, labels = inputs["input_ids"], inputs["labels"]
    edges = inputs.get("cu_seq_lens_q")
    if edges is None:
        boundaries = Boundaries(document_lengths=(ids.shape[1],) * ids.shape[0])
    else:
        boundaries = Boundaries.from_cu_seqlens(edges, num_tokens=ids.numel())
    starts = boundaries.cu_seqlens[:-1].long().to(labels.device)
    masked = labels.reshape(-1).index_fill(0, starts, IGNORE_INDEX)
    return PackedBatch(input_ids=ids.reshape(-1), labels=masked, boundaries=boundaries)


def logits_of_batch(logits: torch.Tensor) -> torch.Tensor:
    """``[B, S, V]`` as the ``[B x S, V]`` of the batch's stream."""
    return logits.flatten(0, -2)


def no_loss(logits: torch.Tensor) -> torch.Tensor:
    """0.0, connected to the graph: what a micro-batch adds that has no target in a step that has some.

    In the dtype of a loss, float32 or more: ranks that have a target gather theirs with it.
    """
    return logits[..., :0].to(torch.promote_types(logits.dtype, torch.float32)).sum()


def without_targets(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same tokens with nothing to predict and no document of a pair: what weighs nothing in a step.

    Args:
        inputs: a model's, with ``labels`` and perhaps ``roles``.

    Example:
        >>> without_targets({"input_ids": torch.tensor([[5, 6]]), "labels": torch.tensor([[-100, 6]])})["labels"]
        tensor([[-100, -100]])
    """
    blanks = {"labels": IGNORE_INDEX, "roles": 0}
    return {name: torch.full_like(value, blanks[name]) if name in blanks else value for name, value in inputs.items()}
