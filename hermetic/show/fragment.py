"""A picture as a piece of a page or notebook: the same drawings, each by itself, so that narrow windows stack them."""

from hermetic.markup import escaped
from hermetic.show.grid import cell_of, mask_piece
from hermetic.show.palette import SANS, style
from hermetic.show.picture import RowPicture
from hermetic.show.pieces import Piece, number
from hermetic.show.strip import names_piece
from hermetic.show.svg import hatches_of, legend, strip_pieces
from hermetic.show.words import headline, how_to_read, place, warnings

_LINE = 340
"""Units of a line of slots: a phone's width."""
_LONG = 420

_LAYOUT = f"""
.hermetic-row{{font:14px/1.45 {SANS}}}"""

_BOXES = """
.hermetic-row{background:var(--paper);margin:0;max-width:none;display:block}
.hermetic-row .set{display:flex;flex-wrap:wrap;gap:14px 10px;align-items:flex-start;margin:10px 0}
.hermetic-row .masks{gap:24px}
.hermetic-row svg{display:block;max-width:100%;height:auto;flex:none;overflow:visible}
.hermetic-row .masks svg{flex:1 1 280px;max-width:420px;width:100%;min-width:0}
.hermetic-row p{margin:4px 0;color:var(--ink)}
.hermetic-row p.soft{color:var(--soft)}
.hermetic-row p.bad-words{color:var(--leak);font-weight:600}
"""


def figure(picture: RowPicture) -> str:
    """The picture as markup to put into a page: HTML and XML at once, with its own style, and without a script.

    Args:
        picture: what ``hermetic.show`` returned.

    Returns:
        A ``figure`` element. Several of them may stand on one page.
    """
    hatches = hatches_of(picture)
    short = picture.is_cell_by_cell
    strip = strip_pieces(picture, _LINE if short else _LONG)
    rows = [names_piece(picture), *strip] if short else list(strip)
    masks = [mask_piece(picture, mask, hatches) for mask in picture.masks]
    notes = f'<p class="soft">Note: {escaped("; ".join(picture.notes))}.</p>' if picture.notes else ""
    wrong = "".join(f'<p class="bad-words">{escaped(warning)}</p>' for warning in warnings(picture))
    return (
        f'<figure class="hermetic-row"><style>{style()}{_LAYOUT}{_BOXES}</style>'
        f'<p><b>{escaped(headline(picture))}</b></p><p class="soft">{escaped(place(picture))}</p>'
        f'<svg width="0" height="0" aria-hidden="true">{hatches.definitions(cell_of(picture))}</svg>'
        f'<div class="set">{"".join(map(_alone, rows))}</div>{wrong}'
        f'<p class="soft">{how_to_read(picture)}</p><div class="set masks">{"".join(map(_alone, masks))}</div>'
        f'<div class="set">{"".join(map(_alone, legend(picture, hatches)))}</div>{notes}</figure>'
    )


def _alone(piece: Piece) -> str:
    width, height = number(piece.width), number(piece.height)
    return (
        f'<svg role="img" aria-label="{escaped(piece.name)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{piece.markup}</svg>'
    )
