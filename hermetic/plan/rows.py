"""``plan_rows``: lengths and a capacity in, a checked plan out."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from hermetic.plan import arguments
from hermetic.plan.arrays import IntArray, frozen
from hermetic.plan.best_fit import best_fit_decreasing
from hermetic.plan.fragments import Fragments, fragments_from_capacity
from hermetic.plan.in_order import concat_then_split, next_fit
from hermetic.plan.overflow import (
    dropped_documents,
    piece_lengths,
    refuse_long_documents,
    refuse_too_many_fragments,
)
from hermetic.plan.plan import Plan
from hermetic.plan.shuffle import shuffled

_Placement = Callable[[IntArray, int, int | None], tuple[IntArray, IntArray]]

_PLACEMENTS: Final[dict[str, _Placement]] = {
    "best_fit_decreasing": best_fit_decreasing,
    "next_fit": next_fit,
}


def plan_rows(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    strategy: str = "best_fit_decreasing",
    on_overflow: str = "error",
    max_documents_per_row: int | None = None,
    seed: int | None = None,
) -> Plan:
    """Decide which documents share a row.

    Args:
        lengths: tokens of each document, ``[num_documents]``: integers in a sequence or in a NumPy, Arrow or
            torch array. Documents are named by their place in it. An empty document costs nothing and is
            placed.
        capacity: tokens per row, ``1..2**31 - 1``.
        strategy: ``"best_fit_decreasing"`` (fewest rows), ``"next_fit"`` (keeps the given order), or
            ``"concat_then_split"`` (pretraining only: cuts the stream of documents each ``capacity`` tokens).
        on_overflow: what happens to a document longer than ``capacity``: ``"error"``, ``"truncate"`` (keep
            its
            first ``capacity`` tokens), ``"split"`` (into fragments, each a document of its own from then on)
            or ``"drop"``. ``concat_then_split`` cuts every document where a row ends, so no document is too
            long there: the choice has no effect and its plan says ``"split"``.
        max_documents_per_row: most documents or fragments in a row, empty ones too; None for no limit.
        seed: None for the natural order of the strategy. An int shuffles the rows and exchanges documents of
            equal length: as many rows, filled as well, other neighbours.

    Returns:
        A plan whose conservation has been checked.

    Raises:
        DocumentTooLongError: a document does not fit and ``on_overflow`` is ``"error"``.
        PlanError: any other argument is not as described; the message names the first offender.

    Example:
        >>> plan = plan_rows([6, 4, 3, 3, 2, 2], 10)
        >>> [row.tolist() for row in plan.rows()]
        [[0, 1], [2, 3, 4, 5]]
    """
    documents = arguments.read_lengths(lengths)
    capacity = arguments.read_capacity(capacity)
    strategy = arguments.choice(strategy, "strategy", arguments.STRATEGIES)
    on_overflow = arguments.choice(on_overflow, "on_overflow", arguments.OVERFLOW_POLICIES)
    limit = arguments.read_limit(max_documents_per_row)
    seed = arguments.read_seed(seed)
    fragments: Fragments | None = None
    if strategy == "concat_then_split":
        on_overflow = "split"
        refuse_too_many_fragments(documents, capacity)
        fragments, row_offsets = concat_then_split(documents, capacity, limit)
        order = np.arange(len(fragments))
    else:
        fragments = _fragments(documents, capacity, on_overflow)
        pieces = piece_lengths(documents, fragments, capacity, on_overflow)
        dropped = dropped_documents(documents, capacity, on_overflow)
        order, row_offsets = _place(_PLACEMENTS[strategy], pieces, dropped, capacity, limit)
    if seed is not None:
        pieces = piece_lengths(documents, fragments, capacity, on_overflow)
        order, row_offsets = shuffled(order, row_offsets, pieces, seed)
    return Plan(
        capacity=capacity,
        strategy=strategy,
        on_overflow=on_overflow,
        lengths=documents,
        order=frozen(order),
        row_offsets=frozen(row_offsets),
        fragments=fragments,
        max_documents_per_row=limit,
        seed=seed,
    )


def _fragments(lengths: IntArray, capacity: int, on_overflow: str) -> Fragments | None:
    if on_overflow == "error":
        refuse_long_documents(lengths, capacity)
    if on_overflow != "split":
        return None
    refuse_too_many_fragments(lengths, capacity)
    return fragments_from_capacity(lengths, capacity)


def _place(
    placement: _Placement, pieces: IntArray, dropped: IntArray, capacity: int, limit: int | None
) -> tuple[IntArray, IntArray]:
    """Run a strategy on all pieces but the dropped ones."""
    if len(dropped) == 0:
        return placement(pieces, capacity, limit)
    kept = np.delete(np.arange(len(pieces)), dropped)
    order, row_offsets = placement(pieces[kept], capacity, limit)
    return kept[order], row_offsets
