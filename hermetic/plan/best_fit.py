"""Exact best-fit-decreasing over a length histogram, compiled.

**Algorithm.** Documents are taken from the longest to the shortest (a stable counting sort). Each goes into
the row with the smallest free space that still holds it; if there is none, into a new row. Rows of equal free
space form a stack, and a bitmap of the free spaces that occur, with a bitmap of its non-zero words above it
and so on, answers "the smallest free space of at least l" with a shift and a bit count on each of
log64(capacity) levels (two levels up to a capacity of 4,095).

Equal lengths are placed in groups. The row that just took a document of length l at free space s stays the
tightest that holds another: s was the smallest free space of at least l, and no other row lies between. So it
takes ``s // l`` of them at once.

**Guarantee.** The same rows as document-by-document best-fit-decreasing with these ties: equal lengths in the
order of their documents; among rows of equal free space the one that came to that free space last. At most
11/9 of the fewest possible rows plus a constant, and in practice within a hair of the lower bound.

**Price.** O(documents + rows + capacity) time and memory. Documents leave their order, and neighbours in a
row are chosen by length alone: no document is cut, but short ones gather in the last rows.
"""

import numpy as np
import numpy.typing as npt

from hermetic.plan.arguments import exact_sum
from hermetic.plan.arrays import IntArray, compiled, group_by

# Multiplied by a power of two, this number has a different top 6 bits for each of the 64 powers, so that the
# top bits tell which power it was.
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_OF_TOP_BITS = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_OF_TOP_BITS[((int(_DE_BRUIJN) << _bit) & (2**64 - 1)) >> 58] = _bit


def best_fit_decreasing(lengths: IntArray, capacity: int, limit: int | None) -> tuple[IntArray, IntArray]:
    """Place pieces into rows.

    Args:
        lengths: ``[N]`` tokens of each piece, none above ``capacity``.
        capacity: tokens per row.
        limit: most pieces in a row (an empty one counts too), or None.

    Returns:
        ``order [N]``, the pieces row after row in the order in which they were placed, and
        ``row_offsets [rows + 1]``.

    Example:
        Lengths ``[3, 6, 4, 2]`` at capacity 10 give ``order [1, 2, 0, 3]`` and ``row_offsets [0, 2, 4]``.
    """
    longest = int(lengths.max(initial=0))
    # Free space above the sum of all lengths never matters, and the tables grow with the capacity.
    space = min(capacity, max(exact_sum(lengths), 1))
    ranked, starts = group_by(longest - lengths, longest + 1)
    row_of_rank, num_rows = _place(starts, longest, space, len(lengths) if limit is None else limit)
    ranks_by_row, row_offsets = group_by(row_of_rank, num_rows)
    return ranked[ranks_by_row], row_offsets


@compiled
def _place(starts: IntArray, longest: int, capacity: int, limit: int) -> tuple[IntArray, int]:
    """Give each rank (position among the lengths in decreasing order) its row.

    ``starts[k]`` is the first rank of length ``longest - k``.
    """
    num_pieces = starts[-1]
    row_of_rank = np.empty(num_pieces, np.int64)
    held = np.zeros(num_pieces, np.int64)  # pieces in each row
    top = np.full(capacity + 1, -1, np.int64)  # the newest row of each free space
    under = np.empty(num_pieces, np.int64)  # the row under each row in its stack
    words, levels = _empty_bitmap(capacity + 1)
    num_rows = 0
    for key in range(longest + 1):
        length = longest - key
        rank = starts[key]
        space = length
        while rank < starts[key + 1]:
            space = _next_member(words, levels, space)
            if space < 0:
                row, free = num_rows, capacity
                num_rows += 1
                # No open row holds this length, and none will before the next length: look past the end.
                space = capacity + 1
            else:
                row, free = top[space], space
                top[space] = under[row]
                if top[space] < 0:
                    _remove(words, levels, space)
            count = min(starts[key + 1] - rank, limit - held[row])
            if length > 0:
                count = min(count, free // length)
            row_of_rank[rank : rank + count] = row
            rank += count
            held[row] += count
            free -= count * length
            if held[row] < limit:  # a row at its limit is closed: it enters no stack
                if top[free] < 0:
                    _add(words, levels, free)
                under[row] = top[free]
                top[free] = row
    return row_of_rank, num_rows


@compiled
def _empty_bitmap(size: int) -> tuple[npt.NDArray[np.uint64], IntArray]:
    """Return the words of an empty set of numbers below ``size`` and where each level of them starts.

    Level 0 has a bit for each number, the next level a bit for each word of the one below that is not zero.
    """
    levels = np.zeros(8, np.int64)
    num_levels = 0
    while True:
        size = (size + 63) >> 6
        levels[num_levels + 1] = levels[num_levels] + size
        num_levels += 1
        if size == 1:
            break
    return np.zeros(levels[num_levels], np.uint64), levels[: num_levels + 1]


@compiled
def _add(words: npt.NDArray[np.uint64], levels: IntArray, member: int) -> None:
    for level in range(len(levels) - 1):
        word = levels[level] + (member >> 6)
        before = words[word]
        words[word] = before | (np.uint64(1) << np.uint64(member & 63))
        if before != 0:
            break
        member >>= 6


@compiled
def _remove(words: npt.NDArray[np.uint64], levels: IntArray, member: int) -> None:
    for level in range(len(levels) - 1):
        word = levels[level] + (member >> 6)
        words[word] &= ~(np.uint64(1) << np.uint64(member & 63))
        if words[word] != 0:
            break
        member >>= 6


@compiled
def _next_member(words: npt.NDArray[np.uint64], levels: IntArray, least: int) -> int:
    """Return the smallest member of at least ``least``, or -1."""
    for level in range(len(levels) - 1):
        word = levels[level] + (least >> 6)
        if word >= levels[level + 1]:
            return -1
        ahead = words[word] >> np.uint64(least & 63)
        if ahead != 0:
            least += _lowest_bit(ahead)
            for below in range(level - 1, -1, -1):
                least = (least << 6) + _lowest_bit(words[levels[below] + least])
            return least
        least = (least >> 6) + 1
    return -1


@compiled
def _lowest_bit(word: np.uint64) -> int:
    """Return the position of the lowest bit of a word that is not zero."""
    lowest = word & (~word + np.uint64(1))
    return int(_BIT_OF_TOP_BITS[(lowest * _DE_BRUIJN) >> np.uint64(58)])
