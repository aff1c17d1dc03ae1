"""Training curves for the page: a line for each arm, the mean of its seeds, in a band from the lowest to the highest.

Algorithm: the steps are cut into up to 120 equal stretches, and a point is the mean of a stretch, in its middle.
Guarantee: nothing is smoothed beyond the stretch that a point stands for.
Price: that of :mod:`hermetic.markup.plot`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from hermetic.markup import Line

_POINTS: Final = 120


def stretches(losses: Sequence[float], points: int = _POINTS) -> list[float]:
    """The mean of each of at most ``points`` equal stretches.

    Example:
        >>> stretches([1.0, 3.0, 5.0, 7.0], points=2)
        [2.0, 6.0]
    """
    edges = _edges(len(losses), points)
    return [sum(losses[a:b]) / (b - a) for a, b in pairwise(edges)]


def middles(steps: int, points: int = _POINTS) -> list[float]:
    """The step in the middle of each stretch, counted from 1.

    Example:
        >>> middles(4, points=2)
        [1.5, 3.5]
    """
    return [(a + 1 + b) / 2 for a, b in pairwise(_edges(steps, points))]


def _edges(steps: int, points: int) -> list[int]:
    count = min(points, steps)
    return [steps * at // count for at in range(count + 1)]


def line_of(name: str, look: int, seeds: Sequence[Sequence[float]]) -> Line:
    """The line of an arm, and its band where there are several seeds.

    Args:
        name: of the arm.
        look: which colour and dashes, 0 to 4.
        seeds: of each seed, one loss for each step.
    """
    columns = list(zip(*map(stretches, seeds), strict=True))
    several = len(seeds) > 1
    return Line(
        name=name,
        look=look,
        mean=[sum(column) / len(column) for column in columns],
        low=[min(column) for column in columns] if several else None,
        high=[max(column) for column in columns] if several else None,
    )
