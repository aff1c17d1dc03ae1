"""Pieces of SVG with a size of their own, and text in lines, as files and pages put them together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from hermetic.markup import escaped

_SANS_WIDTH: Final = 0.53
"""Width of a letter of running text in its size, on the wide side: another font may be wider than ours."""
_MONO_WIDTH: Final = 0.61


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Markup that fills ``width`` x ``height`` units from its own origin."""

    name: str
    """What it shows, for those who cannot see it."""
    width: float
    height: float
    markup: str


def flowed(pieces: Sequence[Piece], width: float, *, gap: float) -> tuple[list[tuple[float, float]], float]:
    """Where pieces stand that are set like words on lines of ``width``, and the height of all of them."""
    places, x, y, line = [], 0.0, 0.0, 0.0
    for piece in pieces:
        if x and x + piece.width > width:
            x, y, line = 0.0, y + line + gap, 0.0
        places.append((x, y))
        x, line = x + piece.width + gap, max(line, piece.height)
    return places, y + line


def at(x: float, y: float, markup: str) -> str:
    """Markup moved to a place."""
    return f'<g transform="translate({number(x)} {number(y)})">{markup}</g>'


def text(x: float, y: float, words: str, *classes: str) -> str:
    """One line of text; its baseline is at ``y``."""
    look = f' class="{" ".join(classes)}"' if classes else ""
    return f'<text{look} x="{number(x)}" y="{number(y)}">{escaped(words)}</text>'


def paragraph(y: float, words: str, width: float, *classes: str, size: float = 13) -> tuple[str, float]:
    """Text in lines of a width, the first one's baseline at ``y``; and where they end."""
    lines = wrap(words, max(8, int(width / (size * _SANS_WIDTH))), break_on_hyphens=False)
    step = size * 1.35
    markup = "".join(text(0, y + step * place, line, *classes) for place, line in enumerate(lines))
    return markup, y + step * (len(lines) - 1) + size * 0.6


def mono_width(words: str, size: float = 13) -> float:
    """Units that a text of equally wide letters takes; wide characters count twice."""
    from rich.cells import cell_len

    return cell_len(words) * size * _MONO_WIDTH


def number(value: float) -> str:
    """A coordinate without needless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def joined(markup: Iterator[str]) -> str:
    """All of it."""
    return "".join(markup)
