"""A file of lengths, planned and judged: what a capacity costs before anything is tokenized or packed.

Guarantee: every number is counted from a plan whose conservation was checked; alternatives are planned from the same
lengths under the same policies. Price: that of the plan, and with alternatives that of a plan for each of them. A
histogram is planned as a histogram, in milliseconds, unless single documents are needed: to save their plan, to compare
it, or for a strategy that keeps their order.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hermetic.data.lengths import DocumentLengths, LengthCounts, counts_or_lengths_from_path
from hermetic.data.statistics import HistogramBar, length_histogram
from hermetic.errors import DataError
from hermetic.plan import HistogramPlan, Plan, plan_histogram, plan_rows
from hermetic.plan.histogram import histogram_from_sizes
from hermetic.plan.histogram_plan import HISTOGRAM_STRATEGIES

__all__ = ["Alternative", "PlanSummary", "plan_lengths"]

Lengths = npt.NDArray[np.integer[Any]]

_WINDOW: Final = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """Another way to lay the same documents into rows."""

    name: str
    rows: int
    utilization: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """A plan in numbers."""

    path: str
    kind: str
    """What the file of lengths turned out to be."""

    documents: int
    tokens: int
    empty_documents: int
    median: float
    mean: float
    longest: int
    histogram: tuple[HistogramBar, ...]
    """Documents of at least one token by length; bars double in width."""

    capacity: int
    strategy: str
    on_overflow: str
    max_documents_per_row: int | None
    seed: int | None
    align: int
    rows: int
    lower_bound: int
    gap: float
    """Rows above the lower bound, as a share of it: no plan of these pieces can save more."""

    certified: bool
    """No plan of these pieces has fewer rows, for this one has as few as the bound."""

    utilization: float
    documents_per_row: float
    """Mean; fragments count as documents."""

    most_documents_in_a_row: int
    lost_tokens: int
    documents_dropped: int
    documents_truncated: int
    documents_cut: int
    """Documents that became two fragments or more."""

    fragments: int
    """What those became."""

    plan_seconds: float
    alternatives: tuple[Alternative, ...]


def plan_lengths(
    path: str | os.PathLike[str],
    *,
    capacity: int | None = None,
    column: str | None = None,
    strategy: str = "best_fit_decreasing",
    on_overflow: str = "error",
    max_documents_per_row: int | None = None,
    seed: int | None = None,
    align: int = 1,
    time_limit: float | None = None,
    compare: bool = False,
    save: str | os.PathLike[str] | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> PlanSummary:
    """Read lengths, plan their rows, and say how good the plan is.

    Args:
        path: what ``lengths_from_path`` reads.
        capacity: tokens per row; by default what the file states.
        column: of a Parquet file.
        strategy: as in ``hermetic.plan_rows``.
        on_overflow: as in ``hermetic.plan_rows``.
        max_documents_per_row: as in ``hermetic.plan_rows``.
        seed: as in ``hermetic.plan_rows``.
        align: as in ``hermetic.plan_rows``.
        time_limit: as in ``hermetic.plan_rows``.
        compare: whether to lay the same documents out in other ways too.
        save: where to write the plan, for ``hermetic.Plan.load``.
        on_stage: called with the name of each stage that begins.

    Raises:
        SourceError: If the file holds no lengths.
        PackedDataError: If a folder is not one of packed rows, or is damaged.
        DataError: If neither the file nor the caller says how many tokens a row has.
        DocumentTooLongError: If a document does not fit and ``on_overflow`` is ``"error"``.
        PlanError: If an option is not valid.
        PlanFileError: If the plan cannot be saved.
    """
    announce = on_stage or (lambda _: None)
    options: dict[str, Any] = {
        "strategy": strategy,
        "on_overflow": on_overflow,
        "max_documents_per_row": max_documents_per_row,
        "time_limit": time_limit,
    }
    # A wrong option is better found before a large file is read, and compiled code is loaded before it is timed.
    if capacity is None:
        plan_rows([1], 1, seed=seed, **options)
    else:
        plan_rows([1], capacity, seed=seed, align=align, **options)
    announce("reading lengths")
    source = counts_or_lengths_from_path(path, column=column)
    if isinstance(source, LengthCounts) and (compare or save is not None or strategy not in HISTOGRAM_STRATEGIES):
        source = source.drawn()
    if capacity is None:
        capacity = source.capacity
    if capacity is None:
        raise DataError(f"{source.path} states no capacity; expected one to be given: the tokens of a row")
    announce("planning")
    start = time.perf_counter()
    if isinstance(source, LengthCounts):
        outline = plan_histogram(source.counts, capacity, align=align, **options)
        return _summary(source, outline, seed, time.perf_counter() - start, ())
    plan = plan_rows(source.lengths, capacity, seed=seed, align=align, **options)
    seconds = time.perf_counter() - start
    announce("comparing")
    alternatives = _alternatives(plan) if compare else ()
    if save is not None:
        plan.save(save)
    return _summary(source, plan, seed, seconds, alternatives)


def _summary(
    source: DocumentLengths | LengthCounts,
    plan: Plan | HistogramPlan,
    seed: int | None,
    seconds: float,
    alternatives: tuple[Alternative, ...],
) -> PlanSummary:
    lengths, numbers = _tallied(plan)
    tokens = sum(length * number for length, number in zip(lengths.tolist(), numbers.tolist(), strict=True))
    too_long = int(numbers[lengths > plan.capacity].sum())
    filled = lengths > 0
    bound = plan.lower_bound
    placed, most = _pieces_in_rows(plan)
    documents_cut, fragments = _cuts(plan, lengths, numbers)
    return PlanSummary(
        path=source.path,
        kind="histogram" if isinstance(source, LengthCounts) else source.kind,
        documents=plan.num_documents,
        tokens=tokens,
        empty_documents=plan.num_empty,
        median=_median(lengths, numbers),
        mean=tokens / plan.num_documents,
        longest=int(lengths[-1]),
        histogram=length_histogram(lengths[filled], numbers[filled]) if filled.any() else (),
        capacity=plan.capacity,
        strategy=plan.strategy,
        on_overflow=plan.on_overflow,
        max_documents_per_row=plan.max_documents_per_row,
        seed=seed,
        align=plan.align,
        rows=plan.num_rows,
        lower_bound=bound,
        gap=(plan.num_rows - bound) / bound if bound else 0.0,
        certified=plan.num_rows == bound,
        utilization=plan.utilization,
        documents_per_row=placed / plan.num_rows if plan.num_rows else 0.0,
        most_documents_in_a_row=most,
        lost_tokens=plan.lost_tokens,
        documents_dropped=too_long if plan.on_overflow == "drop" else 0,
        documents_truncated=too_long if plan.on_overflow == "truncate" else 0,
        documents_cut=documents_cut,
        fragments=fragments,
        plan_seconds=seconds,
        alternatives=alternatives,
    )


def _tallied(plan: Plan | HistogramPlan) -> tuple[Lengths, Lengths]:
    """Return the lengths that occur, increasing, and how many documents have each."""
    if isinstance(plan, HistogramPlan):
        lengths, numbers = np.array(plan.counts, np.int64).T
        return lengths, numbers
    tally = histogram_from_sizes(plan.lengths)
    empty = [plan.num_empty] if plan.num_empty else []
    lengths = np.concatenate([np.zeros(len(empty), np.int64), tally.sizes[::-1]])
    return lengths, np.concatenate([np.array(empty, np.int64), tally.counts[::-1]])


def _median(lengths: Lengths, numbers: Lengths) -> float:
    """Return the mean of the two documents in the middle, which with an odd number are the same."""
    up_to, total = np.cumsum(numbers), int(numbers.sum())
    middle = np.searchsorted(up_to, [(total - 1) // 2, total // 2], side="right")
    return float(lengths[middle].mean())


def _pieces_in_rows(plan: Plan | HistogramPlan) -> tuple[int, int]:
    """Return the pieces in all rows, and in the row that has most."""
    if isinstance(plan, Plan):
        return len(plan.order), int(np.diff(plan.row_offsets).max(initial=0))
    held = [sum(number for _, number in pattern) for pattern in plan.patterns]
    pieces = sum(number * rows for number, rows in zip(held, plan.rows_per_pattern, strict=True))
    return pieces, max(held, default=0)


def _cuts(plan: Plan | HistogramPlan, lengths: Lengths, numbers: Lengths) -> tuple[int, int]:
    """Documents in two fragments or more, and their fragments."""
    if plan.on_overflow != "split":
        return 0, 0
    if isinstance(plan, Plan) and plan.fragments is not None:
        pieces = np.bincount(plan.fragments.document, minlength=plan.num_documents)
        return int((pieces > 1).sum()), int(pieces[pieces > 1].sum())
    cut = lengths > plan.capacity
    return int(numbers[cut].sum()), int((numbers * -(-lengths // plan.capacity))[cut].sum())


def _alternatives(plan: Plan) -> tuple[Alternative, ...]:
    """The same documents and policies, laid out as others do."""
    lengths = plan.lengths[plan.lengths > 0]
    if len(lengths) == 0:
        return ()
    options: dict[str, Any] = {
        "on_overflow": plan.on_overflow,
        "max_documents_per_row": plan.max_documents_per_row,
        "align": plan.align,
    }
    in_order = plan_rows(lengths, plan.capacity, strategy="next_fit", **options)
    windows = [
        plan_rows(lengths[start : start + _WINDOW], plan.capacity, **options).num_rows
        for start in range(0, len(lengths), _WINDOW)
    ]
    rows = {
        "padding: every document in a row of its own": len(in_order.order),
        "next_fit: documents in their order": in_order.num_rows,
        f"best fit in windows of {_WINDOW:,}, as TRL's default": sum(windows),
    }
    return tuple(_alternative(name, count, plan) for name, count in rows.items())


def _alternative(name: str, rows: int, plan: Plan) -> Alternative:
    share = plan.placed_tokens / (rows * plan.capacity) if rows else 1.0
    return Alternative(name=name, rows=rows, utilization=share)
