"""The views of document lengths, each a pure function named after what it makes and what it takes.

Algorithm: every view is a cumulative sum or a repeat of the lengths. Guarantee: the same lengths give the
same tensor, on the CPU, and nothing is remembered between calls. Price: O(tokens) for the per-token views,
O(documents) for the others. The lengths are trusted here; ``Boundaries`` is what checks them.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hermetic.constants import TAIL_DOCUMENT_ID


def edges_from_lengths(lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Edges of the documents that have tokens, as an array.

    Args:
        lengths: D document lengths in tokens; empty documents get no edge.

    Returns:
        int64, one edge more than there are non-empty documents, from 0 to the number of tokens.

    Example:
        >>> edges_from_lengths([3, 0, 2])
        array([0, 3, 5])
    """
    counts = [length for length in lengths if length] if 0 in lengths else lengths
    return np.fromiter(accumulate(counts, initial=0), np.int64, len(counts) + 1)


def cu_seqlens_from_lengths(lengths: Sequence[int]) -> torch.Tensor:
    """Edges of the documents that have tokens.

    Args:
        lengths: D document lengths in tokens; empty documents get no edge.

    Returns:
        int32, one edge more than there are non-empty documents, from 0 to the number of tokens.

    Example:
        >>> cu_seqlens_from_lengths([3, 0, 2])
        tensor([0, 3, 5], dtype=torch.int32)
    """
    return torch.from_numpy(edges_from_lengths(lengths).astype(np.int32))


def position_ids_from_lengths(lengths: Sequence[int]) -> torch.Tensor:
    """Where each token stands in its own document.

    Args:
        lengths: D document lengths in tokens.

    Returns:
        [T] int64, 0 .. length - 1 in each document.

    Example:
        >>> position_ids_from_lengths([3, 0, 2])
        tensor([0, 1, 2, 0, 1])
    """
    return position_ids_from_edges(edges_from_lengths(lengths))


def position_ids_from_edges(edges: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
    """Where each token stands in its own document.

    Args:
        edges: [E] from 0 to T, strictly increasing.

    Returns:
        [T] int64, 0 .. length - 1 in each document.

    Example:
        >>> position_ids_from_edges(np.array([0, 3, 5]))
        tensor([0, 1, 2, 0, 1])
    """
    starts = np.repeat(edges[:-1], edges[1:] - edges[:-1])
    return torch.from_numpy(np.arange(len(starts), dtype=np.int64) - starts)


def document_ids_from_lengths(lengths: Sequence[int], *, num_slots: int | None = None) -> torch.Tensor:
    """Which document each token belongs to.

    Args:
        lengths: D document lengths in tokens.
        num_slots: Tokens of the padded batch; the tail beyond the documents gets -1. Default: no tail.

    Returns:
        [T] int32, or [num_slots] with a tail.

    Example:
        >>> document_ids_from_lengths([3, 0, 2], num_slots=7)
        tensor([ 0,  0,  0,  2,  2, -1, -1], dtype=torch.int32)
    """
    counts = torch.tensor(list(lengths), dtype=torch.int64)
    ids = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts)
    if num_slots is None:
        return ids
    return torch.nn.functional.pad(ids, (0, num_slots - len(ids)), value=TAIL_DOCUMENT_ID)


def first_tokens_from_lengths(lengths: Sequence[int]) -> torch.Tensor:
    """The index of the first token of each document that has one.

    Args:
        lengths: D document lengths in tokens.

    Returns:
        int64, one index for each non-empty document.

    Example:
        >>> first_tokens_from_lengths([3, 0, 2])
        tensor([0, 3])
    """
    return torch.from_numpy(edges_from_lengths(lengths)[:-1])


def lengths_with_tail(lengths: Sequence[int], num_slots: int) -> tuple[int, ...]:
    """The lengths as kernels and models see them: the padded tail is one more segment at the end.

    Args:
        lengths: D document lengths in tokens.
        num_slots: Tokens of the padded batch, at least the sum of the lengths.

    Returns:
        The lengths, and the tail's if there is one.

    Example:
        >>> lengths_with_tail([3, 5], 12)
        (3, 5, 4)
    """
    tail = num_slots - sum(lengths)
    return (*lengths, tail) if tail else tuple(lengths)
