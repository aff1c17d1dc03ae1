"""A picture in characters: coloured in a terminal, and told apart without colour, in any width.

Guarantee: nothing of a document reaches the terminal but text that prints; what is wrong in a slot ends in an
exclamation mark. Price: one pass over what is shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from hermetic.show.glyphs import ASCII, KIND_STYLES, SHARES, UNICODE, Glyphs, style_of
from hermetic.show.panels import is_of_blocks, panels
from hermetic.show.picture import RowPicture
from hermetic.show.words import (
    MEANING,
    headline,
    kinds_of,
    label_names,
    lengths_in_words,
    place,
    position_names,
    token_names,
    warnings,
)

_Words: TypeAlias = Sequence[tuple[str, bool]]
"""What stands in each slot, and whether it is wrong."""


def plain(picture: RowPicture, *, width: int) -> str:
    """The picture in ASCII, but for texts of tokens."""
    return "".join(f"{line.plain.rstrip()}\n" for line in lines(picture, width=width, ascii_only=True))


def lines(picture: RowPicture, *, width: int, ascii_only: bool) -> Iterator[Text]:
    """The picture, line by line."""
    glyphs = ASCII if ascii_only else UNICODE
    yield Text(headline(picture), style="bold", overflow="fold")
    yield Text(place(picture), style="dim", overflow="fold")
    yield Text()
    yield from _slots(picture, width, glyphs) if picture.is_cell_by_cell else _bar(picture, width, glyphs)
    for warning in warnings(picture):
        yield Text(warning, style="bold red", overflow="fold")
    for row in panels(picture, width=width, glyphs=glyphs):
        yield Text()
        yield from row
    yield Text()
    blocks = is_of_blocks(picture, width=width)
    for kind in kinds_of(picture):
        shares = SHARES.get(kind, {}) if blocks else {}
        shown = " ".join(glyphs.of(kind, share) for share in (1.0, *shares))
        meaning = f" {MEANING[kind]}{_of_a_block(shares.values())}"
        yield Text.assemble((shown, KIND_STYLES[kind]), meaning, overflow="fold")
    for note in picture.notes:
        yield Text(f"note: {note}", style="dim", overflow="fold")


def _of_a_block(parts: Iterable[str]) -> str:
    """What the characters before it say of a block's cells, in their order."""
    said = ", ".join(["all of a block", *parts])
    return f": {said}" if parts else ""


def _slots(picture: RowPicture, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """A table of the slots, as many to a line as there is room for."""
    table = list(_table(picture))
    names = max(len(name) for name, _ in table)
    cell = max(cell_len(word) for _, words in table for word, _ in words)
    table = [(name.ljust(names), [(_right(word, cell), wrong) for word, wrong in words]) for name, words in table]
    each = max(1, (width - names - 2) // (cell + 2))
    for start in range(0, picture.num_slots, each):
        if start:
            yield Text()
        slots = range(start, min(start + each, picture.num_slots))
        for name, words in table:
            yield _table_line(picture, name, words, slots, glyphs)


def _table(picture: RowPicture) -> Iterator[tuple[str, _Words]]:
    """The lines of the table, and what stands in them."""
    moved, firsts = picture.moved_positions().tolist(), set(picture.firsts_with_label())
    numbers = (None if index < 0 else picture.documents[index].number for index in picture.document_ids.tolist())
    yield "document", _marked(["pad" if number is None else str(number) for number in numbers])
    yield "slot" if picture.ids is None else "token", _marked(token_names(picture))
    for name, plane in zip(position_names(picture), picture.positions.tolist(), strict=True):
        yield name, _marked([str(position) for position in plane], moved)
    labels = label_names(picture)
    if labels is not None:
        yield "label", _marked(labels, [slot in firsts for slot in range(picture.num_slots)])


def _marked(words: Sequence[str], wrong: Sequence[bool] | None = None) -> _Words:
    marks = [False] * len(words) if wrong is None else wrong
    return [(f"{word}!" if mark else word, mark) for word, mark in zip(words, marks, strict=True)]


def _right(word: str, cell: int) -> str:
    return " " * (cell - cell_len(word)) + word


def _table_line(picture: RowPicture, name: str, words: _Words, slots: range, glyphs: Glyphs) -> Text:
    line = Text(name, style="dim", no_wrap=True)
    for slot in slots:
        before = slot > slots.start and picture.document_ids[slot] != picture.document_ids[slot - 1]
        word, wrong = words[slot]
        style = "bold bright_red" if wrong else style_of(int(picture.document_ids[slot]))
        line.append(f" {glyphs.edge}" if before else "  ", style="dim")
        line.append(word, style=f"{style} not dim")
    return line


def _bar(picture: RowPicture, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """A long row as a bar: the document in the middle of each piece, and lengths in words."""
    columns = max(8, min(width, picture.num_slots) - 2)
    middles = ((np.arange(columns) + 0.5) * picture.num_slots / columns).astype(np.int64)
    bar = Text(no_wrap=True)
    for index in picture.document_ids[middles].tolist():
        bar.append(glyphs.own[2 - index % 2] if index >= 0 else glyphs.idle, style=style_of(index))
    yield bar
    yield Text(lengths_in_words(picture), overflow="fold")
    if picture.labels is not None:
        supervised = sum(document.supervised or 0 for document in picture.documents)
        yield Text(f"{supervised:,} of {picture.num_tokens:,} tokens have a label", overflow="fold")
