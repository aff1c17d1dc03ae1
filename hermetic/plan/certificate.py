"""Prices that prove how few rows are possible.

**Algorithm.** Give each size a price. If no row can hold more than D in prices, then pieces worth W in all need
at least ``W / D`` rows: linear programming duality, in the form of Farley (1990). D is the value of a
bounded integer knapsack.
**Guarantee.** Any prices of at least 0 give a valid bound, wherever they come from and however early a solver
was stopped; everything here is integer arithmetic, so no rounding can make the bound wrong. The prices are kept
with the plan: who doubts the bound, such as ``Plan.load``, computes it again.
**Price.** O(capacity x distinct sizes x log) time, milliseconds up to a capacity of 2,048.
"""

import numpy as np

from hermetic.errors import PlanError
from hermetic.plan.arrays import IntArray
from hermetic.plan.histogram import Histogram
from hermetic.plan.knapsack import best_value, packets_from_histogram

PRICE_OF_A_ROW = 1 << 40
"""Prices of a linear program, which are fractions of a row, are rounded to this many parts of one."""


LARGEST_SPACE = 1 << 22
"""The largest row, in units of ``align``: its pieces are worth at most ``2**62``, so 64 bits hold every sum."""


def rows_from_prices(histogram: Histogram, prices: IntArray, capacity: int) -> int:
    """Return the rows that pieces of these ``prices`` need at least.

    Args:
        histogram: the sizes and their numbers.
        prices: ``[L]``, one for each size of the histogram.
        capacity: the size of a row.

    Example:
        Three pieces of size 6 at capacity 10, each with the price of a row: no row holds two, so 3 rows.
    """
    packets = packets_from_histogram(histogram, capacity)
    most = best_value(histogram.sizes, prices.astype(np.int64), packets, capacity)
    return rows_from_worth(histogram, prices, most)


def check_prices(histogram: Histogram, prices: IntArray, capacity: int) -> None:
    """Raise ``PlanError`` unless there is one price for each size, from 0 to that of a row, and sums fit."""
    if capacity > LARGEST_SPACE:
        raise PlanError(
            f"prices prove nothing for a row of {capacity} units of align; expected at most {LARGEST_SPACE}"
        )
    if len(prices) != len(histogram.sizes):
        raise PlanError(f"prices has {len(prices)} entries for {len(histogram.sizes)} distinct sizes of pieces")
    strange = (prices < 0) | (prices > PRICE_OF_A_ROW)
    if strange.any():
        size, price = histogram.sizes[strange][0], prices[strange][0]
        raise PlanError(f"the price of size {size} is {price}; expected 0 to {PRICE_OF_A_ROW}")


def rows_from_worth(histogram: Histogram, prices: IntArray, most: int) -> int:
    """Return the rows that are needed if each holds at most ``most`` in prices, exact for any numbers."""
    worth = sum(price * count for price, count in zip(prices.tolist(), histogram.counts.tolist(), strict=True))
    return -(-worth // most) if most else 0
