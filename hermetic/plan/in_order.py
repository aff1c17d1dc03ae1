"""Two plans that keep the documents in their given order.

**next_fit.** A document that does not fit closes the open row for good. Guarantee: order kept, no document
cut, fewer than twice the fewest possible rows. Price: on chat-like lengths far more empty space than best
fit.

**concat_then_split.** Pretraining only, it cuts documents: the documents are laid end to end and the stream
is cut each ``capacity`` tokens. Guarantee: every row but the last is full (unless ``max_documents_per_row``
closes one early) and no token is lost. Price: most long documents are cut, and a fragment that begins in
mid-document is trained without the context it was written in.

Both are O(documents + fragments).
"""

import numpy as np
import numpy.typing as npt

from hermetic.plan.arrays import IntArray, compiled
from hermetic.plan.fragments import Fragments
from hermetic.plan.histogram import Int64Array


def next_fit(sizes: IntArray, capacity: int, limit: int | None) -> tuple[IntArray, IntArray]:
    """Place pieces into rows in their given order, with the arguments and results of best fit.

    Example:
        Sizes ``[3, 6, 4, 2]`` at capacity 10 give ``order [0, 1, 2, 3]`` and ``row_offsets [0, 2, 4]``.
    """
    return _next_fit(sizes, capacity, len(sizes) if limit is None else limit)


def concat_then_split(lengths: IntArray, capacity: int, limit: int | None, align: int) -> tuple[Fragments, IntArray]:
    """Cut the stream of all documents each ``capacity`` tokens.

    Args:
        lengths: ``[N]`` tokens of each document; an empty one makes no fragment.
        capacity: tokens per row, a multiple of ``align``.
        limit: most fragments in a row, or None.
        align: each fragment takes a multiple of this many tokens of its row.

    Returns:
        The fragments in stream order, and ``row_offsets [rows + 1]`` into them.

    Example:
        Lengths ``[3, 6]`` at capacity 4 give fragments of 3, 1, 4 and 1 tokens and ``row_offsets [0, 2, 3,
        4]``.
    """
    slots = -(-lengths.astype(np.int64) // align) * align
    most = len(lengths) + int(slots.sum()) // capacity
    table, row_offsets = _concat_then_split(lengths, capacity, most + 1 if limit is None else limit, align, most)
    return Fragments(document=table[0], start=table[1], length=table[2]), row_offsets


@compiled
def _next_fit(sizes: IntArray, capacity: int, limit: int) -> tuple[npt.NDArray[np.int32], Int64Array]:
    num_placed = np.count_nonzero(sizes)
    order, row_offsets = np.empty(num_placed, np.int32), np.zeros(num_placed + 1, np.int64)
    num_rows, place, used, held = 0, 0, 0, limit  # as if a row before the first had been filled
    for piece in range(len(sizes)):
        if sizes[piece] == 0:
            continue
        if used + sizes[piece] > capacity or held == limit:
            row_offsets[num_rows] = place
            num_rows += 1
            used, held = 0, 0
        order[place] = piece
        place += 1
        used += sizes[piece]
        held += 1
    row_offsets[num_rows] = place
    return order, row_offsets[: num_rows + 1].copy()


@compiled
def _concat_then_split(
    lengths: IntArray, capacity: int, limit: int, align: int, most: int
) -> tuple[Int64Array, Int64Array]:
    table = np.empty((3, most), np.int64)
    row_offsets = np.zeros(most + 1, np.int64)
    num_fragments, num_rows, used, held = 0, 0, 0, limit  # as if a row before the first had been filled
    for document in range(len(lengths)):
        start = 0
        while start < lengths[document]:
            if held == limit or used == capacity:
                row_offsets[num_rows] = num_fragments
                num_rows += 1
                used, held = 0, 0
            taken = min(lengths[document] - start, capacity - used)
            table[0, num_fragments] = document
            table[1, num_fragments] = start
            table[2, num_fragments] = taken
            num_fragments += 1
            used += -(-taken // align) * align
            held += 1
            start += taken
    row_offsets[num_rows] = num_fragments
    return table[:, :num_fragments], row_offsets[: num_rows + 1].copy()
