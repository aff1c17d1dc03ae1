"""Rows to data-parallel ranks and steps: as many rows on every rank, and as equal work as there can be.

All ranks of a step wait for the one with the most work, and attention makes work differ even where tokens do not: a
row of one long document costs more than a row of many short ones.

**Algorithm.** Rows are sorted by work and cut into tuples of ``ranks`` neighbours, one row for each rank. A step takes
``rows_per_rank`` tuples, evenly spread over the sorted order, and balances them by largest differencing (Karmarkar and
Karp) with equal counts: the two tuples that differ most inside are merged, the largest of one onto the smallest of the
other, until one is left. With one row per rank no cut of the rows into steps has a smaller sum of largest work.

**Guarantee.** Every row is in exactly one place of ``rows`` or in ``remainder``, which holds the fewest rows that leave
equal counts, and of those the ones with the least work. Deterministic. ``imbalance`` is computed from the assignment.

**Price.** With one row per rank a step is made of rows alike, so its documents have similar lengths; the steps come in
a seeded order. O(rows log rows), and O(rows x rows_per_rank) for the differencing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.errors import ConservationError, PlanError
from hermetic.plan import arguments
from hermetic.plan.arrays import IntArray, compiled, frozen, owned

FloatArray: TypeAlias = npt.NDArray[np.float64]

DEFAULT_COST: Final = (1.0, 1 / 49_152)
"""Work of a token and of a squared document length in a dense transformer of width 4,096: a layer spends ``24 width²``
operations on a token and ``2 width x length`` on its causal attention, which is ``1 : 1 / (12 width)``."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Assignment:
    """Which rows each rank computes in each step; made by ``assign_rows`` and ``Plan.assign``.

    Example:
        Rows with work ``[4, 1, 3, 1, 3]`` on 2 ranks: the steps are ``{4, 3}`` and ``{3, 1}`` in some order, row 3 is
        the ``remainder``, and ``slowdown`` is ``(4 + 3) / (3.5 + 2)``.

    Raises:
        ConservationError: a row is in no place, or in more than one.
    """

    rows: IntArray
    """``[steps, ranks, rows_per_rank]``: ``rows[:, rank]`` is what one rank computes, step after step."""
    remainder: IntArray
    """Rows that are in no step, for equal counts leave less than one step of them: carry them over to the next pass."""
    row_work: FloatArray
    """``[num_rows]``, the work of every row, in the unit of its cost."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "remainder", owned(self.remainder, "remainder"))
        for array in (self.rows, self.row_work):
            array.setflags(write=False)
        placed = np.concatenate([self.rows.reshape(-1), self.remainder])
        if not np.array_equal(np.sort(placed), np.arange(len(self.row_work))):
            raise ConservationError(
                f"rows and remainder hold {len(placed)} rows, but not each of the {len(self.row_work)} exactly once"
            )

    @property
    def num_steps(self) -> int:
        """Steps in which every rank has its rows."""
        return len(self.rows)

    @property
    def work(self) -> FloatArray:
        """``[steps, ranks]``, the work of each rank in each step."""
        total: FloatArray = self.row_work[self.rows].sum(axis=2)
        return total

    @property
    def imbalance(self) -> FloatArray:
        """``[steps]``, the largest over the mean work of each step; 1.0 is perfect, and so is a step without work."""
        work = self.work
        mean = work.mean(axis=1)
        ratio: FloatArray = np.divide(work.max(axis=1), mean, out=np.ones(len(mean)), where=mean > 0)
        return ratio

    @property
    def slowdown(self) -> float:
        """Largest over mean work summed over all steps: the time of a pass over that of perfectly even work."""
        work = self.work
        mean = float(work.mean(axis=1).sum())
        return float(work.max(axis=1).sum()) / mean if mean > 0 else 1.0


def assign_rows(row_work: npt.ArrayLike, ranks: int, *, rows_per_rank: int = 1, seed: int = 0) -> Assignment:
    """Give every rank the same number of rows and, step by step, nearly the same work.

    Args:
        row_work: ``[num_rows]``, finite numbers of at least 0 in any unit, as ``work_of_rows`` computes them.
        ranks: data-parallel ranks.
        rows_per_rank: rows of each rank in a step, micro-batches and accumulation together.
        seed: of the order of the steps.

    Raises:
        PlanError: an argument is not as described.

    Example:
        >>> assign_rows([4, 1, 3, 2], 2, rows_per_rank=2).rows.tolist()
        [[[0, 1], [2, 3]]]
    """
    work = _read_work(row_work)
    ranks = arguments.whole_number(ranks, "ranks", minimum=1)
    rows_per_rank = arguments.whole_number(rows_per_rank, "rows_per_rank", minimum=1)
    seed = arguments.whole_number(seed, "seed", minimum=0)
    heaviest = np.argsort(-work, kind="stable")
    steps = len(work) // (ranks * rows_per_rank)
    placed = steps * ranks * rows_per_rank
    # Tuple t goes to step t % steps, so that each step has tuples from all over the sorted order.
    tuples = heaviest[:placed].reshape(rows_per_rank, steps, ranks).transpose(1, 0, 2)
    rows = np.ascontiguousarray(tuples)
    if rows_per_rank > 1:
        rows = _largest_differencing(rows, work)
    order = np.random.Generator(np.random.PCG64(seed)).permutation(steps)
    return Assignment(
        rows=np.ascontiguousarray(rows[order].transpose(0, 2, 1)),
        remainder=frozen(np.sort(heaviest[placed:])),
        row_work=work,
    )


def work_of_rows(placed_lengths: IntArray, row_offsets: IntArray, cost: Sequence[float] = DEFAULT_COST) -> FloatArray:
    """Return ``a * tokens + b * sum(length²)`` of each row, ``[num_rows]``.

    Args:
        placed_lengths: tokens of the placed pieces, row after row.
        row_offsets: ``[num_rows + 1]``, where each row starts in them.
        cost: ``(a, b)``, work of a token and of a squared length, measured or estimated.

    Example:
        Rows of ``[3, 1]`` and ``[4]`` tokens at cost ``(1, 2)``: ``4 + 2 * 10`` and ``4 + 2 * 16``.
    """
    per_token, per_square = _read_cost(cost)
    if len(row_offsets) == 1:
        return np.empty(0, np.float64)
    length = placed_lengths.astype(np.float64)
    work: FloatArray = np.add.reduceat(per_token * length + per_square * length**2, row_offsets[:-1])
    return work


def _read_cost(cost: Any) -> tuple[float, float]:
    try:
        per_token, per_square = (float(part) for part in cost)
    except (TypeError, ValueError) as error:
        raise PlanError(f"cost is {cost!r}; expected (a, b), the work of a token and of a squared length") from error
    if not (math.isfinite(per_token + per_square) and min(per_token, per_square) >= 0 < per_token + per_square):
        raise PlanError(f"cost is {cost!r}; expected two finite numbers of at least 0, and not both 0")
    return per_token, per_square


def _read_work(row_work: npt.ArrayLike) -> FloatArray:
    try:
        work = np.array(row_work, np.float64)
    except (TypeError, ValueError) as error:
        raise PlanError(f"row_work is no array of numbers ({error}); expected the work of each row") from error
    if work.ndim != 1:
        raise PlanError(f"row_work has the shape {work.shape}; expected one number for each row")
    wrong = ~(np.isfinite(work) & (work >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise PlanError(f"row {row} has work {work[row]}; expected a finite number of at least 0")
    return work


@compiled
def _largest_differencing(rows: IntArray, work: FloatArray) -> IntArray:
    """Reorder the tuples of every step, ``[steps, tuples, ranks]``, so that each rank's sum is nearly the same."""
    balanced = rows.copy()
    for step in range(len(rows)):
        seats = balanced[step]
        sums = np.empty(seats.shape, np.float64)
        for member in range(len(seats)):
            sums[member] = work[seats[member]]
        into = np.arange(len(seats))  # the tuple that each one was merged into; sums are kept there
        for _ in range(len(seats) - 1):
            first, second = _widest_two(sums, into)
            _merge(seats, sums, into, first, second)
    return balanced


@compiled
def _widest_two(sums: FloatArray, into: IntArray) -> tuple[int, int]:
    """Return the two tuples whose sums at the ranks differ most; at least two are left."""
    first, second = -1, -1
    widest, next_widest = -1.0, -1.0
    for member in range(len(sums)):
        if into[member] != member:
            continue
        spread = sums[member].max() - sums[member].min()
        if spread > widest:
            first, second = member, first
            widest, next_widest = spread, widest
        elif spread > next_widest:
            second, next_widest = member, spread
    return first, second


@compiled
def _merge(seats: IntArray, sums: FloatArray, into: IntArray, first: int, second: int) -> None:
    """Lay tuple ``second`` onto ``first``, its largest sum where that has its smallest."""
    lightest = np.argsort(sums[first], kind="mergesort")
    heaviest = np.argsort(-sums[second], kind="mergesort")
    for member in range(len(into)):
        if into[member] == second:
            moved = seats[member][heaviest]
            for place in range(len(lightest)):
                seats[member, lightest[place]] = moved[place]
            into[member] = first
    for place in range(len(lightest)):
        sums[first, lightest[place]] += sums[second, heaviest[place]]
