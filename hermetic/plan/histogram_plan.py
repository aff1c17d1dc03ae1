"""A plan from a histogram alone: how many rows, filled how, before any document is read.

**Guarantee.** As many rows as ``plan_rows`` makes of documents with these lengths, and the same patterns; its
constructor checks that the patterns hold every piece once and no row more than its limits.
**Price.** O(distinct lengths x log2(capacity)) for best fit, whatever the number of documents: 16 million take
about a millisecond.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.errors import ConservationError, DocumentTooLongError, PlanError
from hermetic.plan import arguments, bound, certificate
from hermetic.plan.arrays import IntArray, owned
from hermetic.plan.best_fit import best_fit_blocks
from hermetic.plan.histogram import Histogram
from hermetic.plan.optimal import optimal_blocks
from hermetic.plan.overflow import OPTION

Pattern: TypeAlias = tuple[tuple[int, int], ...]
Counts: TypeAlias = tuple[tuple[int, int], ...]

# Bounds compare whole rows with the volume, so twice the tokens must fit into 64 bits.
_MOST_TOKENS = 2**62

HISTOGRAM_STRATEGIES = ("best_fit_decreasing", "optimal")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class HistogramPlan:
    """Patterns of rows and how often each is used, made by ``plan_histogram``.

    Example:
        ``plan_histogram({6: 2, 4: 1, 3: 1}, 10)`` has the patterns ``((6, 1), (3, 1))`` and ``((6, 1), (4, 1))``
        in one row each.

    Raises:
        ConservationError: the patterns do not hold every piece once within the limits.
    """

    capacity: int
    """Tokens per row."""
    strategy: str
    """``"best_fit_decreasing"`` or ``"optimal"``."""
    on_overflow: str
    """What happened to documents longer than a row."""
    counts: Counts
    """The documents as given: (length, number), lengths increasing."""
    patterns: tuple[Pattern, ...]
    """Each pattern: (length, number in one row), lengths decreasing, as placed and rounded up to ``align``."""
    rows_per_pattern: tuple[int, ...]
    """How many rows have each pattern."""
    max_documents_per_row: int | None = None
    """Most documents or fragments in a row."""
    align: int = 1
    """Each document or fragment takes a multiple of this many tokens of its row."""
    prices: IntArray | None = None
    """The proof of ``lower_bound`` that ``"optimal"`` found, as in ``Plan.prices``."""

    def __post_init__(self) -> None:
        if len(self.patterns) != len(self.rows_per_pattern):
            raise PlanError(
                f"there are {len(self.patterns)} patterns and {len(self.rows_per_pattern)} numbers of rows; "
                "expected one of each"
            )
        if self.prices is not None:
            object.__setattr__(self, "prices", owned(self.prices, "prices"))
            certificate.check_prices(self._histogram(), self.prices, self.capacity // self.align)
        self._check_conservation()

    def _check_conservation(self) -> None:
        found: dict[int, int] = {}
        for pattern, rows in zip(self.patterns, self.rows_per_pattern, strict=True):
            for size, number in pattern:
                found[size] = found.get(size, 0) + number * rows
            taken, held = sum(size * number for size, number in pattern), sum(number for _, number in pattern)
            if taken > self.capacity or rows < 1 or held < 1 or held > (self.max_documents_per_row or held):
                raise ConservationError(
                    f"pattern {pattern} takes {taken} of {self.capacity} tokens with {held} documents in {rows} rows; "
                    f"expected at least one row and document, and at most {self.max_documents_per_row} documents"
                )
        expected = self._sizes()
        for size in sorted(found.keys() | expected.keys()):
            if found.get(size, 0) != expected.get(size, 0):
                raise ConservationError(
                    f"{found.get(size, 0)} pieces of {size} tokens are placed; expected {expected.get(size, 0)}"
                )

    def _sizes(self) -> dict[int, int]:
        return _sizes_from_pieces(_pieces(self.counts, self.capacity, self.on_overflow), self.align)

    def _histogram(self) -> Histogram:
        return _histogram(self._sizes(), self.align)

    @property
    def num_rows(self) -> int:
        """Rows of this plan."""
        return sum(self.rows_per_pattern)

    @property
    def num_documents(self) -> int:
        """Documents that were given in, with those that are empty and those that were dropped."""
        return sum(number for _, number in self.counts)

    @property
    def num_empty(self) -> int:
        """Documents without a token: they are counted here and placed in no row."""
        return sum(number for length, number in self.counts if length == 0)

    @property
    def placed_tokens(self) -> int:
        """Tokens that are in a row."""
        pieces = _pieces(self.counts, self.capacity, self.on_overflow)
        return sum(tokens * number for tokens, number in pieces)

    @property
    def lost_tokens(self) -> int:
        """Tokens that are in no row: cut off by ``"truncate"`` or left out by ``"drop"``."""
        return sum(length * number for length, number in self.counts) - self.placed_tokens

    @property
    def utilization(self) -> float:
        """Placed tokens / (rows x capacity), in 0..1; 1.0 for a plan without rows, which wastes nothing."""
        return self.placed_tokens / (self.num_rows * self.capacity) if self.num_rows else 1.0

    @property
    def lower_bound(self) -> int:
        """Rows that every plan of the same placed pieces needs, as in ``Plan.lower_bound``."""
        histogram, space = self._histogram(), self.capacity // self.align
        proven = 0 if self.prices is None else certificate.rows_from_prices(histogram, self.prices, space)
        return max(proven, bound.fewest_rows(histogram, space, self.max_documents_per_row))

    @property
    def certified(self) -> bool:
        """Whether this plan is proven optimal: no plan of the same placed pieces has fewer rows."""
        return self.num_rows == self.lower_bound

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HistogramPlan):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self) if field.name != "prices"]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.prices, other.prices)  # type: ignore[arg-type] # None is equal to None

    __hash__ = None  # type: ignore[assignment] # the prices are an array, which has no hash

    def __repr__(self) -> str:
        return (
            f"<HistogramPlan {self.strategy}: {self.num_documents} documents in {self.num_rows} rows of "
            f"{self.capacity} tokens, {len(self.patterns)} patterns, utilization {self.utilization:.4f}>"
        )


def plan_histogram(
    counts: Mapping[int, int] | npt.ArrayLike,
    capacity: int,
    *,
    strategy: str = "best_fit_decreasing",
    on_overflow: str = "error",
    max_documents_per_row: int | None = None,
    align: int = 1,
    time_limit: float | None = None,
) -> HistogramPlan:
    """Plan rows for documents of which only the lengths' histogram is known.

    Args:
        counts: ``counts[i]`` documents of ``i + 1`` tokens, as a sequence or an array; or a mapping from length
            to number of documents.
        capacity: tokens per row, ``1..2**31 - 1``.
        strategy: ``"best_fit_decreasing"`` or ``"optimal"``; the others depend on an order of the documents.
        on_overflow: as in ``plan_rows``.
        max_documents_per_row: as in ``plan_rows``.
        align: as in ``plan_rows``.
        time_limit: as in ``plan_rows``.

    Raises:
        DocumentTooLongError: a document does not fit and ``on_overflow`` is ``"error"``.
        PlanError: any other argument is not as described; the message names the first offender.

    Example:
        >>> plan = plan_histogram({6: 2, 4: 1, 3: 1}, 10)
        >>> plan.num_rows, plan.patterns
        (2, (((6, 1), (3, 1)), ((6, 1), (4, 1))))
    """
    documents = _read_counts(counts)
    capacity = arguments.read_capacity(capacity)
    strategy = arguments.choice(strategy, "strategy", HISTOGRAM_STRATEGIES)
    on_overflow = arguments.choice(on_overflow, "on_overflow", arguments.OVERFLOW_POLICIES)
    limit = arguments.read_limit(max_documents_per_row)
    align = arguments.read_align(align, capacity)
    seconds = arguments.read_time_limit(time_limit, strategy)
    arguments.refuse_limit_for_optimal(strategy, limit)
    if on_overflow == "error":
        _refuse_long(documents, capacity)
    histogram = _histogram(_sizes_from_pieces(_pieces(documents, capacity, on_overflow), align), align)
    if strategy == "optimal":
        blocks, prices = optimal_blocks(histogram, capacity // align, seconds)
    else:
        blocks, prices = best_fit_blocks(histogram, capacity // align, limit), None
    patterns = blocks.patterns()
    return HistogramPlan(
        capacity=capacity,
        strategy=strategy,
        on_overflow=on_overflow,
        counts=documents,
        patterns=tuple(tuple((size * align, number) for size, number in pattern) for pattern in patterns),
        rows_per_pattern=tuple(patterns.values()),
        max_documents_per_row=limit,
        align=align,
        prices=prices,
    )


def _read_counts(counts: Any) -> Counts:
    """Return (length, number of documents) for every length that occurs, lengths increasing."""
    given = counts.items() if isinstance(counts, Mapping) else enumerate(_elements(counts), start=1)
    pairs = [
        (
            arguments.whole_number(length, "a length of the histogram", minimum=0),
            arguments.whole_number(number, f"the number of documents of {length} tokens", minimum=0),
        )
        for length, number in given
    ]
    documents, tokens = sum(number for _, number in pairs), sum(length * number for length, number in pairs)
    if max(documents, tokens) > _MOST_TOKENS:
        raise PlanError(
            f"the histogram holds {documents} documents of {tokens} tokens; expected at most {_MOST_TOKENS}. "
            "Plan in several parts"
        )
    return tuple(sorted((length, number) for length, number in pairs if number))


def _elements(counts: Any) -> list[Any]:
    array = counts if isinstance(counts, list | tuple) else np.asarray(counts)
    if not isinstance(array, list | tuple) and array.ndim != 1:
        raise PlanError(
            f"counts of type {type(counts).__name__} has {array.ndim} dimensions; expected the number of documents "
            "of each length, in one, or a mapping from length to number"
        )
    return list(array)


def _refuse_long(documents: Counts, capacity: int) -> None:
    too_long = [(length, number) for length, number in documents if length > capacity]
    if too_long:
        raise DocumentTooLongError(
            f"{sum(number for _, number in too_long)} documents have more than {capacity} tokens, the longest "
            f"{too_long[-1][0]}. Raise the capacity, or choose what happens to them, by {OPTION}: "
            "'truncate', 'split' or 'drop'"
        )


def _pieces(documents: Counts, capacity: int, on_overflow: str) -> Iterable[tuple[int, int]]:
    """Tokens and number of the pieces that are placed."""
    for length, number in documents:
        if length <= capacity:
            yield length, number
        elif on_overflow == "truncate":
            yield capacity, number
        elif on_overflow == "split":
            yield capacity, number * (length // capacity)
            yield length % capacity, number


def _sizes_from_pieces(pieces: Iterable[tuple[int, int]], align: int) -> dict[int, int]:
    """Return the number of pieces of each size, in tokens rounded up to ``align``."""
    sizes: dict[int, int] = {}
    for tokens, number in pieces:
        if tokens:
            size = -(-tokens // align) * align
            sizes[size] = sizes.get(size, 0) + number
    return sizes


def _histogram(sizes: dict[int, int], align: int) -> Histogram:
    decreasing = sorted(sizes, reverse=True)
    return Histogram(
        sizes=np.array(decreasing, np.int64) // align, counts=np.array([sizes[size] for size in decreasing], np.int64)
    )
