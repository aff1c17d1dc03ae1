"""As few rows as possible, with a proof: from the linear relaxation to whole rows.

**Algorithm.** Best-fit-decreasing first. If the combinatorial bounds do not already prove it optimal, column
generation gives a bound and a fractional solution, and a *dive* turns that into whole rows: take each row as
often as the solution does, rounded down (or, once all are below one, those nearest to one), then solve the
relaxation of what is left again, with rows made for it. At every depth best fit completes the solution, so
there always is one, and the best is kept. A last stretch of few rows is left to HiGHS's integer solver.
**Guarantee.** Never more rows than best-fit-decreasing. The bound holds no matter when the time ran out.
**Price.** Seconds, for a few thousand distinct sizes minutes; up to the time limit, which the step that is running
may overrun: at 7,000 distinct sizes by a few seconds. The result depends on the time and on the release of HiGHS;
a saved plan does not.
"""

import time
from typing import Any, NamedTuple

import numpy as np

from hermetic.errors import PlanError
from hermetic.plan import bound
from hermetic.plan.best_fit import best_fit_blocks
from hermetic.plan.blocks import Blocks, blocks_from_columns
from hermetic.plan.certificate import LARGEST_SPACE
from hermetic.plan.column_generation import Relaxation, relaxed
from hermetic.plan.histogram import Histogram, Int64Array
from hermetic.plan.knapsack import packets_from_histogram

_MOST_CELLS = 1 << 30
_SHARE_OF_BOUND = 0.6  # of the time limit; the dives get what the bound leaves
# A row used at least this often in a fractional solution is taken once; each dive rounds in another way.
_NEAR_ONE = (0.7, 0.9, 0.5, 0.8, 0.6, 1.0)
_LAST_ROWS = 30  # few enough for the integer solver
_LAST_SECONDS = 5.0


class Optimum(NamedTuple):
    """The best rows found, and the prices that prove a bound, if column generation was needed."""

    blocks: Blocks
    prices: Int64Array | None


class _Task(NamedTuple):
    histogram: Histogram
    capacity: int
    target: int
    """A number of rows that nothing can go below."""
    deadline: float


class _Rows(NamedTuple):
    """Rows that are decided: ``columns [L, P]``, each ``times [P]``."""

    columns: Int64Array
    times: Int64Array

    @property
    def number(self) -> int:
        return int(self.times.sum())

    @property
    def pieces(self) -> Int64Array:
        """``[L]``, how many pieces of each size they hold."""
        return self.columns @ self.times


def optimal_blocks(histogram: Histogram, capacity: int, seconds: float) -> Optimum:
    """Return the fewest rows that were found in ``seconds``, and what proves how few are possible.

    Raises:
        PlanError: the tables of the knapsack would not fit into memory, or its sums into 64 bits.
    """
    start = time.monotonic()
    deadline = start + seconds
    first = best_fit_blocks(histogram, capacity, None)
    simple_bound = bound.fewest_rows(histogram, capacity, None)
    if first.num_rows <= simple_bound:
        return Optimum(first, None)
    _refuse_large_tables(histogram, capacity)
    relaxation = relaxed(histogram, capacity, _rows_of(histogram, first).columns, start + seconds * _SHARE_OF_BOUND)
    task = _Task(histogram, capacity, max(relaxation.bound, simple_bound), deadline)
    found: _Rows | None = None
    for near_one in _NEAR_ONE:
        # A level of a dive handles as many rows as a search for them does, and takes about as long.
        if relaxation.times.any() and time.monotonic() + relaxation.search_seconds < deadline:
            found = _fewer(found, _dive(task, relaxation, near_one))
            if found.number <= task.target:
                break
    if found is None or found.number >= first.num_rows:
        return Optimum(first, relaxation.prices)
    return Optimum(blocks_from_columns(histogram, found.columns, found.times), relaxation.prices)


def _refuse_large_tables(histogram: Histogram, capacity: int) -> None:
    if capacity > LARGEST_SPACE:
        raise PlanError(
            f"strategy 'optimal' plans rows of up to {LARGEST_SPACE} units of align, and this is {capacity}. Raise "
            "align, or choose best_fit_decreasing"
        )
    cells = len(packets_from_histogram(histogram, capacity).key) * (capacity + 1)
    if cells > _MOST_CELLS:
        raise PlanError(
            f"strategy 'optimal' would need a table of {cells} bytes for {len(histogram.sizes)} distinct sizes at "
            f"capacity {capacity}; expected at most {_MOST_CELLS}. Raise align, which makes sizes coarser, or "
            "choose best_fit_decreasing"
        )


def _dive(task: _Task, relaxation: Relaxation, near_one: float) -> _Rows:
    """Round the relaxation, level by level; return the best complete solution."""
    best: _Rows | None = None
    decided = _Rows(np.empty((len(task.histogram.sizes), 0), np.int64), np.empty(0, np.int64))
    rest = task.histogram
    while True:
        decided = _joined(decided, _rounded(relaxation, rest.counts, near_one))
        rest = Histogram(sizes=task.histogram.sizes, counts=task.histogram.counts - decided.pieces)
        filled = _rows_of(rest, best_fit_blocks(rest, task.capacity, None))
        best = _fewer(best, _joined(decided, filled))
        if best.number <= task.target or not rest.counts.any() or time.monotonic() > task.deadline:
            return best
        pool = relaxation.columns[:, (relaxation.columns <= rest.counts[:, None]).all(axis=0)]
        columns = np.concatenate([pool, filled.columns], axis=1)
        relaxation = relaxed(rest, task.capacity, columns, task.deadline, relaxation.search_seconds)
        if filled.number <= _LAST_ROWS:
            last = _last_rows(rest, relaxation.columns, min(_LAST_SECONDS, task.deadline - time.monotonic()))
            return best if last is None else _fewer(best, _joined(decided, last))
        if not relaxation.times.any():  # the deadline has passed
            return best


def _fewer(best: _Rows | None, other: _Rows) -> _Rows:
    return other if best is None or other.number < best.number else best


def _joined(first: _Rows, second: _Rows) -> _Rows:
    columns = np.concatenate([first.columns, second.columns], axis=1)
    return _Rows(columns, np.concatenate([first.times, second.times]))


def _rows_of(histogram: Histogram, blocks: Blocks) -> _Rows:
    """Return ``blocks`` as distinct columns and how often each is used."""
    key = {size: place for place, size in enumerate(histogram.sizes.tolist())}
    patterns = blocks.patterns()
    columns = np.zeros((len(key), len(patterns)), np.int64)
    for column, pattern in enumerate(patterns):
        for size, number in pattern:
            columns[key[size], column] += number
    return _Rows(columns, np.array(list(patterns.values()), np.int64))


def _rounded(relaxation: Relaxation, left: Int64Array, near_one: float) -> _Rows:
    """Return rows to decide now, at least one, that the pieces ``left`` fill completely."""
    whole = np.floor(relaxation.times + 1e-6).astype(np.int64)
    if not whole.any():
        whole = (relaxation.times >= min(near_one, relaxation.times.max())).astype(np.int64)
    return _taken(relaxation.columns, whole, left)


def _taken(columns: Int64Array, wanted: Int64Array, left: Int64Array) -> _Rows:
    """Take each column as often as wanted, but never a piece that is not ``left`` any more."""
    left = left.copy()
    times = np.zeros(len(wanted), np.int64)
    chosen = np.argsort(-wanted, kind="stable")[: np.count_nonzero(wanted)]
    for column, held in zip(chosen.tolist(), np.ascontiguousarray(columns[:, chosen].T), strict=True):
        times[column] = min(wanted[column], int((left[held > 0] // held[held > 0]).min()))
        left -= held * times[column]
    return _Rows(columns[:, times > 0], times[times > 0])


def _last_rows(rest: Histogram, columns: Int64Array, seconds: float) -> _Rows | None:
    """Return the fewest of ``columns`` that hold the ``rest``, or None if the time did not suffice for any."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_matrix

    if seconds <= 0:
        return None
    result: Any = milp(
        np.ones(columns.shape[1]),
        constraints=LinearConstraint(csc_matrix(columns.astype(np.float64)), lb=rest.counts),
        integrality=np.ones(columns.shape[1]),
        bounds=Bounds(0, np.inf),
        options={"time_limit": seconds},
    )
    if result.x is None:
        return None
    left, rows = rest.counts.copy(), []
    for column in np.repeat(np.arange(columns.shape[1]), np.rint(result.x).astype(np.int64)):
        rows.append(np.minimum(columns[:, column], left))  # a size may be covered once too often
        left -= rows[-1]
    kept = np.array([row for row in rows if row.any()]).T
    return _Rows(kept, np.ones(kept.shape[1], np.int64))
