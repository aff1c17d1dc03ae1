"""A file of lengths, planned and judged: what a capacity costs before anything is tokenized or packed.

Guarantee: every number is counted from a plan whose conservation was checked; alternatives are planned from the same
lengths under the same policies. Price: that of the plan, and with alternatives that of a plan for each of them.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hermetic.data.lengths import DocumentLengths, lengths_from_path
from hermetic.data.statistics import HistogramBar, length_histogram
from hermetic.errors import DataError
from hermetic.plan import Plan, plan_rows

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
        "seed": seed,
    }
    # A wrong option is better found before a large file is read, and compiled code is loaded before it is timed.
    plan_rows([1], 1 if capacity is None else capacity, **options)
    announce("reading lengths")
    source = lengths_from_path(path, column=column)
    if capacity is None:
        capacity = source.capacity
    if capacity is None:
        raise DataError(f"{source.path} states no capacity; expected one to be given: the tokens of a row")
    announce("planning")
    start = time.perf_counter()
    plan = plan_rows(source.lengths, capacity, **options)
    seconds = time.perf_counter() - start
    announce("comparing")
    alternatives = _alternatives(plan) if compare else ()
    if save is not None:
        plan.save(save)
    return _summary(source, plan, seconds, alternatives)


def _summary(source: DocumentLengths, plan: Plan, seconds: float, alternatives: tuple[Alternative, ...]) -> PlanSummary:
    lengths = plan.lengths
    filled = lengths[lengths > 0]
    bound = plan.lower_bound
    too_long = lengths > plan.capacity
    per_row = np.diff(plan.row_offsets)
    documents_cut, fragments = _cuts(plan)
    return PlanSummary(
        path=source.path,
        kind=source.kind,
        documents=len(lengths),
        tokens=int(lengths.sum()),
        empty_documents=len(lengths) - len(filled),
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        longest=int(lengths.max()),
        histogram=length_histogram(filled) if len(filled) else (),
        capacity=plan.capacity,
        strategy=plan.strategy,
        on_overflow=plan.on_overflow,
        max_documents_per_row=plan.max_documents_per_row,
        seed=plan.seed,
        rows=plan.num_rows,
        lower_bound=bound,
        gap=(plan.num_rows - bound) / bound if bound else 0.0,
        certified=plan.num_rows == bound,
        utilization=plan.utilization,
        documents_per_row=float(per_row.mean()) if len(per_row) else 0.0,
        most_documents_in_a_row=int(per_row.max(initial=0)),
        lost_tokens=plan.lost_tokens,
        documents_dropped=len(plan.dropped),
        documents_truncated=int(too_long.sum()) if plan.on_overflow == "truncate" else 0,
        documents_cut=documents_cut,
        fragments=fragments,
        plan_seconds=seconds,
        alternatives=alternatives,
    )


def _cuts(plan: Plan) -> tuple[int, int]:
    """Documents in two fragments or more, and their fragments."""
    if plan.fragments is None:
        return 0, 0
    pieces = np.bincount(plan.fragments.document, minlength=plan.num_documents)
    return int((pieces > 1).sum()), int(pieces[pieces > 1].sum())


def _alternatives(plan: Plan) -> tuple[Alternative, ...]:
    """The same documents and policies, laid out as others do."""
    lengths = plan.lengths[plan.lengths > 0]
    if len(lengths) == 0:
        return ()
    options: dict[str, Any] = {
        "on_overflow": plan.on_overflow,
        "max_documents_per_row": plan.max_documents_per_row,
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
