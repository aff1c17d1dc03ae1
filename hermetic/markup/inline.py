"""What matplotlib draws, as inline SVG in the page's own colours and type.

Algorithm: matplotlib draws with placeholder colours; of its SVG only the paths and texts that are seen are kept,
without ids, scripts, styles and metadata, and each placeholder becomes a variable of the page's style.
Guarantee: the same drawing makes the same bytes; nothing in it refers to anything.
Price: a second for the first drawing of a process, for matplotlib is imported, and a tenth for each further one; some
20 kB for a line of a hundred points.
"""

import importlib
import io
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from hermetic.errors import MissingDependencyError
from hermetic.markup.text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES: Final = {"wide": (720, 290), "narrow": (340, 250)}
"""Width and height in pixels of the page."""

LEFT, RIGHT, _TOP, _BOTTOM = 54, 24, 26, 40

_VARIABLES: Final = {
    "#010001": "soft",
    "#010002": "line",
    "#010003": "bar",
    **{f"#0100c{look}": f"c{look}" for look in range(5)},
}
"""Placeholder colours, and the variables of the style that they stand for."""

COLOUR: Final = {name: colour for colour, name in _VARIABLES.items()}


def require_plots() -> None:
    """Refuse, before minutes are spent, to make a page whose plots cannot be drawn.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the plots of this page need the package 'matplotlib', which cannot be imported ({error}); expected what "
            "brings it: pip install 'hermetic[report]'"
        ) from error


def picture(draw: Callable[["Axes", int], None], kind: str, *, name: str, about: str) -> str:
    """One drawing in one of ``SIZES``.

    Args:
        draw: given the axes and the width of the picture in pixels.
        kind: a key of ``SIZES``, and a class of the style.
        name: of the picture, for those who cannot see it.
        about: what there is to see in it.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    width, height = SIZES[kind]
    shapes = "".join(_shapes(ET.fromstring(_drawn(draw, width, height))))  # noqa: S314 - matplotlib just wrote it
    return (
        f'<svg role="img" class="plot {kind}" aria-label="{escaped(name)}" viewBox="0 0 {width} {height}" '
        f'style="max-width:{width}px"><desc>{escaped(about)}</desc>{shapes}</svg>'
    )


def _drawn(draw: Callable[["Axes", int], None], width: int, height: int) -> str:
    """What matplotlib writes, in pixels of the page."""
    require_plots()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.StringIO()
    options: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "hermetic",
        "text.parse_math": False,
        "lines.scale_dashes": False,
        "font.size": 12,
        "path.simplify": False,
    }
    with rc_context(options):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        axes = figure.add_axes(
            (LEFT / width, _BOTTOM / height, (width - LEFT - RIGHT) / width, (height - _TOP - _BOTTOM) / height)
        )
        _style(axes)
        draw(axes, width)
        unsigned = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=unsigned)
    return file.getvalue()


def _style(axes: "Axes") -> None:
    """Level lines behind everything, and no frame."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=COLOUR["line"], linewidth=1, clip_on=False)
    axes.tick_params(length=0, labelcolor=COLOUR["soft"], labelsize=12, pad=6)
    axes.margins(x=0)
    axes.yaxis.set_major_formatter(_in_words)
    axes.xaxis.set_major_formatter(_in_words)


def _in_words(value: float, _position: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value / 1000:,.4g}k"


def name_axes(axes: "Axes", *, across: str, up: str, width: int) -> None:
    """The upward axis is named above it, the other one below its end."""
    from matplotlib.transforms import IdentityTransform

    height = next(height for wide, height in SIZES.values() if wide == width)
    look: dict[str, Any] = {"color": COLOUR["soft"], "fontsize": 12, "transform": IdentityTransform()}
    axes.text(4, height - 14, up, **look)
    axes.text(width - RIGHT, 6, across, ha="right", **look)


_NAMESPACE: Final = "{http://www.w3.org/2000/svg}"
_KEPT: Final = {
    "fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "opacity", "font-size", "text-anchor"
}  # fmt: skip


def _shapes(root: ET.Element) -> Iterator[str]:
    """Every path and text that is seen, in the order in which they are drawn."""
    for element in root.iter():
        style = _style_of(element)
        if element.tag == f"{_NAMESPACE}path" and not _is_invisible(style):
            yield f'<path d="{_rounded(" ".join(element.get("d", "").split()))}" style="{_joined(style)}"/>'
        elif element.tag == f"{_NAMESPACE}text":
            x, y = _rounded(element.get("x", "0")), _rounded(element.get("y", "0"))
            yield f'<text x="{x}" y="{y}" style="{_joined(style)}">{escaped(element.text or "")}</text>'


def _style_of(element: ET.Element) -> dict[str, str]:
    pairs = (part.partition(":") for part in element.get("style", "").split(";") if part)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _is_invisible(style: dict[str, str]) -> bool:
    return style.get("fill") == "none" and "stroke" not in style


def _joined(style: dict[str, str]) -> str:
    kept = ((name, value) for name, value in style.items() if name in _KEPT)
    return ";".join(f"{name}:{f'var(--{_VARIABLES[value]})' if value in _VARIABLES else value}" for name, value in kept)


def _rounded(text: str) -> str:
    """Coordinates to a tenth of a pixel: ``70.690909`` is ``70.7``."""
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text)
