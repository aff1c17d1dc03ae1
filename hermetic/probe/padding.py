"""Which slots of a call are padding, where no 2-D mask says so.

Two ways of writing it are read. A mask over pairs of tokens blocks padding altogether, so a slot that does not see
itself is padding. And rows that are filled up under a mask of ones end in slots at position 0 that hold one id and no
label: as documents they would have one token each and teach nothing.
Guarantee: a slot with a label, and the first slot of a row, are never called padding by their position.
Price: a few comparisons on the host.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hermetic.constants import IGNORE_INDEX

Bools = NDArray[np.bool_]


def pairs_that_see(mask: torch.Tensor) -> torch.Tensor:
    """``[..., S, S]`` booleans: what a mask of booleans, ones and zeros, or values added to scores lets through."""
    values = mask.detach().cpu().float()
    low, high = values.min(), values.max()
    return torch.ones_like(values, dtype=torch.bool) if low == high else values > (low + high) / 2


def seen_by_themselves(mask: Any, shape: tuple[int, int]) -> Bools | None:
    """``[B, S]``: slots that see themselves under a mask ``[B or 1, ..., S, S]``; ``None`` for any other mask.

    Of several heads the first is asked.
    """
    rows, width = shape
    over_pairs = isinstance(mask, torch.Tensor) and mask.ndim > 2 and tuple(mask.shape[-2:]) == (width, width)
    if not over_pairs or mask.shape[0] not in {1, rows}:
        return None
    pairs = pairs_that_see(mask).reshape(mask.shape[0], -1, width, width)[:, 0]
    return np.array(np.broadcast_to(pairs.diagonal(dim1=1, dim2=2).numpy(), shape))


def blank_tail(ids: torch.Tensor, positions: Any, labels: Any) -> Bools:
    """``[B, S]``: the tail of each row of slots at position 0 that hold one id and no label; none without labels.

    Args:
        ids: ``[B, S]`` token ids.
        positions: ``[B, S]`` or ``[1, S]`` positions, or whatever the call has in their place.
        labels: ``[B, S]`` labels, likewise.
    """
    none = np.zeros(tuple(ids.shape), dtype=np.bool_)
    given = all(isinstance(x, torch.Tensor) and x.shape[-1:] == ids.shape[-1:] for x in (positions, labels))
    if not given or positions.ndim > 2 or labels.numel() != ids.numel():
        return none
    tokens, targets = ids.detach().cpu().numpy(), labels.detach().cpu().numpy().reshape(ids.shape)
    first = np.broadcast_to(np.atleast_2d(positions.detach().cpu().numpy()), tokens.shape) == 0
    blank = first & (tokens == tokens[:, -1:]) & (targets == IGNORE_INDEX)
    tail = np.logical_and.accumulate(blank[:, ::-1], axis=1)[:, ::-1].copy()
    tail[:, 0] = False
    return tail
