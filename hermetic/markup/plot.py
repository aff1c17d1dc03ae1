"""Plots with their numbers in a table beneath: histograms, and lines in bands.

Algorithm: every plot is drawn twice, for a screen and for a phone, and the page's style shows the one that fits; see
:mod:`hermetic.markup.inline`. Values that are not finite are gaps.
Guarantee: what a plot shows stands in its table; lines are told apart by dashes, too. A line that lies under later
ones is wider than they are, and the legend names them.
Price: a second for the first plot of a process, for matplotlib is imported, and a tenth for each further one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hermetic.markup.elements import cell, hidden, ornament, row, table
from hermetic.markup.inline import COLOUR, LEFT, RIGHT, SIZES, name_axes, picture
from hermetic.markup.text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LETTER: Final = 6.6
"""Width of a digit in pixels."""

DASHES: Final[tuple[tuple[int, ...], ...]] = ((), (8, 3), (2, 3), (10, 3, 2, 3), (4, 4))
"""Of the looks of lines, so that nobody needs their colours to tell them apart."""

_WIDTH: Final = 1.8
"""Of a line in pixels."""

_NEAR: Final = 1 / 200
"""Of the range of a plot, about a pixel: lines nowhere further apart lie on each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Histogram:
    """Counts of B neighbouring stretches."""

    name: str
    about: str
    """What there is to see, in a sentence."""
    edges: Sequence[str]
    """``[B + 1]``: what stands below the edges of the bars."""
    bars: Sequence[str]
    """``[B]``: which values each bar counts, for the table."""
    counts: Sequence[int]
    """``[B]``."""
    across: str
    """What is counted by, with its unit."""
    up: str
    """What is counted."""

    def figure(self) -> str:
        """The plot and its table.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        lines = (row(bar, cell(f"{count:,}", "number")) for bar, count in zip(self.bars, self.counts, strict=True))
        numbers = table((self.across, self.up), lines, name=f"Numbers: {self.name}", numbers={1})
        return _figure(self._draw, name=self.name, about=self.about, numbers=numbers)

    def _draw(self, axes: "Axes", width: int) -> None:
        from matplotlib.ticker import MaxNLocator

        bars = [(at, count) for at, count in enumerate(self.counts) if count]
        if bars:
            colour = COLOUR["bar"]  # the edge shows a single one among thousands
            at, counts = zip(*bars, strict=True)
            axes.bar(at, counts, 0.86, align="edge", color=colour, edgecolor=colour, linewidth=1.5, clip_on=False)
        inside = (width - LEFT - RIGHT) / len(self.counts)
        every = math.ceil((max(map(len, self.edges)) + 1.5) * _LETTER / inside)
        shown = range(0, len(self.edges), every)
        axes.set_xticks([at - 0.07 for at in shown], [self.edges[at] for at in shown])
        axes.set_xlim(-0.07, len(self.counts) - 0.07)
        axes.set_ylim(0, max(1, *self.counts))
        axes.yaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))
        name_axes(axes, across=self.across, up=self.up, width=width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Means at P points, and the band that they lie in."""

    name: str
    look: int
    """Which colour and dashes, 0 to 4."""
    mean: Sequence[float]
    """``[P]``."""
    low: Sequence[float] | None = None
    """``[P]``; ``None``: no band."""
    high: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Lines over the same points."""

    name: str
    about: str
    points: Sequence[float]
    """``[P]``, rising."""
    lines: Sequence[Line]
    across: str
    up: str

    def figure(self, *, rows: int = 11) -> str:
        """The plot, its legend, and a table of ``rows`` of the points.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        said = (f"{swatch(line.look)}{escaped(self._said(at))}" for at, line in enumerate(self.lines))
        entries = (f"<span>{one}</span>" for one in said)
        legend = f'<div class="legend">{"".join(entries)}</div>'
        return _figure(self._draw, name=self.name, about=self.about, numbers=self._table(rows), legend=legend)

    def _said(self, at: int) -> str:
        over = [line.name for line in self._over(at)]
        names = " and ".join(part for part in (", ".join(over[:-1]), *over[-1:]) if part)
        return f"{self.lines[at].name} (lies under {names})" if over else self.lines[at].name

    def _over(self, at: int) -> list[Line]:
        """The later lines that cannot be told from this one by where they are."""
        near = _NEAR * _range_of(self.lines)
        return [later for later in self.lines[at + 1 :] if _is_along(self.lines[at], later, near)]

    def _draw(self, axes: "Axes", width: int) -> None:
        for at, line in enumerate(self.lines):
            colour = COLOUR[f"c{line.look}"]
            outline = _outline(self.points, line)
            if outline:
                axes.fill(*zip(*outline, strict=True), color=colour, alpha=0.15, linewidth=0, clip_on=False)
            means = [value if math.isfinite(value) else math.nan for value in line.mean]
            (drawn,) = axes.plot(self.points, means, color=colour, linewidth=self._width(at), clip_on=False)
            if DASHES[line.look]:
                drawn.set_dashes(DASHES[line.look])
        name_axes(axes, across=self.across, up=self.up, width=width)

    def _width(self, at: int) -> float:
        """In pixels: of up to three lines that lie on each other, each is seen on both sides of the next."""
        return _WIDTH + 1.6 * min(2, len(self._over(at)))

    def _table(self, rows: int) -> str:
        count = len(self.points)
        chosen = sorted({round(at * (count - 1) / max(1, rows - 1)) for at in range(rows)})
        head = (self.across, *(line.name for line in self.lines))
        lines = (row(f"{self.points[at]:,.0f}", *self._readings(at)) for at in chosen)
        return table(head, lines, name=f"Numbers: {self.name}", numbers=range(1, len(head)))

    def _readings(self, at: int) -> Iterator[str]:
        return (cell(_reading(line, at), "number") for line in self.lines)


def _range_of(lines: Sequence[Line]) -> float:
    """From the lowest to the highest mean."""
    finite = [value for line in lines for value in line.mean if math.isfinite(value)]
    return max(finite) - min(finite) if finite else 0.0


def _is_along(line: Line, other: Line, near: float) -> bool:
    """Whether two lines have gaps at the same points, and are nowhere further apart than ``near``."""
    pairs = list(zip(line.mean, other.mean, strict=True))
    both = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    gaps = sum(math.isfinite(a) or math.isfinite(b) for a, b in pairs) - len(both)
    return bool(both) and not gaps and all(abs(a - b) <= near for a, b in both)


def _outline(points: Sequence[float], line: Line) -> list[tuple[float, float]]:
    """There along the highest, and back along the lowest."""
    if line.low is None or line.high is None:
        return []
    there = list(zip(points, line.high, strict=True))
    back = list(zip(points, line.low, strict=True))[::-1]
    return [(x, y) for x, y in there + back if math.isfinite(y)]


def _reading(line: Line, at: int) -> str:
    mean = f"{line.mean[at]:.4f}"
    return mean if line.low is None or line.high is None else f"{mean} ({line.low[at]:.4f} to {line.high[at]:.4f})"


def swatch(look: int) -> str:
    """A piece of a line, for a legend."""
    dashes = " ".join(map(str, DASHES[look])) or "none"
    style = f"stroke:var(--c{look});stroke-width:2;stroke-dasharray:{dashes}"
    return ornament(f'<line x1="0" y1="7" x2="34" y2="7" style="{style}"/>', width=34)


def _figure(draw: Callable[["Axes", int], None], *, name: str, about: str, numbers: str, legend: str = "") -> str:
    pictures = "".join(picture(draw, kind, name=name, about=about) for kind in SIZES)
    caption = f"<figcaption>{escaped(about)}</figcaption>"
    return f"<figure>{pictures}{legend}{caption}{hidden('The numbers as a table', numbers)}</figure>"
