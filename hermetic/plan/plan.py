"""The plan: which pieces of which documents go into which row, as plain data.

A ``Plan`` cannot exist without conservation: its constructor runs the whole check, so a plan that was made,
and one that was loaded, holds every document exactly once and counts every token that its overflow policy
costs. Its arrays are read-only, of 32-bit integers wherever the values fit. Views of single rows are O(row);
``utilization``, ``lower_bound`` and the losses are computed from the lengths whenever they are asked for,
O(documents), so that a plan cannot claim what it does not prove.
"""

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hermetic.errors import ConservationError, PlanError, PlanFileError
from hermetic.plan import arguments, balance, bound, certificate, conservation, overflow, plan_file
from hermetic.plan.arrays import IntArray, owned
from hermetic.plan.fragments import Fragments
from hermetic.plan.histogram import Histogram, histogram_from_sizes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Plan:
    """Rows of documents, made by ``plan_rows`` or read by ``Plan.load``.

    Example:
        ``plan_rows([5, 2, 3, 1], 4, on_overflow="split")`` cuts document 0 in two. The fragments
        (document, start, length) are (0, 0, 4), (0, 4, 1), (1, 0, 2), (2, 0, 3), (3, 0, 1), and the rows hold
        the fragments ``[0]``, ``[3, 1]`` and ``[2, 4]``.

    Raises:
        PlanError: a field is not what it should be.
        ConservationError: the rows do not hold every document exactly once within the limits.
    """

    capacity: int
    """Tokens per row."""
    strategy: str
    """How the rows were filled."""
    on_overflow: str
    """What happened to documents longer than a row; ``"split"`` for every ``concat_then_split`` plan."""
    lengths: IntArray
    """``[num_documents]``, the tokens of each document as it was given in."""
    order: IntArray
    """The placed documents, or fragments if there are any, row after row."""
    row_offsets: IntArray
    """``[num_rows + 1]``, where each row starts in ``order``."""
    fragments: Fragments | None = None
    """The table of fragments if documents may have been cut (``"split"``), else None."""
    max_documents_per_row: int | None = None
    """Most documents or fragments in a row."""
    seed: int | None = None
    """The seed of the exchange of neighbours, None for the natural order."""
    epoch: int = 0
    """Which of the exchanges of this seed."""
    align: int = 1
    """Each document or fragment takes a multiple of this many tokens of its row."""
    prices: IntArray | None = None
    """One for each distinct size of the placed pieces, from the largest down: the proof that strategy
    ``"optimal"`` found for ``lower_bound``, in parts of ``2**-40`` rows; None if it needed none."""

    def __post_init__(self) -> None:
        checked = {
            "capacity": arguments.read_capacity(self.capacity),
            "strategy": arguments.choice(self.strategy, "strategy", arguments.STRATEGIES),
            "on_overflow": arguments.choice(self.on_overflow, "on_overflow", arguments.OVERFLOW_POLICIES),
            "lengths": owned(self.lengths, "lengths"),
            "order": owned(self.order, "order"),
            "row_offsets": owned(self.row_offsets, "row_offsets"),
            "max_documents_per_row": arguments.read_limit(self.max_documents_per_row),
            "seed": arguments.read_seed(self.seed),
            "epoch": arguments.read_epoch(self.epoch, self.seed),
            "align": arguments.read_align(self.align, self.capacity),
            "prices": None if self.prices is None else owned(self.prices, "prices"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        arguments.check_lengths(self.lengths)
        self._check_cuts()
        self._check_conservation()
        if self.prices is not None:
            certificate.check_prices(self._piece_histogram(), self.prices, self.capacity // self.align)

    def _check_cuts(self) -> None:
        cuts = self.on_overflow == "split"
        if self.strategy == "concat_then_split" and not cuts:
            raise PlanError(
                f"a concat_then_split plan has on_overflow {self.on_overflow!r}; expected 'split', for it cuts"
            )
        if cuts != isinstance(self.fragments, Fragments):
            found = "None" if self.fragments is None else f"a {type(self.fragments).__name__}"
            expected = "Fragments" if cuts else "None"
            raise PlanError(f"fragments is {found}; with on_overflow {self.on_overflow!r} expected {expected}")

    def _check_conservation(self) -> None:
        if self.fragments is not None:
            conservation.check_fragments(self.fragments, self.lengths)
        tokens = self._piece_lengths()
        noun = "document" if self.fragments is None else "fragment"
        conservation.check_rows(self.row_offsets, len(self.order))
        conservation.check_pieces(
            self.order,
            self.row_offsets,
            tokens,
            capacity=self.capacity,
            align=self.align,
            dropped=self.dropped,
            noun=noun,
        )
        conservation.check_limit(self.row_offsets, self.max_documents_per_row)

    def _piece_lengths(self) -> IntArray:
        return overflow.piece_lengths(self.lengths, self.fragments, self.capacity, self.on_overflow)

    def _piece_histogram(self) -> Histogram:
        return histogram_from_sizes(overflow.piece_sizes(self._piece_lengths(), self.align))

    @property
    def num_rows(self) -> int:
        """Rows of this plan."""
        return len(self.row_offsets) - 1

    @property
    def num_documents(self) -> int:
        """Documents that were given in, with those that are empty and those that were dropped."""
        return len(self.lengths)

    @property
    def num_empty(self) -> int:
        """Documents without a token: they are counted here and placed in no row."""
        return len(self.lengths) - int(np.count_nonzero(self.lengths))

    @property
    def empty(self) -> IntArray:
        """The documents without a token, in increasing order."""
        return np.flatnonzero(self.lengths == 0)

    @property
    def placed_tokens(self) -> int:
        """Tokens that are in a row."""
        return arguments.exact_sum(self.lengths) - self.lost_tokens

    @property
    def placed_slots(self) -> int:
        """Tokens of the rows that the placed pieces take: each piece rounded up to a multiple of ``align``."""
        return self._piece_histogram().volume * self.align

    @property
    def utilization(self) -> float:
        """Placed tokens / (rows x capacity), in 0..1; 1.0 for a plan without rows, which wastes nothing.

        What ``align`` rounds up is no token and counts as empty.
        """
        if self.num_rows == 0:
            return 1.0
        return self.placed_tokens / (self.num_rows * self.capacity)

    @property
    def lower_bound(self) -> int:
        """Rows that every plan of the same placed pieces needs.

        The largest of the volume bound, Martello and Toth's bound L2, the rows that ``max_documents_per_row``
        demands and what ``prices`` prove. A ``concat_then_split`` plan may cut anywhere, so L2 says nothing
        there.
        """
        space, limit = self.capacity // self.align, self.max_documents_per_row
        if self.strategy == "concat_then_split":
            volume = arguments.exact_sum(overflow.piece_sizes(self.lengths, self.align))
            return bound.fewest_rows_of_stream(volume, self.num_documents - self.num_empty, space, limit)
        histogram = self._piece_histogram()
        proven = 0 if self.prices is None else certificate.rows_from_prices(histogram, self.prices, space)
        return max(proven, bound.fewest_rows(histogram, space, limit))

    @property
    def certified(self) -> bool:
        """Whether this plan is proven optimal: no plan of the same placed pieces has fewer rows."""
        return self.num_rows == self.lower_bound

    @property
    def dropped(self) -> IntArray:
        """The documents that are in no row, in increasing order; only policy ``"drop"`` leaves any out."""
        return overflow.dropped_documents(self.lengths, self.capacity, self.on_overflow)

    @property
    def lost_tokens(self) -> int:
        """Tokens that are in no row: cut off by ``"truncate"`` or left out by ``"drop"``."""
        return arguments.exact_sum(self._losses()[1])

    @property
    def lost_tokens_by_document(self) -> dict[int, int]:
        """The documents that lost tokens, each with how many.

        Example:
            Lengths ``[5, 2, 3, 1]`` at capacity 4: ``{0: 1}`` under ``"truncate"``, ``{0: 5}`` under
            ``"drop"``.
        """
        documents, tokens = self._losses()
        return dict(zip(documents.tolist(), tokens.tolist(), strict=True))

    def _losses(self) -> tuple[IntArray, IntArray]:
        if self.on_overflow == "truncate":
            documents = np.flatnonzero(self.lengths > self.capacity)
            return documents, self.lengths[documents] - self.capacity
        return self.dropped, self.lengths[self.dropped]

    def row(self, index: int) -> IntArray:
        """Return the documents of row ``index``, or its fragments if ``fragments`` is not None.

        Raises:
            PlanError: there is no such row.
        """
        number = arguments.whole_number(index, "row", minimum=0)
        if number >= self.num_rows:
            raise PlanError(f"row {number} does not exist; the plan has {self.num_rows} rows, counted from 0")
        return self.order[self.row_offsets[number] : self.row_offsets[number + 1]]

    def rows(self) -> Iterator[IntArray]:
        """Iterate over ``row(0)``, ``row(1)``, ..."""
        return (self.row(index) for index in range(self.num_rows))

    def row_pieces(self, index: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return what to copy into row ``index``, under every strategy and policy alike.

        Returns:
            ``document``, ``start`` and ``length``, ``[pieces of the row]`` each: the row is the tokens
            ``start .. start + length - 1`` of each document, one after the other.

        Example:
            Lengths ``[5, 2]`` at capacity 4 under ``"truncate"``: row 0 is ``([0], [0], [4])``.
        """
        return self._pieces(self.row(index))

    def pieces(self, first: int, stop: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return what to copy into the rows ``first`` to ``stop - 1``, as ``row_pieces`` does for one.

        Returns:
            ``document``, ``start`` and ``length``, ``[pieces of these rows]`` each, and ``[stop - first]``, how many
            pieces each row has.

        Raises:
            PlanError: there are no such rows.

        Example:
            Lengths ``[5, 2]`` at capacity 4 under ``"truncate"``: rows 0 to 1 are ``([0, 1], [0, 0], [4, 2], [1, 1])``.
        """
        if not 0 <= first <= stop <= self.num_rows:
            raise PlanError(f"rows {first} to {stop} do not exist; the plan has {self.num_rows} rows, counted from 0")
        chosen = self.order[self.row_offsets[first] : self.row_offsets[stop]]
        return *self._pieces(chosen), np.diff(self.row_offsets[first : stop + 1])

    def _pieces(self, chosen: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        if self.fragments is not None:
            table = self.fragments
            return table.document[chosen], table.start[chosen], table.length[chosen]
        return chosen, np.zeros_like(chosen), np.minimum(self.lengths[chosen], self.capacity)

    def row_slots(self, index: int) -> IntArray:
        """Return how many tokens of row ``index`` each of its pieces takes: its length rounded up to ``align``.

        Example:
            Lengths ``[5, 2]`` at capacity 8 and ``align=4``: row 0 holds document 0 alone and 8 slots, for
            document 1 takes 4.
        """
        return overflow.piece_sizes(self.row_pieces(index)[2], self.align) * self.align

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to ``path`` (an ``.npz`` file without pickles), all of it or nothing.

        Raises:
            PlanFileError: the file cannot be written; what stood at ``path`` before is still there.
        """
        arrays = {"lengths": self.lengths, "order": self.order, "row_offsets": self.row_offsets}
        if self.prices is not None:
            arrays["prices"] = self.prices
        if self.fragments is not None:
            for field in dataclasses.fields(Fragments):
                arrays[f"fragment_{field.name}"] = getattr(self.fragments, field.name)
        names = ("capacity", "strategy", "on_overflow", "max_documents_per_row", "seed", "epoch", "align")
        plan_file.write(path, {name: getattr(self, name) for name in names}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read a plan that ``save`` wrote, and check its conservation again.

        Raises:
            PlanFileError: the file is missing, damaged, of another version or not a plan.
            ConservationError: the file is readable, but its rows do not hold every document exactly once.
        """
        header, arrays = plan_file.read(path)
        columns = {name: arrays.pop(f"fragment_{name}", None) for name in ("document", "start", "length")}
        try:
            cuts = any(column is not None for column in columns.values())
            return cls(fragments=Fragments(**columns) if cuts else None, **header, **arrays)
        except ConservationError as error:
            raise ConservationError(f"{os.fspath(path)}: {error}") from error
        except (PlanError, TypeError) as error:
            raise PlanFileError(f"{os.fspath(path)} is damaged: {error}. Make the plan again") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment] # arrays are compared by value and have no hash

    def __repr__(self) -> str:
        return (
            f"<Plan {self.strategy}: {self.num_documents} documents in {self.num_rows} rows of "
            f"{self.capacity} tokens, utilization {self.utilization:.4f}, {self.lost_tokens} tokens lost>"
        )

    def assign(
        self,
        ranks: int,
        *,
        cost: tuple[float, float] = balance.DEFAULT_COST,
        rows_per_rank: int = 1,
        seed: int = 0,
    ) -> balance.Assignment:
        """Give every data-parallel rank the same number of rows and, step by step, nearly the same work.

        Args:
            ranks: data-parallel ranks.
            cost: ``(a, b)``: a row costs ``a * tokens + b * sum(length²)``, measured or estimated. The default is that
                of a dense transformer of width 4,096.
            rows_per_rank: rows of each rank in a step, micro-batches and accumulation together.
            seed: of the order of the steps.

        Returns:
            Rows of every rank and step, the rows that remain, and how even the work is.

        Raises:
            PlanError: an argument is not as described.
        """
        work = balance.work_of_rows(self._piece_lengths()[self.order], self.row_offsets, cost)
        return balance.assign_rows(work, ranks, rows_per_rank=rows_per_rank, seed=seed)
