"""Blocks: many rows of one pattern at once, the common form of what best fit and the optimum decide.

A block is ``rows`` rows that all hold the same sizes. Each part of it says: ``each`` pieces of size ``size`` in
every row, taken from the pieces in decreasing order, from rank ``rank`` on in the first row and ``step`` ranks
further in each following row. Writing the rows out then only copies: the pieces of a part lie side by side.

**Price.** O(pieces + parts).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hermetic.plan.arrays import compiled
from hermetic.plan.histogram import Histogram, Int64Array


class Blocks(NamedTuple):
    """``B`` blocks with ``P`` parts in all, in the order of their rows."""

    rows: Int64Array
    """``[B]``, how many rows each block has."""
    edges: Int64Array
    """``[B + 1]``, the parts of block ``b`` are ``edges[b]`` up to ``edges[b + 1]``."""
    size: Int64Array
    """``[P]``, the size of the pieces of each part."""
    each: Int64Array
    """``[P]``, how many of them lie in one row."""
    rank: Int64Array
    """``[P]``, the rank of the first of them in the first row of the block."""
    step: Int64Array
    """``[P]``, how far the ranks move from one row to the next."""

    @property
    def num_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.rows.sum())

    def patterns(self) -> dict[tuple[tuple[int, int], ...], int]:
        """Return each pattern, as (size, number) from the largest size down, with how many rows have it."""
        parts = list(zip(self.size.tolist(), self.each.tolist(), strict=True))
        edges = self.edges.tolist()
        found: dict[tuple[tuple[int, int], ...], int] = {}
        for block, rows in enumerate(self.rows.tolist()):
            pattern = tuple(parts[edges[block] : edges[block + 1]])
            found[pattern] = found.get(pattern, 0) + rows
        return found

    def written_out(self, ranked: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Int64Array]:
        """Return ``order [N]``, the pieces row after row, and ``row_offsets [rows + 1]``."""
        order = np.empty(len(ranked), np.int32)  # Numba's own arrays belong to it, and a plan would copy them
        return order, _write_out(self, ranked, order)


def blocks_from_columns(histogram: Histogram, columns: Int64Array, times: Int64Array) -> Blocks:
    """Return ``times[p]`` rows of each column of ``columns [L, P]``, which together hold every piece once.

    Example:
        Sizes ``[5, 3]``, the columns (1, 1) and (0, 2), once each: the rows hold the ranks 0, 1 and 2, 3.
    """
    column, key = np.nonzero(columns.T)
    each = columns[key, column]
    used = each * times[column]  # pieces of its size that each part takes in all its rows
    by_size = np.argsort(key, kind="stable")
    before = np.cumsum(used[by_size]) - used[by_size]
    rank = np.empty(len(key), np.int64)
    rank[by_size] = before  # columns hold every piece, so ranks run on from one size to the next
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.count_nonzero(columns, axis=0))])
    return Blocks(rows=times, edges=edges, size=histogram.sizes[key], each=each, rank=rank, step=each)


@compiled
def _write_out(blocks: Blocks, ranked: npt.NDArray[np.int32], order: npt.NDArray[np.int32]) -> Int64Array:
    """Fill ``order`` and return the row offsets."""
    row_offsets = np.zeros(blocks.rows.sum() + 1, np.int64)
    place, row = 0, 0
    for block in range(len(blocks.rows)):
        for index in range(blocks.rows[block]):
            for part in range(blocks.edges[block], blocks.edges[block + 1]):
                source = blocks.rank[part] + index * blocks.step[part]
                for piece in range(blocks.each[part]):
                    order[place + piece] = ranked[source + piece]
                place += blocks.each[part]
            row += 1
            row_offsets[row] = place
    return row_offsets
