"""A row as one SVG file: its slots, its masks side by side, what the colours mean.

Guarantee: the file needs nothing else, asks for nothing, runs nothing, and is XML; whatever text it shows is escaped.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from hermetic.markup import escaped
from hermetic.show.grid import PANEL, Hatches, cell_of, mask_piece
from hermetic.show.palette import colour_of, style
from hermetic.show.picture import Kind, RowPicture
from hermetic.show.pieces import Piece, at, flowed, number, paragraph, text
from hermetic.show.strip import NAMES_WIDTH, names_piece, scale_piece, slot_pieces
from hermetic.show.words import MEANING, caption, headline, how_to_read, kinds_of, place, warnings

_GAP = 24
_INNER = 2 * PANEL + _GAP
_MARGIN = 16


def drawing(picture: RowPicture) -> str:
    """The text of the file."""
    hatches = hatches_of(picture)
    parts, y = [], float(_MARGIN)
    for block, height in _blocks(picture, hatches):
        parts.append(at(_MARGIN, y, block))
        y += height
    width, depth = _INNER + 2 * _MARGIN, number(y + _MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hermetic-row" width="{width}" height="{depth}" '
        f'viewBox="0 0 {width} {depth}" role="img" aria-labelledby="title description">'
        f'<title id="title">{escaped(f"{place(picture)}: {headline(picture)}")}</title>'
        f'<desc id="description">{escaped(description(picture))}</desc><style>{style()}</style>'
        f'{hatches.definitions(cell_of(picture))}<rect class="paper" width="{width}" height="{depth}" rx="8"/>'
        f"{''.join(parts)}</svg>\n"
    )


def description(picture: RowPicture) -> str:
    """The picture in words, for those who cannot see it."""
    return f"{how_to_read(picture)} {caption(picture)}"


def hatches_of(picture: RowPicture) -> Hatches:
    """Names of patterns that no other picture of a page has; the same picture has the same ones."""
    words = [picture.subject, picture.row, picture.window, picture.chunk, picture.causal, picture.texts, picture.notes]
    masks = [part for mask in picture.masks for part in (mask.says, *mask.cells.values())]
    sums = 0
    for part in (
        words,
        picture.documents,
        picture.document_ids,
        picture.positions,
        picture.ids,
        picture.labels,
        *masks,
    ):
        sums = zlib.crc32(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode(), sums)
    return Hatches(suffix=f"{sums:08x}")


def legend(picture: RowPicture, hatches: Hatches) -> Iterator[Piece]:
    """What the fills mean, of those that are drawn."""
    for kind in kinds_of(picture):
        words = MEANING[kind]
        yield Piece(
            name=words, width=len(words) * 7 + 26, height=18, markup=f"{_swatch(kind, hatches)}{text(22, 13, words)}"
        )


def _swatch(kind: Kind, hatches: Hatches) -> str:
    if kind == "own":
        bands = (f'<rect class="{colour_of(n)}" x="{5 * n}" y="1" width="5" height="14"/>' for n in range(3))
        return "".join(bands)
    return f'<rect class="k-{kind}"{hatches.fill(kind)} x="0.5" y="1" width="14" height="14" rx="2"/>'


def strip_pieces(picture: RowPicture, width: float) -> tuple[Piece, ...]:
    """The row above its masks."""
    if picture.is_cell_by_cell:
        return tuple(slot_pieces(picture, width))
    return (scale_piece(picture, width),)


def _blocks(picture: RowPicture, hatches: Hatches) -> Iterator[tuple[str, float]]:
    yield text(0, 16, headline(picture), "head") + text(0, 36, place(picture), "soft"), 50
    yield _strip(picture)
    for warning in warnings(picture):
        yield paragraph(18, warning, _INNER * 0.85, "bad-words")  # bold letters are wider
    yield paragraph(24, how_to_read(picture), _INNER, "soft")
    yield "", 8
    yield _set([mask_piece(picture, mask, hatches) for mask in picture.masks], _GAP)
    yield _set(list(legend(picture, hatches)), 12)
    if picture.notes:
        yield paragraph(20, f"Note: {'; '.join(picture.notes)}.", _INNER, "soft")


def _strip(picture: RowPicture) -> tuple[str, float]:
    if not picture.is_cell_by_cell:
        piece = scale_piece(picture, _INNER)
        return piece.markup, piece.height
    names = names_piece(picture)
    pieces = strip_pieces(picture, _INNER - NAMES_WIDTH)
    places, height = flowed(pieces, _INNER - NAMES_WIDTH, gap=10)
    lines = sorted({y for _, y in places})
    markup = [at(0, y, names.markup) for y in lines]
    markup += [at(x + NAMES_WIDTH, y, piece.markup) for piece, (x, y) in zip(pieces, places, strict=True)]
    return "".join(markup), height


def _set(pieces: Sequence[Piece], gap: float) -> tuple[str, float]:
    places, height = flowed(pieces, _INNER, gap=gap)
    markup = (at(x, y, piece.markup) for piece, (x, y) in zip(pieces, places, strict=True))
    return "".join(markup), height + 14
