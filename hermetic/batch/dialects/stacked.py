"""Edges row by row, for code that keeps rows as [B, row_length], made and read.

Algorithm: the flat edges, cut where a row ends. Guarantee: a document never crosses the end of a row, and
every row's edges reach from 0 to its end. Shorter rows repeat their last edge, so that a repeated edge means
nothing here: empty documents are dropped. The dialect has no tail; a row's padding is a document of its own.
Price: O(documents).
"""

import numpy as np
import torch

from hermetic.batch.boundaries import Boundaries
from hermetic.batch.integers import IntArray, Integers, int64_array
from hermetic.errors import BatchError


def stacked_cu_seqlens(boundaries: Boundaries, row_length: int) -> torch.Tensor:
    """Edges row by row, for code that keeps rows as [B, row_length].

    Args:
        boundaries: Documents that fill rows of ``row_length`` tokens one after the other.
        row_length: Tokens of each row.

    Returns:
        [B, E] int32: the edges of each row from 0 to ``row_length``; shorter ones repeat their last edge.

    Raises:
        BatchError: If a document crosses the end of a row, or the rows are not full.

    Example:
        >>> stacked_cu_seqlens(Boundaries.from_lengths([3, 3, 2, 2, 2]), 6)
        tensor([[0, 3, 6, 6],
                [0, 2, 4, 6]], dtype=torch.int32)
    """
    if row_length < 1 or boundaries.num_tokens % row_length:
        raise BatchError(
            f"{boundaries.num_tokens} tokens do not fill rows of row_length {row_length}; expected a "
            f"positive divisor, so give each row's padding a document of its own or use the flat edges"
        )
    rows: list[list[int]] = []
    edge = 0
    for index, length in enumerate(boundaries.document_lengths):
        within = edge % row_length
        if within + length > row_length:
            raise BatchError(
                f"document {index} of {length} tokens crosses the end of row {edge // row_length} at token "
                f"{within} of {row_length}; expected whole documents in each row, so plan the rows for this "
                f"row_length"
            )
        if length and within == 0:
            rows.append([0])
        if length:
            rows[-1].append(within + length)
        edge += length
    width = max(map(len, rows), default=0)
    padded = [row + [row_length] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int32).reshape(len(rows), width)


def boundaries_from_stacked_cu_seqlens(stacked: Integers) -> Boundaries:
    """Read the flat boundaries of rows from their stacked edges.

    Args:
        stacked: [B, E] edges, each row from 0 to the row's length; a repeated edge fills a shorter row.

    Returns:
        The documents of all rows, one row after the other, none of them empty.

    Raises:
        BatchError: If a row does not start at 0, falls, or ends elsewhere than the first row, or the values
            are not whole numbers of two dimensions.

    Example:
        >>> boundaries_from_stacked_cu_seqlens([[0, 3, 6, 6], [0, 2, 4, 6]])
        Boundaries(document_lengths=(3, 3, 2, 2, 2))
    """
    edges = int64_array(stacked, name="stacked", ndims=(2,), error=BatchError)
    if edges.size == 0:
        return Boundaries(document_lengths=())
    _check_rows(edges)
    lengths = np.diff(edges, axis=1)
    return Boundaries(document_lengths=tuple(lengths[lengths > 0].tolist()))


def _check_rows(edges: IntArray) -> None:
    falling = np.zeros(edges.shape, dtype=np.bool_)
    falling[:, 1:] = edges[:, 1:] < edges[:, :-1]
    wrong_start = np.zeros_like(falling)
    wrong_start[:, 0] = edges[:, 0] != 0
    wrong_end = np.zeros_like(falling)
    wrong_end[:, -1] = edges[:, -1] != edges[0, -1]
    for wrong, expected in (
        (wrong_start, "0, where every row starts; put the missing 0 in front"),
        (falling, "no less than the edge before it; fill shorter rows with their last edge, not with a sentinel"),
        (wrong_end, f"{int(edges[0, -1])}, where row 0 ends; give a row's padding an edge of its own"),
    ):
        if wrong.any():
            row, index = np.argwhere(wrong)[0].tolist()
            raise BatchError(f"stacked[{row}, {index}] is {int(edges[row, index])}, expected {expected}")
