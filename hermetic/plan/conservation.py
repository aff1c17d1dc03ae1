"""The check of every plan: nothing lost, nothing repeated, nothing invented, no row above its limits.

**Algorithm.** Counting and prefix sums in NumPy on the arrays that the plan holds. It shares no code with the
strategies, which are compiled, so a mistake there cannot hide here.
**Guarantee.** A plan that passes places every piece exactly once but those that policy ``drop`` leaves out;
its fragments tile their documents from the first token to the last; no row holds more tokens than the
capacity or more documents than the limit. The error names the first offender.
**Price.** O(pieces), a few milliseconds for a million.
"""

import numpy as np
import numpy.typing as npt

from hermetic.errors import ConservationError
from hermetic.plan.arrays import IntArray
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


def check_placement(order: IntArray, row_offsets: IntArray, num_pieces: int, dropped: IntArray, noun: str) -> None:
    """Raise unless every piece but the ``dropped`` ones is placed exactly once; ``noun`` names a piece."""
    outside = (order < 0) | (order >= num_pieces)
    if outside.any():
        place = int(np.argmax(outside))
        raise ConservationError(
            f"row {_row_of(place, row_offsets)} holds {noun} {order[place]}, but there are {num_pieces} {noun}s"
        )
    expected = np.ones(num_pieces, np.int64)
    expected[dropped] = 0
    found = np.bincount(order, minlength=num_pieces)
    wrong = found != expected
    if not wrong.any():
        return
    piece = int(np.argmax(wrong))
    if found[piece] == 0:
        raise ConservationError(f"{noun} {piece} is in no row")
    rows = [_row_of(int(place), row_offsets) for place in np.flatnonzero(order == piece)]
    if expected[piece] == 0:
        raise ConservationError(f"{noun} {piece} is in row {rows[0]}, but it is longer than a row and dropped")
    raise ConservationError(f"{noun} {piece} is placed {found[piece]} times, in rows {rows}")


def check_limits(placed_lengths: IntArray, row_offsets: IntArray, capacity: int, limit: int | None) -> None:
    """Raise if a row holds more tokens than ``capacity`` or more documents than ``limit``.

    ``placed_lengths`` are the tokens of the placed pieces, row after row.
    """
    if len(row_offsets) == 1:
        return
    tokens = np.add.reduceat(placed_lengths, row_offsets[:-1])
    if tokens.max() > capacity:
        row = int(np.argmax(tokens > capacity))
        raise ConservationError(f"row {row} holds {tokens[row]} tokens, more than the capacity {capacity}")
    documents = np.diff(row_offsets)
    if limit is not None and documents.max() > limit:
        row = int(np.argmax(documents > limit))
        raise ConservationError(f"row {row} holds {documents[row]} documents, more than max_documents_per_row {limit}")


def check_fragments(fragments: Fragments, lengths: IntArray) -> None:
    """Raise unless the fragments, in their order, tile every document from its first token to its last."""
    document, start, length = fragments.document, fragments.start, fragments.length
    unknown = (document < 0) | (document >= len(lengths))
    _refuse(unknown, fragments, f"there are {len(lengths)} documents")
    backwards = np.concatenate([np.zeros(1, np.bool_), document[1:] < document[:-1]])[: len(document)]
    _refuse(backwards, fragments, "fragments are in the order of their documents, and it is not")
    absent = np.bincount(document, minlength=len(lengths)) == 0
    if absent.any():
        raise ConservationError(f"document {int(np.argmax(absent))} has no fragment")
    whole = lengths[document]
    # Written as a difference, for a sum of damaged numbers could overflow and look right.
    outside = (start < 0) | (length < 0) | (start > whole) | (length > whole - start)
    _refuse(outside, fragments, "it reaches outside of its document")
    _refuse((length == 0) & (whole > 0), fragments, "it is empty, but its document is not")
    opens = np.concatenate([np.ones(1, np.bool_), document[1:] != document[:-1]])[: len(document)]
    expected = np.where(opens, 0, np.concatenate([np.zeros(1, np.int64), (start + length)[:-1]])[: len(document)])
    _refuse(start != expected, fragments, "it does not start where the fragment before it ended")
    closes = np.concatenate([opens[1:], np.ones(1, np.bool_)])[: len(document)]
    _refuse(closes & (start + length != whole), fragments, "it is the last one and does not reach the end")


def _refuse(wrong: npt.NDArray[np.bool_], fragments: Fragments, reason: str) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        document, start, length = (
            int(column[index]) for column in (fragments.document, fragments.start, fragments.length)
        )
        raise ConservationError(f"fragment {index} (document {document}, start {start}, length {length}): {reason}")


def _row_of(place: int, row_offsets: IntArray) -> int:
    return int(np.searchsorted(row_offsets, place, side="right")) - 1
