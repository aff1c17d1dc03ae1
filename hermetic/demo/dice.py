"""Random draws that are the same on every machine and Python version.

Guarantee: only ``Random.random``, whose stream Python promises to keep, and correctly rounded arithmetic are used.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

_Item = TypeVar("_Item")


class Dice:
    """Draws from ``Random.random`` alone: the one stream that is the same on every Python version."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)  # noqa: S311 - reproducible data, nothing secret

    def below(self, bound: int) -> int:
        """0 to ``bound - 1``."""
        return int(self._random.random() * bound)

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of them."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """``count`` different items, in random order."""
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]

    def chance(self, share: float) -> bool:
        """True in ``share`` of the draws."""
        return self._random.random() < share

    def long_tail(self, low: int, high: int) -> int:
        """Mostly ``low`` or a little more, now and then far more: a Pareto draw, cut off at ``high``."""
        # Square roots are rounded correctly on every machine, powers are not: this is rest to the power of 3/4.
        root = math.sqrt(1.0 - self._random.random())
        return min(high, int(low / (root * math.sqrt(root))))
