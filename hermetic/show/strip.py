"""The slots of a row: one box for each, document by document; of a long row a bar, its positions and its labels.

Guarantee: every slot of a short row is drawn, with all that stands in it on hover. A long row is drawn to scale: the
saw below it has a tooth for each document whose positions restart.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.markup import escaped
from hermetic.show.palette import colour_of
from hermetic.show.picture import RowPicture
from hermetic.show.pieces import Piece, joined, mono_width, number, text
from hermetic.show.words import label_names, lengths_in_words, of_document, position_names, token_names

NAMES_WIDTH: Final = 74
"""Units of the column that says what the lines are."""

_BOX_TOP: Final = 20
_BOX: Final = 26
_LINE: Final = 17
_SAW: Final = 44
_BAR: Final = 22
_LABEL_BINS: Final = 128


def names_piece(picture: RowPicture) -> Piece:
    """What stands in the lines of the slots, in words."""
    first = "slot" if picture.ids is None else "token"
    names = [*position_names(picture), *(["label"] if picture.labels is not None else [])]
    lines = [text(0, _BOX_TOP + 18, first, "soft")]
    lines += [text(0, _line(place), name, "soft", "small") for place, name in enumerate(names)]
    return Piece(name="names of the lines", width=NAMES_WIDTH - 10, height=_height(picture), markup="".join(lines))


def slot_pieces(picture: RowPicture, width: float) -> Iterator[Piece]:
    """The documents of a row, cut where they are wider than a line."""
    widths = _slot_widths(picture)
    ids = picture.document_ids
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    for start, stop in pairwise(edges):
        first = start
        for slot in range(start, stop):
            if slot > first and sum(widths[first : slot + 1]) > width:
                yield _slots(picture, widths, first, slot, begins=first == start)
                first = slot
        yield _slots(picture, widths, first, stop, begins=first == start)


def _slot_widths(picture: RowPicture) -> list[float]:
    lines = [token_names(picture), *(tuple(map(str, plane.tolist())) for plane in picture.positions)]
    labels = label_names(picture)
    columns = zip(*lines, *([] if labels is None else [labels]), strict=True)
    return [
        max(26.0, mono_width(token) + 9, *(mono_width(word, 12) + 8 for word in others)) for token, *others in columns
    ]


def _height(picture: RowPicture) -> float:
    return _line(len(picture.positions) + (picture.labels is not None) - 1) + 6


def _line(place: int) -> float:
    return _BOX_TOP + _BOX + _LINE * (place + 1)


def _slots(picture: RowPicture, widths: list[float], start: int, stop: int, *, begins: bool) -> Piece:
    width = sum(widths[start:stop])
    boxes = joined(_boxes(picture, widths, start, stop))
    heading = text(0, 13, _heading(picture, start, width, begins=begins), "small", "soft")
    name = f"{of_document(picture, start)}, slots {start} to {stop - 1}"
    return Piece(name=name, width=width, height=_height(picture), markup=heading + boxes)


def _heading(picture: RowPicture, slot: int, width: float, *, begins: bool) -> str:
    """The longest name of a document for which there is room."""
    index = int(picture.document_ids[slot])
    if index < 0:
        names = ["padding", "pad"]
    else:
        document = picture.documents[index]
        short, whole = f"{document.number}", f"document {document.number}"
        names = [f"{whole}, {document.length} tokens", whole, f"doc {document.number}", short]
        names = names if begins else [f"… {whole}", "…"]
    return next((name for name in names if len(name) * 7 <= width), names[-1])


def _boxes(picture: RowPicture, widths: list[float], start: int, stop: int) -> Iterator[str]:
    tokens, labels, moved = token_names(picture), label_names(picture), picture.moved_positions()
    firsts, look = set(picture.firsts_with_label()), colour_of(int(picture.document_ids[start]))
    x = 0.0
    for slot in range(start, stop):
        middle, width = x + widths[slot] / 2, widths[slot]
        yield (
            f'<g><title>{escaped(_slot_in_words(picture, slot))}</title><rect class="{look}" x="{number(x + 1)}" '
            f'y="{_BOX_TOP}" width="{number(width - 2)}" height="{_BOX}" rx="4"/>'
            f"{text(middle, _BOX_TOP + 18, tokens[slot], 'mono', f'on-{look}')}"
        )
        bad = ("bad",) if moved[slot] else ()
        for place, plane in enumerate(picture.positions):
            yield text(middle, _line(place), str(int(plane[slot])), "mono", "small", *bad)
        if labels is not None:
            wrong = ("bad",) if slot in firsts else ()
            yield text(middle, _line(len(picture.positions)), labels[slot], "mono", "small", *wrong)
        yield "</g>"
        x += width


def _slot_in_words(picture: RowPicture, slot: int) -> str:
    facts = [f"slot {slot}, {of_document(picture, slot)}"]
    if picture.ids is not None:
        facts.append(f"token {token_names(picture)[slot]} (id {int(picture.ids[slot])})")
    facts.append(f"position {', '.join(str(int(plane[slot])) for plane in picture.positions)}")
    if picture.labels is not None:
        label = int(picture.labels[slot])
        facts.append("no label" if label == IGNORE_INDEX else f"label {label}")
    return "; ".join(facts)


def scale_piece(picture: RowPicture, width: float) -> Piece:
    """A long row: a bar of its documents, the saw of its positions, and how many of its tokens have a label."""
    left, y = NAMES_WIDTH, 4.0
    room = width - left
    parts = [text(0, y + 15, "documents", "soft"), f'<g transform="translate({left} {number(y)})">']
    parts += [*_bars(picture, room, _BAR, vertical=False), "</g>"]
    y += _BAR + 12
    longest = f"{int(picture.positions.max()):,}"
    parts += [text(0, y + 14, "position", "soft"), text(0, y + 30, f"to {longest}", "soft", "small")]
    parts.append(f'<g transform="translate({left} {number(y)})"><title>{escaped(_saw_in_words(picture))}</title>')
    parts += [f'<path class="saw" d="{_saw(picture, room)}"/></g>']
    y += _SAW + 12
    if picture.labels is not None:
        parts += [text(0, y + 13, "labels", "soft"), f'<g transform="translate({left} {number(y)})">']
        parts += [*_label_bins(picture, room), "</g>"]
        y += 18 + 12
    return Piece(name=lengths_in_words(picture), width=width, height=y, markup="".join(parts))


def bars_piece(picture: RowPicture, length: float, thickness: float, *, vertical: bool) -> str:
    """The documents of a row along an axis."""
    return joined(_bars(picture, length, thickness, vertical=vertical))


def _bars(picture: RowPicture, length: float, thickness: float, *, vertical: bool) -> Iterator[str]:
    """One path for each colour, so that a thousand documents are four elements."""
    scale, ids = length / picture.num_slots, picture.document_ids
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    paths: dict[str, list[str]] = {}
    gap = min(1.0, scale * 0.4)
    for start, stop in pairwise(edges):
        begin, size = number(start * scale), number(max(0.2, (stop - start) * scale - gap))
        step = f"M0 {begin}h{number(thickness)}v{size}h-{number(thickness)}z"
        across = f"M{begin} 0h{size}v{number(thickness)}h-{size}z"
        paths.setdefault(colour_of(int(ids[start])), []).append(step if vertical else across)
    for look, steps in paths.items():
        yield f'<path class="{look}" d="{"".join(steps)}"/>'


def _saw(picture: RowPicture, width: float) -> str:
    """The positions of the first plane as a line; slots on a straight run are left out."""
    positions = picture.positions[0]
    bends = np.flatnonzero(np.diff(positions, 2)) + 1
    slots = [0, *bends.tolist(), len(positions) - 1]
    across, up = width / len(positions), _SAW / max(1, int(positions.max()))
    points = (f"{number(slot * across)} {number(_SAW - float(positions[slot]) * up)}" for slot in slots)
    return f"M{'L'.join(points)}"


def _saw_in_words(picture: RowPicture) -> str:
    restarts = int((np.diff(picture.positions[0]) != 1).sum())
    return f"positions: they restart {restarts:,} times, and reach {int(picture.positions.max()):,}"


def _label_bins(picture: RowPicture, width: float) -> Iterator[str]:
    """How dense labels are along the row."""
    assert picture.labels is not None  # noqa: S101 - its caller looked
    bins = min(_LABEL_BINS, picture.num_slots)
    edges = np.linspace(0, picture.num_slots, bins + 1).astype(np.int64)
    labelled = np.concatenate([[0], np.cumsum(picture.labels != IGNORE_INDEX)])
    step = width / bins
    yield f'<rect class="empty" x="0" y="0" width="{number(width)}" height="18"/>'
    for place, (start, stop) in enumerate(pairwise(edges.tolist())):
        count = int(labelled[stop] - labelled[start])
        if count:
            share = count / (stop - start)
            yield (
                f'<rect class="many" x="{number(place * step)}" y="{number(18 * (1 - share))}" '
                f'width="{number(step)}" height="{number(18 * share)}"><title>slots {start:,} to {stop - 1:,}: '
                f"{count:,} with a label</title></rect>"
            )
