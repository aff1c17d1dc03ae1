"""Two plans that keep the documents in their given order.

**next_fit.** A document that does not fit closes the open row for good. Guarantee: order kept, no document
cut, fewer than twice the fewest possible rows. Price: on chat-like lengths far more empty space than best
fit.

**concat_then_split.** Pretraining only, it cuts documents: the documents are laid end to end and the stream
is cut each ``capacity`` tokens. Guarantee: every row but the last is full (unless ``max_documents_per_row``
closes one early) and no token is lost. Price: most long documents are cut, and a fragment that begins in
mid-document is trained without the context it was written in.

An empty document costs no tokens, so it always fits into the open row. Both are O(documents + fragments).
"""

import numpy as np

from hermetic.plan.arrays import IntArray, compiled, frozen
from hermetic.plan.fragments import Fragments


def next_fit(lengths: IntArray, capacity: int, limit: int | None) -> tuple[IntArray, IntArray]:
    """Place pieces into rows in their given order, with the arguments and results of best fit.

    Example:
        Lengths ``[3, 6, 4, 2]`` at capacity 10 give ``order [0, 1, 2, 3]`` and ``row_offsets [0, 2, 4]``.
    """
    return np.arange(len(lengths)), _next_fit(lengths, capacity, len(lengths) if limit is None else limit)


def concat_then_split(lengths: IntArray, capacity: int, limit: int | None) -> tuple[Fragments, IntArray]:
    """Cut the stream of all documents each ``capacity`` tokens.

    Returns:
        The fragments in stream order, and ``row_offsets [rows + 1]`` into them.

    Example:
        Lengths ``[3, 6]`` at capacity 4 give fragments of 3, 1, 4 and 1 tokens and ``row_offsets [0, 2, 3,
        4]``.
    """
    most = len(lengths) + int(lengths.sum()) // capacity
    table, row_offsets = _concat_then_split(lengths, capacity, most + 1 if limit is None else limit, most)
    document, start, length = (frozen(column.copy()) for column in table)
    return Fragments(document=document, start=start, length=length), row_offsets


@compiled
def _next_fit(lengths: IntArray, capacity: int, limit: int) -> IntArray:
    row_offsets = np.zeros(len(lengths) + 1, np.int64)
    num_rows, used, held = 0, 0, limit  # as if a row before the first had been filled
    for piece in range(len(lengths)):
        if used + lengths[piece] > capacity or held == limit:
            row_offsets[num_rows] = piece
            num_rows += 1
            used, held = 0, 0
        used += lengths[piece]
        held += 1
    row_offsets[num_rows] = len(lengths)
    return row_offsets[: num_rows + 1].copy()


@compiled
def _concat_then_split(lengths: IntArray, capacity: int, limit: int, most: int) -> tuple[IntArray, IntArray]:
    table = np.empty((3, most), np.int64)
    row_offsets = np.zeros(most + 1, np.int64)
    num_fragments, num_rows, used, held = 0, 0, 0, limit  # as if a row before the first had been filled
    for document in range(len(lengths)):
        start = 0
        while True:
            left = lengths[document] - start
            if held == limit or (used == capacity and left > 0):
                row_offsets[num_rows] = num_fragments
                num_rows += 1
                used, held = 0, 0
            taken = min(left, capacity - used)
            table[0, num_fragments] = document
            table[1, num_fragments] = start
            table[2, num_fragments] = taken
            num_fragments += 1
            used += taken
            held += 1
            start += taken
            if taken == left:
                break
    row_offsets[num_rows] = num_fragments
    return table[:, :num_fragments], row_offsets[: num_rows + 1].copy()
