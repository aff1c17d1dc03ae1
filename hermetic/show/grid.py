"""One mask as a piece of SVG: who reads down the side, what is read along the top.

Guarantee: every cell or block that is read, lost or wrong is an element with its own words; neighbours of a line that
say the same are one. What is not read is the ground. Price: 150 bytes for each element.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from hermetic.markup import escaped
from hermetic.show.looks import Strip, strips
from hermetic.show.picture import MaskPicture, RowPicture
from hermetic.show.pieces import Piece, at, joined, number, paragraph, text
from hermetic.show.strip import bars_piece
from hermetic.show.words import MEANING, cell_in_words, span_in_words, tiles_in_words, verdict

PANEL: Final = 308
"""Units of a mask with its words."""

_LEFT: Final = 52
_TOP: Final = 66
_ROOM: Final = PANEL - _LEFT
_LARGEST_CELL: Final = 34
_BAR: Final = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Hatches:
    """What patterns are called in this file: a page may hold several pictures."""

    suffix: str

    def fill(self, kind: str) -> str:
        """The attribute that fills with a pattern; none for what is hollow."""
        return "" if kind == "lost" else f' fill="url(#{kind}-{self.suffix})"'

    def definitions(self, cell: float) -> str:
        """The patterns; ``cell`` is the side of a cell, for the ground."""
        inset, radius = _inset(cell), number(min(4, cell / 6))
        edge, size = number(inset), number(cell - 2 * inset)
        return (
            f'<defs><pattern id="empty-{self.suffix}" width="{cell}" height="{cell}" patternUnits="userSpaceOnUse">'
            f'<rect class="empty" x="{edge}" y="{edge}" width="{size}" height="{size}" rx="{radius}"/>'
            f'</pattern><pattern id="leak-{self.suffix}" width="5" height="5" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect class="leak" width="5" height="5"/><path class="stripe" d="M0 0V5"/>'
            f'</pattern><pattern id="beyond-{self.suffix}" width="6" height="6" patternUnits="userSpaceOnUse">'
            '<rect class="beyond" width="6" height="6"/><path class="dash" d="M0 3H6"/></pattern>'
            f'<pattern id="idle-{self.suffix}" width="4" height="4" patternUnits="userSpaceOnUse">'
            '<rect class="empty" width="4" height="4"/><rect class="pad" width="1.6" height="1.6"/></pattern></defs>'
        )


def cell_of(picture: RowPicture) -> float:
    """Units of a side of a cell or block."""
    blocks = picture.masks[0].blocks
    return round(min(_LARGEST_CELL, _ROOM / blocks), 2)


def mask_piece(picture: RowPicture, mask: MaskPicture, hatches: Hatches) -> Piece:
    """A mask under its title and verdict, above what it is."""
    cell = cell_of(picture)
    length = cell * mask.num_slots / mask.block
    drawn = "" if mask.tiles is None else f"Drawn: tiles of {mask.tiles.size:,}."
    about = " ".join(part for part in (mask.says, drawn, tiles_in_words(mask)) if part)
    words, below = paragraph(_TOP + length + 24, about, PANEL, "soft")
    body = "".join(
        (
            text(0, 15, mask.title, "head"),
            at(0, 22, _sign(mask)),
            text(22, 36, verdict(mask)),
            at(_LEFT, _TOP, joined(_axes(picture, length))),
            at(_LEFT, _TOP, joined(_grid(picture, mask, cell, hatches))),
            words,
        )
    )
    return Piece(name=f"{mask.title}: {verdict(mask)}", width=PANEL, height=below, markup=body)


def _sign(mask: MaskPicture) -> str:
    """A tick or a cross."""
    if mask.is_right:
        return '<path class="tick" d="M3 9.5l4 4L14 5"/>'
    return '<path class="cross" d="M4 4l9 9M13 4l-9 9"/>'


def _axes(picture: RowPicture, length: float) -> Iterator[str]:
    yield at(0, -_BAR - 3, bars_piece(picture, length, _BAR, vertical=False))
    yield at(-_BAR - 3, 0, bars_piece(picture, length, _BAR, vertical=True))
    scale = length / picture.num_slots
    for slot, words in _ticks(picture, scale):
        middle = (slot + 0.5 * picture.is_cell_by_cell) * scale
        across = ("mono",) if picture.is_cell_by_cell else ("end",) if slot else ()
        yield text(middle, -_BAR - 8, words, *across, "small", "soft")
        if picture.is_cell_by_cell or not slot:  # what is at the end is told above
            yield text(-_BAR - 7, middle + 4 if picture.is_cell_by_cell else 10, words, "small", "soft", "end")


def _ticks(picture: RowPicture, scale: float) -> Iterator[tuple[int, str]]:
    """Slots along an axis: the first ones of documents, where there is room, or all."""
    if not picture.is_cell_by_cell:
        yield from ((slot, f"{slot:,}") for slot in (0, picture.num_slots))
        return
    every = scale >= 15
    shown = -1e9
    starts = {document.start for document in picture.documents if document.length}
    for slot in range(picture.num_slots):
        if (every or slot in starts) and (slot - shown) * scale >= 15:
            shown = slot
            yield slot, str(slot)


def _grid(picture: RowPicture, mask: MaskPicture, cell: float, hatches: Hatches) -> Iterator[str]:
    side = number(cell * mask.num_slots / mask.block)
    yield f'<rect{hatches.fill("empty")} width="{side}" height="{side}"><title>not read</title></rect>'
    for strip in strips(picture, mask):
        yield _element(picture, mask, strip, cell, hatches)
    yield from _boxes(picture, mask, cell)
    yield from _tiles(mask, cell)


def _element(picture: RowPicture, mask: MaskPicture, strip: Strip, cell: float, hatches: Hatches) -> str:
    kind, strength = strip.look.kind, strip.look.strength
    inset = _inset(cell) if mask.block == 1 else 0.0
    width = cell * sum(map(mask.size, strip.keys)) / mask.block - 2 * inset
    height = cell * mask.size(strip.query) / mask.block - 2 * inset
    paint = f' class="{strip.look.colour}"' if kind == "own" else f' class="k-{kind}"{hatches.fill(kind)}'
    faint = f' opacity="{strength}"' if strength < 1 and kind != "lost" else ""
    corner = f' rx="{number(min(4, cell / 6))}"' if inset else ""
    return (
        f'<rect{paint} x="{number(strip.first * cell + inset)}" y="{number(strip.query * cell + inset)}" '
        f'width="{number(width)}" height="{number(height)}"{corner}{faint}>'
        f"<title>{escaped(_in_words(picture, mask, strip))}</title></rect>"
    )


def _in_words(picture: RowPicture, mask: MaskPicture, strip: Strip) -> str:
    if strip.first == strip.last:
        return cell_in_words(picture, mask, strip.query, strip.first)
    kind = strip.look.kind
    cells = int(mask.cells[kind][strip.query, strip.first : strip.last + 1].sum())
    tokens = span_in_words(mask, strip.query, strip.query)
    return f"tokens {tokens}, tokens {span_in_words(mask, strip.first, strip.last)}: {MEANING[kind]}, {cells:,} cells"


def _boxes(picture: RowPicture, mask: MaskPicture, cell: float) -> Iterator[str]:
    """A frame around each document, where it is large enough to be seen, and tiles have no frames."""
    if mask.tiles is not None and mask.block == 1:
        return
    scale = cell / mask.block
    for document in picture.documents:
        side = document.length * scale
        if side >= 6 and len(picture.documents) > 1:
            edge, length, round_ = map(number, (document.start * scale, side, min(3, side / 6)))
            yield f'<rect class="box" x="{edge}" y="{edge}" width="{length}" height="{length}" rx="{round_}"/>'


def _tiles(mask: MaskPicture, cell: float) -> Iterator[str]:
    """FlexAttention's tiles over a picture of cells: dashed where it looks cell by cell, thick where it does not."""
    if mask.tiles is None or mask.block > 1:
        return
    size, end = mask.tiles.size, mask.num_slots
    for query, key in zip(*np.nonzero(mask.tiles.states), strict=True):
        whole = " whole" if mask.tiles.states[query, key] == 2 else ""
        x, y = int(key) * size, int(query) * size
        width, height = (number(cell * (min(size, end - edge)) - 3) for edge in (x, y))
        yield (
            f'<rect class="tile{whole}" x="{number(x * cell + 1.5)}" y="{number(y * cell + 1.5)}" width="{width}" '
            f'height="{height}"/>'
        )


def _inset(cell: float) -> float:
    """Space around a cell."""
    return min(1.5, cell * 0.07)
