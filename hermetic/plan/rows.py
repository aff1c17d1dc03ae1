"""``plan_rows``: lengths and a capacity in, a checked plan out."""

import numpy as np
import numpy.typing as npt

from hermetic.plan import arguments
from hermetic.plan.arrays import IntArray, frozen
from hermetic.plan.best_fit import best_fit_decreasing
from hermetic.plan.fragments import Fragments, fragment_lengths, fragments_from_lengths
from hermetic.plan.histogram import Int64Array, histogram_from_sizes, pieces_in_decreasing_order
from hermetic.plan.in_order import concat_then_split, next_fit
from hermetic.plan.optimal import optimal_blocks
from hermetic.plan.overflow import piece_lengths, piece_sizes, refuse_long_documents, refuse_too_many_fragments
from hermetic.plan.plan import Plan
from hermetic.plan.shuffle import shuffled


def plan_rows(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    strategy: str = "best_fit_decreasing",
    on_overflow: str = "error",
    max_documents_per_row: int | None = None,
    seed: int | None = None,
    epoch: int = 0,
    align: int = 1,
    time_limit: float | None = None,
) -> Plan:
    """Decide which documents share a row.

    Args:
        lengths: tokens of each document, ``[num_documents]``: integers in a sequence or in a NumPy, Arrow or
            torch array, which is read in place. Documents are named by their place in it. An empty document is
            counted (``Plan.num_empty``) and placed in no row.
        capacity: tokens per row, ``1..2**31 - 1``.
        strategy: ``"best_fit_decreasing"`` (close to the fewest rows, at the speed of memory), ``"optimal"`` (the
            fewest rows that ``time_limit`` allows to find, and a bound that tells how few are possible),
            ``"next_fit"`` (keeps the given order), or ``"concat_then_split"`` (pretraining only: cuts the stream
            of documents each ``capacity`` tokens).
        on_overflow: what happens to a document longer than ``capacity``: ``"error"``, ``"truncate"`` (keep its
            first ``capacity`` tokens), ``"split"`` (into fragments, each a document of its own from then on)
            or ``"drop"``. ``concat_then_split`` cuts every document where a row ends, so no document is too
            long there: the choice has no effect and its plan says ``"split"``.
        max_documents_per_row: most documents or fragments in a row, None for no limit; not for ``"optimal"``.
        seed: None for the natural order of the strategy, which for best fit sorts rows by length. An int shuffles
            the rows and exchanges documents of equal length: as many rows, filled as well, other neighbours.
        epoch: which of the shuffles of ``seed``: other neighbours in each epoch, at the same number of rows.
        align: each document takes a multiple of this many tokens of its row, for kernels that want it so (twice
            the context-parallel size, 128 for block masks). It must divide ``capacity``.
        time_limit: seconds that ``"optimal"`` may take, None for 60; for no other strategy.

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
    epoch = arguments.read_epoch(epoch, seed)
    align = arguments.read_align(align, capacity)
    seconds = arguments.read_time_limit(time_limit, strategy)
    arguments.refuse_limit_for_optimal(strategy, limit)
    prices: Int64Array | None = None
    fragments: Fragments | None = None
    if strategy == "concat_then_split":
        on_overflow = "split"
        refuse_too_many_fragments(documents, capacity)
        fragments, row_offsets = concat_then_split(documents, capacity, limit, align)
        order: IntArray = np.arange(len(fragments), dtype=np.int32)
        sizes = piece_sizes(fragments.length, align)
    else:
        tokens = _piece_lengths(documents, capacity, on_overflow)
        sizes = piece_sizes(tokens, align)
        order, row_offsets, prices = _placed(sizes, capacity // align, limit, strategy, seconds)
    if seed is not None:
        order, row_offsets = shuffled(order, row_offsets, sizes, seed, epoch)
    del sizes
    if on_overflow == "split" and fragments is None:  # only now, for until here their lengths sufficed
        fragments = fragments_from_lengths(documents, tokens)
    return Plan(
        capacity=capacity,
        strategy=strategy,
        on_overflow=on_overflow,
        lengths=documents,
        order=frozen(order),
        row_offsets=row_offsets,
        fragments=fragments,
        max_documents_per_row=limit,
        seed=seed,
        epoch=epoch,
        align=align,
        prices=prices,
    )


def _piece_lengths(lengths: IntArray, capacity: int, on_overflow: str) -> IntArray:
    if on_overflow == "error":
        refuse_long_documents(lengths, capacity)
    if on_overflow != "split":
        return piece_lengths(lengths, None, capacity, on_overflow)
    refuse_too_many_fragments(lengths, capacity)
    return fragment_lengths(lengths, capacity)


def _placed(
    sizes: IntArray, capacity: int, limit: int | None, strategy: str, seconds: float
) -> tuple[IntArray, IntArray, Int64Array | None]:
    """Return the order, the row offsets and the prices of a strategy that places whole pieces."""
    if strategy == "next_fit":
        return *next_fit(sizes, capacity, limit), None
    if strategy == "best_fit_decreasing":
        return *best_fit_decreasing(sizes, capacity, limit), None
    histogram = histogram_from_sizes(sizes)
    blocks, prices = optimal_blocks(histogram, capacity, seconds)
    return *blocks.written_out(pieces_in_decreasing_order(sizes, histogram)), prices
