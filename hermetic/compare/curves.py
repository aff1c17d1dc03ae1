"""Training curves as inline SVG: a line for each arm, the mean of its seeds, in a band from the lowest to the highest.

Algorithm: the steps are cut into up to 120 equal stretches, and a point is the mean of a stretch; the axis of the
losses is linear, from the lowest to the highest point of any arm. Arms are told apart by colour, by dashes, and by
their name on hover.
Guarantee: nothing is smoothed beyond the stretch that a point stands for.
Price: some 10 kB for each arm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from hermetic.markup import escaped

_POINTS: Final = 120
_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 30
_TICKS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The losses of one arm."""

    name: str
    look: int
    """Which colour and dashes, 0 to 4."""
    seeds: Sequence[Sequence[float]]
    """Of each seed, one loss for each step."""


def stretches(losses: Sequence[float], points: int = _POINTS) -> list[float]:
    """The mean of each of at most ``points`` equal stretches.

    Example:
        >>> stretches([1.0, 3.0, 5.0, 7.0], points=2)
        [2.0, 6.0]
    """
    count = min(points, len(losses))
    edges = [len(losses) * at // count for at in range(count + 1)]
    return [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]


def chart(curves: Sequence[Curve], *, name: str, steps: int) -> str:
    """The picture, as wide as there is room; empty without a curve."""
    points = {curve.name: [stretches(losses) for losses in curve.seeds] for curve in curves if curve.seeds}
    values = [value for seeds in points.values() for losses in seeds for value in losses]
    if not values:
        return ""
    plot = _Plot(low=min(values), high=max(values), steps=steps)
    lines = "".join(_band(plot, points[c.name], c.look) + _line(plot, points[c.name], c) for c in curves if c.seeds)
    return (
        f'<svg role="img" aria-label="{escaped(name)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'style="max-width:{_WIDTH}px">{plot.axes()}{lines}</svg>'
    )


def swatch(look: int) -> str:
    """A piece of a line, for a legend."""
    line = f'<line class="line c{look}" x1="0" y1="7" x2="34" y2="7"/>'
    return f'<svg viewBox="0 0 34 14" width="34" height="14">{line}</svg>'


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plot:
    low: float
    high: float
    steps: int

    def x(self, at: int, of: int) -> float:
        """The middle of a stretch."""
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (at + 0.5) / of, 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (1.0 - share), 1)

    def axes(self) -> str:
        parts = []
        for tick in range(_TICKS + 1):
            value = self.low + (self.high - self.low) * tick / _TICKS
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
            parts.append(f'<text class="axis end" x="{_LEFT - 6}" y="{y + 4}">{value:.2f}</text>')
        for step in sorted({round(self.steps * tick / _TICKS) for tick in range(_TICKS + 1)}):
            x = round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * step / self.steps, 1)
            side = " end" if step == self.steps else ""
            parts.append(f'<text class="axis{side}" x="{x}" y="{_HEIGHT - 8}">{step:,}</text>')
        return "".join(parts)


def _line(plot: _Plot, seeds: Sequence[Sequence[float]], curve: Curve) -> str:
    means = [sum(column) / len(column) for column in _columns(seeds)]
    path = " ".join(f"{plot.x(at, len(means))},{plot.y(mean)}" for at, mean in enumerate(means))
    said = f"{curve.name}: from {means[0]:.4f} to {means[-1]:.4f}, mean of {len(seeds)}"
    return f'<polyline class="line c{curve.look}" points="{path}"><title>{escaped(said)}</title></polyline>'


def _band(plot: _Plot, seeds: Sequence[Sequence[float]], look: int) -> str:
    """From the lowest to the highest seed; nothing for a single one."""
    columns = _columns(seeds)
    if len(seeds) < 2:
        return ""
    there = [f"{plot.x(at, len(columns))},{plot.y(max(column))}" for at, column in enumerate(columns)]
    back = [f"{plot.x(at, len(columns))},{plot.y(min(column))}" for at, column in enumerate(columns)]
    return f'<polygon class="band c{look}" points="{" ".join(there + back[::-1])}"/>'


def _columns(seeds: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return list(zip(*seeds, strict=True))
