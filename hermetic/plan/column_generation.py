"""The linear relaxation of packing: how often to use which row, fractions allowed.

**Algorithm.** Gilmore and Gomory's column generation (1961). HiGHS finds the cheapest fractional use of the rows
known so far and with it the price of each size. A knapsack finds rows that are worth more than a row costs:
the most valuable one, and for every size the most valuable one around one more piece of it. All of them join at
once, which needs a dozen rounds where one row a round needs thousands. Rows whose price is far off leave again.
**Guarantee.** Each round proves a bound (see ``certificate``), so stopping early is safe. The relaxation ends
when no row is worth more than it costs, or when its value rounded up is proven.
**Price.** A linear program of L rows and some 10 L columns each round. A search for rows that took longer than the
time that is left is not begun again.
"""

import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hermetic.plan import knapsack
from hermetic.plan.arrays import IntArray
from hermetic.plan.certificate import PRICE_OF_A_ROW, rows_from_prices, rows_from_worth
from hermetic.plan.histogram import Histogram, Int64Array

_TOLERANCE = 1e-9  # relative; that of HiGHS is 1e-7, and a missed improvement costs nothing but itself
_KEPT_COLUMNS_PER_SIZE = 10
_KEPT_COLUMNS = 3_000


class Relaxation(NamedTuple):
    """What column generation knows when it ends, by itself or at the deadline."""

    columns: Int64Array
    """``[L, P]``, the pieces of each size in each row that it considers."""
    times: npt.NDArray[np.float64]
    """``[P]``, how often each is used; all zero if not even the first program was solved in time."""
    prices: Int64Array
    """``[L]``, the prices that prove ``bound``."""
    bound: int
    """Rows that are needed at least."""
    search_seconds: float
    """How long the last search for rows took."""


def relaxed(
    histogram: Histogram, capacity: int, columns: Int64Array, deadline: float, search_seconds: float = 0.0
) -> Relaxation:
    """Solve the relaxation.

    Args:
        histogram: the sizes and their numbers.
        capacity: the size of a row.
        columns: ``[L, P]``, rows to begin with; every size is in one of them.
        deadline: when to stop, as ``time.monotonic`` tells it.
        search_seconds: how long a search for rows takes, if one was made before.
    """
    packets = knapsack.packets_from_histogram(histogram, capacity)
    times = np.zeros(columns.shape[1])
    proof = histogram.sizes / capacity  # what the volume bound charges
    prices = _in_parts(proof)
    bound = rows_from_prices(histogram, prices, capacity)
    while (remaining := deadline - time.monotonic()) > 0:
        solution = _cheapest(columns, histogram.counts, remaining)
        if solution is None:
            break
        times, duals = solution
        search_start = time.monotonic()
        if search_start + search_seconds > deadline:
            break
        # Prices of a young program are extreme. Half-way to those that proved most so far, they find better rows.
        for candidate in ((duals + proof) / 2, duals):
            best, taken = knapsack.best_rows(histogram.sizes, _in_parts(candidate), packets, capacity)
            proven = rows_from_worth(histogram, _in_parts(candidate), int(best[-1]))
            if proven >= bound:
                prices, bound, proof = _in_parts(candidate), proven, candidate
            fresh = _worthwhile(histogram, capacity, _in_parts(duals), packets, taken)
            if fresh.shape[1]:
                break
        search_seconds = time.monotonic() - search_start
        solved = fresh.shape[1] == 0 or bound >= times.sum() * (1 - _TOLERANCE)
        if solved or time.monotonic() > deadline:
            break
        kept = _near(columns, times, _in_parts(duals))
        columns = np.concatenate([columns[:, kept], fresh], axis=1)
        times = np.concatenate([times[kept], np.zeros(fresh.shape[1])])
    return Relaxation(columns=columns, times=times, prices=prices, bound=bound, search_seconds=search_seconds)


def _in_parts(prices: npt.NDArray[np.float64]) -> Int64Array:
    return np.rint(prices * PRICE_OF_A_ROW).astype(np.int64)


def _cheapest(
    columns: Int64Array, counts: IntArray, seconds: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """Return how often to use each column and the price of each size, or None if time ran out."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_matrix

    result: Any = linprog(
        np.ones(columns.shape[1]),
        A_ub=csc_matrix(-columns.astype(np.float64)),
        b_ub=-counts.astype(np.float64),
        method="highs-ipm",
        options={"time_limit": seconds},
    )
    if result.status != 0:
        return None
    return np.maximum(result.x, 0), np.clip(-result.ineqlin.marginals, 0, 1)


def _worthwhile(
    histogram: Histogram,
    capacity: int,
    prices: Int64Array,
    packets: knapsack.Packets,
    taken: npt.NDArray[np.bool_],
) -> Int64Array:
    """Return distinct rows worth more than a row costs, ``[L, F]``."""
    spaces = np.append(capacity - histogram.sizes, capacity)
    rows = knapsack.rows_from_taken(histogram.sizes, packets, taken, spaces)
    keys = np.arange(len(histogram.sizes))
    rows[keys, keys] += 1
    possible = (rows <= knapsack.most_in_a_row(histogram, capacity)[:, None]).all(axis=0)
    worth = prices @ rows > PRICE_OF_A_ROW * (1 + _TOLERANCE)
    wanted = np.flatnonzero(possible & worth)
    # Rows are told apart by a weighted sum, modulo 2**64, for to sort the rows themselves takes ten times as long.
    # One that had the sum of another would be found a round later.
    weights = np.random.SeedSequence(0).generate_state(len(rows), np.uint64).astype(np.int64)
    first = np.unique((weights @ rows)[wanted], return_index=True)[1]
    return rows[:, wanted[np.sort(first)]]


def _near(columns: Int64Array, times: npt.NDArray[np.float64], prices: Int64Array) -> npt.NDArray[np.intp]:
    """Return the columns in use and those closest to it, in their order."""
    most = max(_KEPT_COLUMNS, _KEPT_COLUMNS_PER_SIZE * len(columns))
    worth = np.where(times > 0, np.iinfo(np.int64).max, prices @ columns)
    return np.sort(np.argsort(-worth, kind="stable")[:most])
