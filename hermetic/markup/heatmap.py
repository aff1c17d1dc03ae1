"""Heat maps as inline SVG: squares on a logarithmic colour scale, exact zeros unlike any number, values on hover.

Colours are classes, so that the page's style decides for light, dark and paper: ``a0`` to ``a6`` for what crosses
documents, ``b0`` to ``b6`` for what stays in one, ``z`` for an exact zero, ``n`` for what was not measured.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hermetic.markup.text import escaped, number

STEPS = 7
"""Colours of a scale, from the smallest to the largest number that is not zero."""

_MARGIN = 34
_SMALLEST = 0.8
"""How far a picture may shrink, so that its text can be read."""

_NUMBERS_UP_TO = 8
"""Squares of so many documents have room for their numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Logarithmic, from the smallest to the largest number that is not zero."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float | None]) -> "Scale | None":
        """The scale of these numbers; ``None`` when all are zero or were not measured."""
        sizes = [value for value in values if value is not None and value > 0.0 and math.isfinite(value)]
        return cls(low=min(sizes), high=max(sizes)) if sizes else None

    def share(self, value: float) -> float:
        """From 0.0 at ``low`` to 1.0 at ``high``; numbers that are not finite are at the top."""
        if not math.isfinite(value) or self.high == self.low:
            return 1.0
        return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def step(self, value: float) -> int:
        """0 to ``STEPS - 1``."""
        return min(STEPS - 1, int(self.share(value) * STEPS))

    def edges(self, step: int) -> tuple[float, float]:
        """The smallest and the largest number of a step."""
        width = (math.log(self.high) - math.log(self.low)) / STEPS
        low, high = (math.exp(math.log(self.low) + width * at) for at in (step, step + 1))
        return low, high


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """A square of numbers: row i is who is reached, column j who reaches."""

    name: str
    """What it shows, for those who cannot see it."""
    values: Sequence[Sequence[float | None]]
    """``None``: not measured."""
    own: Callable[[int, int], bool]
    """Whether a square stays inside one document."""
    title: Callable[[int, int], str]
    """Shown on hover, before the value."""
    labels: Sequence[str]
    seams: Sequence[int] = ()
    """Where lines are drawn between rows and between columns."""
    about: str = ""
    """What there is to see in it, for those who cannot."""

    def svg(self) -> str:
        """The picture, as wide as there is room; where there is little it scrolls, and stays legible."""
        count, size = len(self.values), _size(len(self.values))
        width = _MARGIN + count * size + 2
        scales = {kind: self.scale(own=own) for kind, own in (("a", False), ("b", True))}
        squares = "".join(self._square(i, j, size, scales) for i in range(count) for j in range(count))
        return (
            f'<svg role="img" class="map" aria-label="{escaped(self.name)}" viewBox="0 0 {width} {width}" '
            f'style="max-width:{width}px;min-width:{width * _SMALLEST:.0f}px"><desc>{escaped(self.about)}</desc>'
            f"{self._axes(size)}{squares}{self._seams(size)}</svg>"
        )

    def scale(self, *, own: bool) -> Scale | None:
        """Of the squares inside documents, or of those that cross."""
        rows = enumerate(self.values)
        return Scale.over(value for i, row in rows for j, value in enumerate(row) if self.own(i, j) == own)

    def _square(self, i: int, j: int, size: int, scales: dict[str, Scale | None]) -> str:
        value, kind = self.values[i][j], "b" if self.own(i, j) else "a"
        scale = scales[kind]
        if value is None:
            look, said = "n", "not measured"
        elif value == 0.0 or scale is None:
            look, said = "z", "exactly 0"
        else:
            look, said = f"{kind}{scale.step(value)}", f"{value:.3g}"
        x, y = _MARGIN + j * size, _MARGIN + i * size
        square = (
            f'<rect class="{look}" x="{x}" y="{y}" width="{size - 1}" height="{size - 1}">'
            f"<title>{escaped(self.title(i, j))}: {said}</title></rect>"
        )
        if len(self.values) > _NUMBERS_UP_TO or value is None:
            return square
        middle = (size - 1) / 2
        return f'{square}<text class="t{look}" x="{x + middle}" y="{y + middle + 4}">{number(value)}</text>'

    def _axes(self, size: int) -> str:
        every = math.ceil((8 * max(map(len, self.labels)) + 4) / size)
        texts = []
        for i in range(0, len(self.labels), every):
            middle = _MARGIN + i * size + size / 2
            label = escaped(self.labels[i])
            texts.append(f'<text class="axis" x="{middle}" y="{_MARGIN - 8}">{label}</text>')
            texts.append(f'<text class="axis end" x="{_MARGIN - 6}" y="{middle + 4}">{label}</text>')
        return "".join(texts)

    def _seams(self, size: int) -> str:
        end = _MARGIN + len(self.values) * size
        lines = []
        for seam in self.seams:
            at = _MARGIN + seam * size - 0.5
            lines.append(f'<line class="seam" x1="{at}" y1="{_MARGIN}" x2="{at}" y2="{end}"/>')
            lines.append(f'<line class="seam" x1="{_MARGIN}" y1="{at}" x2="{end}" y2="{at}"/>')
        return "".join(lines)


def _size(count: int) -> int:
    """Of a square in pixels: numbers fit into those of few documents, and 64 onto a screen."""
    return 62 if count <= _NUMBERS_UP_TO else 30 if count <= 16 else 20 if count <= 32 else 12


PATTERNS = (
    '<svg width="0" height="0" aria-hidden="true" class="patterns"><defs>'
    '<pattern id="zero" width="1" height="1" patternContentUnits="objectBoundingBox">'
    '<rect class="zero" width="1" height="1"/><circle class="dot" cx="0.5" cy="0.5" r="0.1"/></pattern>'
    '<pattern id="unmeasured" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="2" height="5"/></pattern></defs></svg>'
)
"""What fills exact zeros and what was not measured; once on a page."""
