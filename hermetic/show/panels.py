"""Masks in characters, side by side while the width lasts.

Algorithm: a grid that is wider than the window is made coarser by adding up its blocks. Guarantee: no line is wider
than the window, down to a handful of columns. Price: one pass over the blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from textwrap import wrap
from typing import Final

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from hermetic.show.glyphs import KIND_STYLES, Glyphs, style_of
from hermetic.show.pattern import Ints
from hermetic.show.picture import MaskPicture, RowPicture
from hermetic.show.words import tiles_in_words, verdict

_TALLEST: Final = 32
"""Lines of a mask of blocks: a window has few more."""

_GAP: Final = 4
_NARROWEST: Final = 30
"""Columns of a panel, for its words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """A mask that fits its window."""

    picture: RowPicture
    mask: MaskPicture
    glyphs: Glyphs
    wide: int
    """Columns of a cell: 2 where there is room, which makes cells square."""

    @property
    def margin(self) -> int:
        """Columns of the numbers at the side."""
        return len(str(self.mask.num_slots - 1))

    def lines(self) -> Iterator[Text]:
        """The grid, with the last digits of its keys above it if it is one of cells."""
        if self.mask.block == 1:
            digits = (str(key % 10).ljust(self.wide) for key in range(self.mask.blocks))
            yield Text(" " * (self.margin + 1) + "".join(digits), style="dim", no_wrap=True)
        yield from map(self._line, range(self.mask.blocks))

    def _line(self, query: int) -> Text:
        first = query * self.mask.block
        named = self.mask.block == 1 or query % 8 == 0
        line = Text(f"{first if named else '':>{self.margin}} ", style="dim", no_wrap=True)
        own = style_of(int(self.picture.document_ids[first]))
        for key in range(self.mask.blocks):
            found = self.mask.kind_of(query, key)
            if found is None:
                line.append(self.glyphs.empty.ljust(self.wide))
                continue
            kind, share = found
            style = own if kind == "own" else KIND_STYLES[kind]
            line.append(self.glyphs.of(kind, share).ljust(self.wide), style=f"{style} not dim")
        return line


def panels(picture: RowPicture, *, width: int, glyphs: Glyphs) -> Iterator[list[Text]]:
    """Rows of panels, each row as its lines."""
    row: list[list[Text]] = []
    used = 0
    for mask in picture.masks:
        panel = _panel(picture, mask, width, glyphs)
        needed = _width(panel)
        if row and used + _GAP + needed > width:
            yield _joined(row)
            row, used = [], 0
        used += needed + (_GAP if row else 0)
        row.append(panel)
    yield _joined(row)


def is_of_blocks(picture: RowPicture, *, width: int) -> bool:
    """Whether some mask is drawn in blocks, of which a part may be read: the row is long, or the window narrow."""
    return any(_fitting(mask, width).block > 1 for mask in picture.masks)


def _panel(picture: RowPicture, mask: MaskPicture, width: int, glyphs: Glyphs) -> list[Text]:
    """A mask under its title and verdict."""
    mask = _fitting(mask, width)
    margin = len(str(mask.num_slots - 1)) + 1
    grid = _Grid(picture=picture, mask=mask, glyphs=glyphs, wide=1 + (mask.blocks * 2 + margin <= width))
    body = list(grid.lines())
    room = min(width, max(_width(body), _NARROWEST))
    head = [Text(part, style="bold") for part in wrap(mask.title, room)]
    head += [Text(part, style="green" if mask.is_right else "bold red") for part in wrap(verdict(mask), room)]
    blocks = "" if mask.block == 1 else f"Blocks of {mask.block:,} tokens. {tiles_in_words(mask)}"
    return [*head, *body, *(Text(part, style="dim") for part in wrap(blocks, room))]


def _fitting(mask: MaskPicture, width: int) -> MaskPicture:
    """A mask with as few blocks as there is room for."""
    room = max(1, width - len(str(mask.num_slots)) - 2)
    while mask.blocks > room or (mask.block > 1 and mask.blocks > _TALLEST):
        mask = replace(mask, block=mask.block * 2, cells={kind: _paired(part) for kind, part in mask.cells.items()})
    return mask


def _paired(cells: Ints) -> Ints:
    """Counts of blocks of twice the side."""
    pairs = np.arange(0, len(cells), 2)
    added: Ints = np.add.reduceat(np.add.reduceat(cells, pairs, axis=0), pairs, axis=1)
    return added


def _width(panel: Sequence[Text]) -> int:
    return max(cell_len(line.plain) for line in panel)


def _joined(row: Sequence[list[Text]]) -> list[Text]:
    joined = []
    for parts in zip_longest(*row, fillvalue=Text()):
        line = Text(no_wrap=True)
        for panel, part in zip(row, parts, strict=True):
            padding = _width(panel) - cell_len(part.plain)
            line.append_text(part)
            line.append(" " * (padding + _GAP))
        line.rstrip()
        joined.append(line)
    return joined
