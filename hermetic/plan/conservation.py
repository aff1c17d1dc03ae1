"""The check of every plan: nothing lost, nothing repeated, nothing invented, no row above its limits.

**Algorithm.** One walk over all rows that ticks off each piece and adds up its share. It shares no code with the
strategies, so a mistake there cannot hide here.
**Guarantee.** A plan that passes places every piece exactly once but the empty ones and those that policy ``drop``
leaves out; its fragments tile their documents from the first token to the last; no row holds more than the
capacity or more documents than the limit. The error names the first offender.
**Price.** O(pieces), a few milliseconds for a million; one byte a piece.
"""

import numpy as np

from hermetic.errors import ConservationError
from hermetic.plan.arrays import IntArray, compiled
from hermetic.plan.fragments import Fragments


def check_rows(row_offsets: IntArray, num_placed: int) -> None:
    """Raise unless ``row_offsets`` cut ``num_placed`` pieces into rows of at least one."""
    if len(row_offsets) == 0 or row_offsets[0] != 0:
        raise ConservationError(f"row_offsets starts with {row_offsets[:1].tolist()}; expected [0]")
    falling = np.flatnonzero(row_offsets[1:] <= row_offsets[:-1])
    if falling.size:
        row = falling[0]
        raise ConservationError(
            f"row {row} starts at {row_offsets[row]} and ends at {row_offsets[row + 1]}; "
            "every row holds at least one document"
        )
    if row_offsets[-1] != num_placed:
        raise ConservationError(
            f"row_offsets ends at {row_offsets[-1]}, but {num_placed} pieces are placed: "
            "some are in no row, or a row reaches beyond them"
        )


def check_pieces(
    order: IntArray,
    row_offsets: IntArray,
    tokens: IntArray,
    *,
    capacity: int,
    align: int,
    dropped: IntArray,
    noun: str,
) -> None:
    """Raise unless every piece that has tokens to place is placed once, no other is, and every row fits.

    Args:
        order: the placed pieces, row after row.
        row_offsets: ``[rows + 1]``, sound as ``check_rows`` has it.
        tokens: ``[num_pieces]``, what each piece has to place: nothing if it is empty or dropped.
        capacity: tokens per row.
        align: each piece takes its tokens, rounded up to a multiple of this.
        dropped: the pieces that were left out on purpose.
        noun: the name of a piece.
    """
    place, overfull = _first_faults(order, row_offsets, tokens, capacity, align)
    if place == len(order):
        absent = tokens > 0
        absent[order] = False
        raise ConservationError(f"{noun} {int(np.argmax(absent))} is in no row")
    if place >= 0:
        raise ConservationError(_misplaced(order, row_offsets, tokens, place, dropped=dropped, noun=noun))
    if overfull >= 0:
        pieces = tokens[order[row_offsets[overfull] : row_offsets[overfull + 1]]].tolist()
        taken = sum(-(-piece // align) * align for piece in pieces)
        slots = "" if align == 1 else f" in slots of {align}"
        raise ConservationError(f"row {overfull} holds {taken} tokens{slots}, more than the capacity {capacity}")


@compiled
def _first_faults(
    order: IntArray, row_offsets: IntArray, tokens: IntArray, capacity: int, align: int
) -> tuple[int, int]:
    """Return the first place with a wrong piece and the first overfull row, -1 where there is none.

    If only a piece is missing, the place is ``len(order)``.
    """
    ticked = tokens <= 0
    missing, overfull = len(ticked) - np.count_nonzero(ticked), -1
    for row in range(len(row_offsets) - 1):
        free = capacity
        for place in range(row_offsets[row], row_offsets[row + 1]):
            piece = order[place]
            if piece < 0 or piece >= len(ticked) or ticked[piece]:
                return place, overfull
            ticked[piece] = True
            missing -= 1
            taken = tokens[piece]
            if taken > free:  # before any rounding, which a damaged number could overflow
                free = -1
            elif free >= 0:
                free -= taken if align == 1 else (taken + align - 1) // align * align
        if free < 0 and overfull < 0:
            overfull = row
    return (len(order) if missing else -1), overfull


def _misplaced(
    order: IntArray, row_offsets: IntArray, tokens: IntArray, place: int, *, dropped: IntArray, noun: str
) -> str:
    """Return what is wrong with the piece at ``place``."""
    piece, row = order[place], _row_of(place, row_offsets)
    if not 0 <= piece < len(tokens):
        return f"row {row} holds {noun} {piece}, but there are {len(tokens)} {noun}s"
    if tokens[piece] > 0:
        rows = [_row_of(int(place), row_offsets) for place in np.flatnonzero(order == piece)]
        return f"{noun} {piece} is placed {len(rows)} times, in rows {rows}"
    if piece in dropped:
        return f"{noun} {piece} is in row {row}, but it is longer than a row and dropped"
    return f"{noun} {piece} is in row {row}, but it is empty: empty documents are counted, not placed"


def check_limit(row_offsets: IntArray, limit: int | None) -> None:
    """Raise if a row holds more than ``limit`` documents."""
    documents = np.diff(row_offsets)
    if limit is not None and documents.max(initial=0) > limit:
        row = int(np.argmax(documents > limit))
        raise ConservationError(f"row {row} holds {documents[row]} documents, more than max_documents_per_row {limit}")


def check_fragments(fragments: Fragments, lengths: IntArray) -> None:
    """Raise unless the fragments, in their order, tile every document from its first token to its last."""
    index, fault, cut = 0, -1, 0
    if len(fragments):
        index, fault, cut = _first_fragment_fault(fragments.document, fragments.start, fragments.length, lengths)
    if fault >= 0:
        document, start, length = (
            int(column[index]) for column in (fragments.document, fragments.start, fragments.length)
        )
        raise ConservationError(
            f"fragment {index} (document {document}, start {start}, length {length}): "
            + _FRAGMENT_FAULTS[fault].format(len(lengths))
        )
    if cut != np.count_nonzero(lengths):
        absent = lengths > 0
        absent[fragments.document] = False
        raise ConservationError(f"document {int(np.argmax(absent))} has no fragment")


_FRAGMENT_FAULTS = (
    "there are {} documents",
    "fragments are in the order of their documents, and it is not",
    "it reaches outside of its document",
    "it is empty, and an empty document has no fragment",
    "it does not start where the fragment before it ended",
    "it is the last one and does not reach the end",
)


@compiled
def _first_fragment_fault(
    document: IntArray, start: IntArray, length: IntArray, lengths: IntArray
) -> tuple[int, int, int]:
    """Return the first wrong fragment, the place of its fault in ``_FRAGMENT_FAULTS`` or -1, and the documents so far.

    A document without a token has no sound fragment, so as many documents as have tokens are all of them.
    """
    before, end, documents = -1, 0, 0
    for index in range(len(document)):
        owner, fault = document[index], -1
        if owner < 0 or owner >= len(lengths):
            return index, 0, documents
        documents += owner != before
        if owner < before:
            fault = 1
        # Written as a difference, for a sum of damaged numbers could overflow and look right.
        elif min(start[index], length[index]) < 0 or length[index] > lengths[owner] - start[index]:
            fault = 2
        elif length[index] == 0:
            fault = 3
        elif start[index] != (end if owner == before else 0):
            fault = 4
        elif index + 1 == len(document) or document[index + 1] != owner:
            fault = 5 if start[index] + length[index] != lengths[owner] else -1
        if fault >= 0:
            return index, fault, documents
        before, end = owner, start[index] + length[index]
    return 0, -1, documents


def _row_of(place: int, row_offsets: IntArray) -> int:
    return int(np.searchsorted(row_offsets, place, side="right")) - 1
