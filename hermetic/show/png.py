"""A row as a PNG file, by matplotlib: the same fills and signs as the SVG, on white.

Guarantee: no state of matplotlib that the caller has is touched. Price: that of matplotlib.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hermetic.errors import MissingDependencyError
from hermetic.files import replacing
from hermetic.show.looks import Look, strips
from hermetic.show.palette import LIGHT, colour_of
from hermetic.show.picture import Kind, MaskPicture, RowPicture
from hermetic.show.words import (
    MEANING,
    headline,
    how_to_read,
    kinds_of,
    label_names,
    place,
    token_names,
    verdict,
    warnings,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS: Final = 2
_PANEL: Final = 4.2
"""Inches of a side of a mask."""
_LINE: Final = _PANEL + 0.5
"""Inches from one line of masks to the next."""
_SLOTS: Final = 32
"""Slots that have room for their tokens."""
_LETTERS: Final = 110
"""Letters beside each other over the width."""
_DPI: Final = 160
_SIGNS: Final[dict[Kind, tuple[str, str, str]]] = {
    "leak": ("leak", "on-leak", "////"),
    "beyond": ("beyond", "on-beyond", "---"),
    "idle": ("empty", "pad", "..."),
}
"""Fill, colour of its lines, and their pattern."""


def write_png(picture: RowPicture, path: Path) -> None:
    """Draw and write.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"a PNG file is drawn by matplotlib, which cannot be imported ({error}); expected the extra `report`: "
            "pip install 'hermetic[report]'. SVG needs nothing: to_svg(path)"
        ) from error
    notes = [line for words in (*warnings(picture), how_to_read(picture)) for line in wrap(words, 104)]
    slots = _slot_lines(picture)
    head = 1.0 + 0.2 * (len(slots) + len(notes)) + 0.2 * -(-len(kinds_of(picture)) // _COLUMNS)
    width, height = _PANEL * _COLUMNS, head + _LINE * -(-len(picture.masks) // _COLUMNS)
    page = Figure(figsize=(width, height), dpi=_DPI, facecolor=LIGHT["paper"])
    canvas: Any = FigureCanvasAgg(page)  # parts of matplotlib carry no annotations
    _head(page, picture, slots, notes)
    for number, mask in enumerate(picture.masks):
        line, column = divmod(number, _COLUMNS)
        bottom = height - head - _LINE * (line + 1) + 0.75
        _mask(_axes(page, column * _PANEL + 0.6, bottom, _PANEL - 0.9, _PANEL - 0.9), picture, mask)
    with replacing(path) as file:
        canvas.print_png(file)


def _axes(page: "Figure", left: float, bottom: float, width: float, height: float) -> "Axes":
    """Axes placed in inches."""
    across, up = page.get_size_inches()
    return page.add_axes((left / across, bottom / up, width / across, height / up))


def _head(page: "Figure", picture: RowPicture, slots: list[list[str]], notes: list[str]) -> None:
    """Title, the row, how to read it, and what the fills mean."""
    from matplotlib.patches import Patch

    across, up = page.get_size_inches()
    below = up - 0.95
    _bar(_axes(page, 0.2, below, across - 0.4, 0.28), picture, slots)
    below -= 0.2 * max(0, len(slots) - 1) + 0.1
    lines: tuple[tuple[float, str, dict[str, Any]], ...] = (
        (up - 0.25, headline(picture), {"fontsize": 14, "fontweight": "bold", "color": LIGHT["ink"]}),
        (up - 0.5, place(picture), {"fontsize": 9, "color": LIGHT["soft"]}),
        (below, "\n".join(notes), {"fontsize": 9, "color": LIGHT["soft"], "linespacing": 1.4}),
    )
    for y, words, options in lines:
        page.text(0.2 / across, y / up, _drawable(words), va="top", parse_math=False, **options)
    looks = [Look(kind=kind, colour="d0", strength=1.0) for kind in kinds_of(picture)]
    page.legend(
        handles=[Patch(label=MEANING[look.kind], **_paint(look)) for look in looks],
        loc="upper left",
        bbox_to_anchor=(0.1 / across, (below - 0.2 * len(notes)) / up),
        ncols=_COLUMNS,
        fontsize=9,
        frameon=False,
    )


def _slot_lines(picture: RowPicture) -> list[list[str]]:
    """What stands in each slot, and under it, where there is room for it."""
    if picture.num_slots > _SLOTS:
        return []
    labels = label_names(picture)
    planes = [[str(position) for position in plane] for plane in picture.positions.tolist()]
    return [list(token_names(picture)), *planes, *([] if labels is None else [list(labels)])]


def _bar(axes: "Axes", picture: RowPicture, slots: list[list[str]]) -> None:
    """The documents to scale, with tokens in it, and positions and labels below."""
    edges = [0, *(np.flatnonzero(np.diff(picture.document_ids)) + 1).tolist(), picture.num_slots]
    spans: dict[str, list[tuple[float, float]]] = {}
    for start, stop in pairwise(edges):
        spans.setdefault(colour_of(int(picture.document_ids[start])), []).append((start, stop - start))
    for colour, bars in spans.items():
        axes.broken_barh(bars, (0, 1), facecolors=LIGHT[colour], edgecolors=LIGHT["paper"], linewidth=0.3)
    for down, words in enumerate(slots):
        for slot, word in enumerate(words):
            colour = LIGHT["ink"] if down else LIGHT[f"on-{colour_of(int(picture.document_ids[slot]))}"]
            fit = word if len(word) * picture.num_slots <= _LETTERS else "…"
            options: dict[str, Any] = {
                "ha": "center",
                "va": "center",
                "fontsize": 8,
                "color": colour,
                "parse_math": False,
            }
            axes.text(slot + 0.5, 0.5 - down * 0.75, _drawable(fit), **options)
    axes.set(xlim=(0, picture.num_slots), ylim=(0, 1))
    axes.axis("off")


def _mask(axes: "Axes", picture: RowPicture, mask: MaskPicture) -> None:
    from matplotlib.patches import Rectangle

    for strip in strips(picture, mask):
        corner = (strip.first * mask.block, strip.query * mask.block)
        width = sum(map(mask.size, strip.keys))
        axes.add_patch(Rectangle(corner, width, mask.size(strip.query), **_paint(strip.look)))
    for x, y, width, height, look in _frames(picture, mask):
        axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=LIGHT["ink"], **look))
    axes.set(xlim=(0, mask.num_slots), ylim=(mask.num_slots, 0), aspect="equal", facecolor=LIGHT["empty"])
    if mask.block == 1:
        shown = (
            range(mask.num_slots)
            if mask.num_slots <= _SLOTS
            else [one.start for one in picture.documents if one.length]
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([slot + 0.5 for slot in shown], labels=list(map(str, shown)))
    axes.tick_params(labelsize=7, length=0, colors=LIGHT["soft"], labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    title = "\n".join([mask.title, verdict(mask)])
    axes.set_title(_drawable(title), fontsize=10, loc="left", color=LIGHT["ink"], parse_math=False)
    axes.set_xlabel(_drawable("\n".join(wrap(mask.says, 58))), fontsize=8, color=LIGHT["soft"], parse_math=False)


def _frames(picture: RowPicture, mask: MaskPicture) -> Iterator[tuple[int, int, int, int, dict[str, Any]]]:
    """Around documents that are large enough to be seen, or around FlexAttention's tiles."""
    if mask.tiles is not None and mask.block == 1:
        size, end = mask.tiles.size, mask.num_slots
        for query, key in zip(*np.nonzero(mask.tiles.states), strict=True):
            x, y = int(key) * size, int(query) * size
            whole = mask.tiles.states[query, key] == 2
            yield x, y, min(size, end - x), min(size, end - y), {"lw": 2.0} if whole else {"lw": 0.9, "ls": "--"}
        return
    for document in picture.documents:
        if document.length * 40 >= picture.num_slots:
            yield document.start, document.start, document.length, document.length, {"lw": 0.9}


def _paint(look: Look) -> dict[str, Any]:
    """How a patch looks."""
    if look.kind == "lost":
        return {"facecolor": LIGHT["paper"], "edgecolor": LIGHT["leak"], "linewidth": 1.0}
    if look.kind == "own":
        return {"facecolor": LIGHT[look.colour], "edgecolor": LIGHT["paper"], "linewidth": 0.5, "alpha": look.strength}
    face, lines, hatch = _SIGNS[look.kind]
    return {
        "facecolor": LIGHT[face],
        "edgecolor": LIGHT[lines],
        "hatch": hatch,
        "linewidth": 0.5,
        "alpha": look.strength,
    }


def _drawable(text: str) -> str:
    """Text with U+FFFD for what the font of matplotlib has no picture of; it would warn about each."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    return "".join(c if c == "\n" or ord(c) in known else "\ufffd" for c in text)
