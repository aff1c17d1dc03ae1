"""Lengths as a histogram: which sizes occur and how often.

Every decision of best fit and of the optimum depends on sizes and their numbers alone, and so do the bounds.
**Price.** O(pieces + largest size) while the largest size is not far above the number of pieces; above that a
sort, O(pieces log pieces), so that one document of a billion tokens does not cost a table of a billion counts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hermetic.plan.arrays import IntArray, compiled

Int64Array = npt.NDArray[np.int64]

_FREE_TABLE_SIZE = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Sizes in decreasing order, each with how many pieces have it; pieces of size 0 are left out.

    Example:
        Sizes ``[3, 0, 5, 3]`` have ``sizes [5, 3]`` and ``counts [1, 2]``.
    """

    sizes: Int64Array
    """``[L]``, distinct, positive, decreasing."""
    counts: Int64Array
    """``[L]``, how many pieces of each; 0 only where a solver has placed all of them already."""

    @property
    def num_pieces(self) -> int:
        """Pieces of any size above 0."""
        return int(self.counts.sum())

    @property
    def volume(self) -> int:
        """The sum of all sizes, exact however large."""
        return sum(size * count for size, count in zip(self.sizes.tolist(), self.counts.tolist(), strict=True))

    @property
    def starts(self) -> Int64Array:
        """``[L + 1]``, where each size begins among all pieces in decreasing order."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])


def histogram_from_table(counts: Int64Array) -> Histogram:
    """Return the histogram of ``counts[s]`` pieces of size ``s``."""
    sizes = np.flatnonzero(counts)[::-1].astype(np.int64)
    sizes = sizes[sizes > 0]
    return Histogram(sizes=sizes, counts=counts[sizes])


def histogram_from_sizes(sizes: IntArray) -> Histogram:
    """Return the histogram of the sizes of single pieces, ``[N]``."""
    if _is_dense(sizes):
        return histogram_from_table(_table(sizes, int(sizes.max(initial=0))))
    distinct, counts = np.unique(sizes, return_counts=True)
    kept = slice(None, None if distinct[0] > 0 else 0, -1)
    return Histogram(sizes=distinct.astype(np.int64)[kept], counts=counts.astype(np.int64)[kept])


def pieces_in_decreasing_order(sizes: IntArray, histogram: Histogram) -> npt.NDArray[np.int32]:
    """Return the pieces of positive size from the largest to the smallest, equal ones in their given order.

    Example:
        Sizes ``[3, 0, 5, 3]`` give ``[2, 0, 3]``.
    """
    if _is_dense(sizes):
        following = np.zeros(int(sizes.max(initial=0)) + 1, np.int64)
        following[histogram.sizes] = histogram.starts[:-1]
        return _rank(sizes, following, histogram.num_pieces)
    order = np.argsort(-sizes.astype(np.int64), kind="stable")
    return order[: histogram.num_pieces].astype(np.int32)


def _is_dense(sizes: IntArray) -> bool:
    return int(sizes.max(initial=0)) <= 4 * len(sizes) + _FREE_TABLE_SIZE


@compiled
def _table(sizes: IntArray, largest: int) -> Int64Array:
    counts = np.zeros(largest + 1, np.int64)
    for size in sizes:
        counts[size] += 1
    return counts


@compiled
def _rank(sizes: IntArray, following: Int64Array, num_pieces: int) -> npt.NDArray[np.int32]:
    """Scatter each piece to the next rank of its size; ``following[s]`` is the first rank of size ``s``."""
    ranked = np.empty(num_pieces, np.int32)
    for piece in range(len(sizes)):
        size = sizes[piece]
        if size > 0:
            ranked[following[size]] = piece
            following[size] += 1
    return ranked
