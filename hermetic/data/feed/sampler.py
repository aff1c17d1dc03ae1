"""Rows of a dataset in one global order, dealt to any number of ranks.

**Algorithm.** A step of W ranks with B rows each takes the next W x B rows of a
:class:`~hermetic.data.feed.order.RowOrder`; rank r takes the r-th B of them. A pass is the steps that begin in one
epoch.
**Guarantee.** The ranks' batches of all steps, end to end, are the same sequence of rows whatever W is, and so is what
is left after any step: a position in that sequence knows no ranks. Of the rows of an epoch none is given twice, and
none is left out but by ``ragged_end="drop"``, which counts them. At W ranks all give equally many batches.
**Price.** The permutation of an epoch, in the process of the loader; workers get row numbers only.

The last rows of an epoch rarely fill a step. What happens to them is ``ragged_end``:

    carry   the first rows of the next epoch fill the step, and that epoch goes on behind them; passes of different
            epochs may differ by one step
    drop    they are left out; ``num_left_out`` counts them
    short   they are dealt evenly as one smaller step; fewer rows than ranks are an error
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Final

from hermetic.data.feed import states
from hermetic.data.feed.arguments import RAGGED_ENDS, read_choice, read_rank, read_seed, share, whole_number
from hermetic.data.feed.order import RowOrder
from hermetic.data.feed.position import RowPosition
from hermetic.errors import FeedError

FORMAT: Final = "hermetic.row_pass"
VERSION: Final = 1
_NAMES: Final = frozenset(
    {"position", "pass_epoch", "given", "taken", "rows_per_batch", "rank", "num_ranks", "ragged_end"}
)


class RowBatchSampler:
    """Batches of row numbers for one rank: the ``batch_sampler`` of a DataLoader.

    Args:
        rows: the number of rows, or a dataset whose ``len`` it is.
        rows_per_batch: B, rows of one batch of one rank.
        seed: which global order; None for the natural one.
        rank: whose batches; None for those of all ranks in turn, for a loader that deals them out itself, as
            accelerate's does.
        num_ranks: W.
        ragged_end: ``"carry"``, ``"drop"`` or ``"short"``, see the module.

    A pass that ran to its end moves the sampler to the next epoch; one that was left in the middle starts over.
    ``set_epoch`` chooses another epoch and leaves a sampler that is in this epoch where it is.

    Raises:
        FeedError: An argument is not as described, or there are fewer rows than one step takes and ``ragged_end``
            is not ``"short"``.

    Example:
        >>> ranks = [RowBatchSampler(10, rows_per_batch=2, seed=None, rank=rank, num_ranks=2) for rank in (0, 1)]
        >>> [list(sampler) for sampler in ranks]
        [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
        >>> ranks[0].position
        RowPosition(num_rows=10, seed=None, epoch=1, position=2)
    """

    def __init__(
        self,
        rows: int | Sized,
        *,
        rows_per_batch: int,
        seed: int | None = 0,
        rank: int | None = 0,
        num_ranks: int = 1,
        ragged_end: str = "carry",
    ) -> None:
        number = len(rows) if isinstance(rows, Sized) else whole_number(rows, "the number of rows", minimum=1)
        self.order = RowOrder(number, read_seed(seed))
        self.rows_per_batch = whole_number(rows_per_batch, "rows_per_batch", minimum=1)
        self.num_ranks = whole_number(num_ranks, "num_ranks", minimum=1)
        self.rank = None if rank is None else read_rank(rank, self.num_ranks)
        self.ragged_end = read_choice(ragged_end, "ragged_end", RAGGED_ENDS)
        self._epoch = self._position = 0
        self._begun: tuple[int, int] | None = None  # where the latest pass began, for a loader reads on to its end
        if self.ragged_end != "short" and number < self.rows_per_step:
            raise FeedError(
                f"{number} rows are less than the {self.rows_per_step} of one step of {self.num_ranks} ranks with "
                f"{self.rows_per_batch} rows each; use fewer ranks or rows_per_batch, or ragged_end='short'"
            )

    @property
    def rows_per_step(self) -> int:
        """Rows that all ranks together take in one step: W x B."""
        return self.num_ranks * self.rows_per_batch

    @property
    def position(self) -> RowPosition:
        """Where the next pass begins."""
        return self._row_position(self._epoch, self._position)

    @property
    def num_steps(self) -> int:
        """Steps of the next pass, the same for all ranks."""
        return self._steps_from(self._position)

    @property
    def num_left_out(self) -> int:
        """Rows of the epoch that ``"drop"`` leaves out at the end of the next pass, over all ranks."""
        return (self.order.num_rows - self._position) % self.rows_per_step if self.ragged_end == "drop" else 0

    def __len__(self) -> int:
        """Batches of the next pass: one for each step, or W for each without a rank."""
        return self.num_steps * (1 if self.rank is not None else self.num_ranks)

    def __iter__(self) -> "RowPass":
        self._begun = self._epoch, self._position
        return RowPass(self)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of ``epoch``; nothing changes if it is already.

        Under ``"carry"`` a pass begins where the steps of the passes before it would have ended.
        """
        epoch = whole_number(epoch, "epoch", minimum=0)
        if epoch != self._epoch:
            behind = (self._epoch - epoch) * self.order.num_rows + self._position
            self._position = behind % self.rows_per_step if self.ragged_end == "carry" else 0
            self._epoch = epoch
            self._begun = None

    def position_after(self, num_batches: int) -> RowPosition:
        """Where all rows stand when each rank has used ``num_batches`` of the pass that was begun last.

        It is what to save beside a model that is trained from a plain DataLoader, whose workers read ahead.

        Raises:
            FeedError: The pass has fewer.
        """
        number = whole_number(num_batches, "num_batches", minimum=0)
        epoch, position = self._begun or (self._epoch, self._position)
        if number > self._steps_from(position):
            raise FeedError(f"num_batches is {number}, expected at most the {self._steps_from(position)} of the pass")
        return self._row_position(*self._after(epoch, position, number))

    def state_dict(self) -> dict[str, Any]:
        """Where the next pass begins; knows no ranks."""
        return self.position.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin where ``state`` says: of any sampler of these rows, whatever its ranks.

        Raises:
            FeedError: It is the position in other rows or another order.
        """
        position = RowPosition.from_state_dict(state)
        self._check_rows(position)
        self._epoch, self._position = position.epoch, position.position
        self._begun = None

    def _steps_from(self, position: int) -> int:
        left = self.order.num_rows - position
        return left // self.rows_per_step if self.ragged_end == "drop" else -(-left // self.rows_per_step)

    def _check_rows(self, position: RowPosition) -> None:
        for name, mine in (("num_rows", self.order.num_rows), ("seed", self.order.seed)):
            if getattr(position, name) != mine:
                raise FeedError(
                    f"the position was saved with {name}={getattr(position, name)}, and here it is {mine}: it is "
                    "another order of rows. Use the dataset and the seed that it was saved with"
                )

    def _row_position(self, epoch: int, position: int) -> RowPosition:
        return RowPosition(num_rows=self.order.num_rows, seed=self.order.seed, epoch=epoch, position=position)

    def _after(self, epoch: int, position: int, steps: int) -> tuple[int, int]:
        """Epoch and position after steps of a pass; past its last step stands the start of the next."""
        return _normalised(
            epoch, position + steps * self.rows_per_step, self.order.num_rows, self.rows_per_step, self.ragged_end
        )

    def _finish(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position


def _normalised(epoch: int, position: int, num_rows: int, rows_per_step: int, ragged_end: str) -> tuple[int, int]:
    """Position ``num_rows`` and beyond, or where no step fits any more, is in the next epoch."""
    left = num_rows - position
    if left > 0 and not (ragged_end == "drop" and left < rows_per_step):
        return epoch, position
    return epoch + 1, -left if ragged_end == "carry" else 0


class RowPass(Iterator[list[int]]):
    """One pass of a sampler; its state is exact after each batch, however far ahead of the training it is."""

    def __init__(self, sampler: RowBatchSampler) -> None:
        self._sampler = sampler
        self._pass_epoch = sampler._epoch  # noqa: SLF001 - two halves of one thing
        self._position = sampler._position  # noqa: SLF001
        self._epoch = self._pass_epoch
        self._given = 0  # batches of the current step, where all ranks' batches are given
        left = sampler.order.num_rows - self._position
        if sampler.ragged_end == "short" and 0 < left % sampler.rows_per_step < sampler.num_ranks:
            raise FeedError(
                f"the last step of the pass has {left % sampler.rows_per_step} rows for {sampler.num_ranks} ranks, "
                "expected one for each; use ragged_end='carry' or 'drop'"
            )

    def __iter__(self) -> "RowPass":
        return self

    def __next__(self) -> list[int]:
        if self._epoch != self._pass_epoch:
            raise StopIteration
        sampler = self._sampler
        rank = self._given if sampler.rank is None else sampler.rank
        rows = self._rows(rank)
        if sampler.rank is None and self._given + 1 < sampler.num_ranks:
            self._given += 1
        else:
            self._given = 0
            self._epoch, self._position = sampler._after(self._epoch, self._position, 1)  # noqa: SLF001
            if self._epoch != self._pass_epoch:
                sampler._finish(self._epoch, self._position)  # noqa: SLF001
        return rows

    def _rows(self, rank: int) -> list[int]:
        sampler = self._sampler
        size = sampler.rows_per_batch
        start, stop = rank * size, (rank + 1) * size
        left = sampler.order.num_rows - self._position
        if sampler.ragged_end == "short" and left < sampler.rows_per_step:
            start, stop = share(left, rank, sampler.num_ranks)
        rows: list[int] = sampler.order.take(self._epoch, self._position + start, stop - start).tolist()
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The position, and what tells that it was reached by all ranks alike."""
        sampler = self._sampler
        return {
            "format": FORMAT,
            "version": VERSION,
            "position": sampler._row_position(self._epoch, self._position).state_dict(),  # noqa: SLF001
            "pass_epoch": self._pass_epoch,
            "given": self._given,
            "taken": 0,
            "rows_per_batch": sampler.rows_per_batch,
            "rank": sampler.rank,
            "num_ranks": sampler.num_ranks,
            "ragged_end": sampler.ragged_end,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a pass stood.

        Raises:
            FeedError: It was a pass over other rows, or stood inside a step of other ranks.
        """
        states.check_format(state, FORMAT, VERSION, set(_NAMES))
        position = RowPosition.from_state_dict(state["position"])
        self._sampler._check_rows(position)  # noqa: SLF001
        if state["given"] and (self._sampler.rank is not None or state["num_ranks"] != self._sampler.num_ranks):
            raise FeedError(
                f"the state was saved after {state['given']} of {state['num_ranks']} batches of a step, which other "
                "ranks cannot take up; save it after a whole step"
            )
        self._pass_epoch, self._given = state["pass_epoch"], state["given"]
        self._epoch, self._position = position.epoch, position.position


class RowSampler(RowBatchSampler):
    """The same rows one by one: the ``sampler`` of a DataLoader whose ``batch_size`` is ``rows_per_batch``.

    Example:
        >>> list(RowSampler(4, rows_per_batch=1, seed=None, rank=1, num_ranks=2))
        [1, 3]
    """

    def __len__(self) -> int:
        """Rows of the next pass."""
        left = self.order.num_rows - self._position
        if self.ragged_end != "short":
            return super().__len__() * self.rows_per_batch
        if self.rank is None:
            return left
        full, rest = divmod(left, self.rows_per_step)
        start, stop = share(rest, self.rank, self.num_ranks)
        return full * self.rows_per_batch + stop - start

    def __iter__(self) -> "SingleRowPass":  # type: ignore[override]  # a sampler gives rows, a batch sampler lists
        return SingleRowPass(super().__iter__())


class SingleRowPass(Iterator[int]):
    """The rows of a pass one by one."""

    def __init__(self, batches: RowPass) -> None:
        self._batches = batches
        self._before = batches.state_dict()
        self._batch: list[int] = []
        self._taken = 0

    def __iter__(self) -> "SingleRowPass":
        return self

    def __next__(self) -> int:
        if self._taken == len(self._batch):
            before = self._batches.state_dict()
            self._batch, self._taken, self._before = next(self._batches), 0, before
        self._taken += 1
        return self._batch[self._taken - 1]

    def state_dict(self) -> dict[str, Any]:
        """The state of the pass before the current batch, and how many of its rows were taken."""
        if self._taken == len(self._batch):
            return self._batches.state_dict()
        return {**self._before, "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a pass stood, also inside a batch.

        Raises:
            FeedError: As :meth:`RowPass.load_state_dict`.
        """
        self._batches.load_state_dict(state)
        self._batch, self._taken = [], 0
        for _ in itertools.repeat(None, state["taken"]):
            next(self)


def row_position_from_loaders(loaders: Sequence[Mapping[str, Any]]) -> RowPosition:
    """Where all rows stand, from the states of all ranks' ``StatefulDataLoader`` over a sampler of this module.

    Args:
        loaders: what ``state_dict`` of each rank's loader returned after the same step, in any order.

    Returns:
        A position to give to samplers of any number of ranks, under loaders with any number of workers.

    Raises:
        FeedError: A rank is missing, the ranks stood at different steps, or a batch was taken up in part.
    """
    found = [_position_of(loader) for loader in loaders]
    if not found:
        raise FeedError("there is no state, expected that of every rank's loader")
    states.check_ranks([rank for rank, _, _ in found], found[0][1])
    if len({position for _, _, position in found}) > 1:
        raise FeedError(
            f"the ranks stand at {sorted({(p.epoch, p.position) for _, _, p in found})} (epoch, position), expected "
            "one position; save all ranks after the same step"
        )
    return found[0][2]


def _position_of(loader: Mapping[str, Any]) -> tuple[int, int, RowPosition]:
    """Rank (0 for all ranks at once), number of states that make it whole, and position."""
    passes = list(states.states_of(loader, FORMAT))
    if len(passes) != 1:
        raise FeedError(
            f"the state holds {len(passes)} passes of a row sampler, expected one; give what state_dict of a "
            "StatefulDataLoader with a RowBatchSampler or RowSampler returned"
        )
    state = passes[0]
    states.check_format(state, FORMAT, VERSION, set(_NAMES))
    if state["given"] or state["taken"]:
        raise FeedError("the state was saved inside a step or a batch, expected between two steps; save it there")
    position, ranks = RowPosition.from_state_dict(state["position"]), state["num_ranks"]
    rows_per_step = ranks * state["rows_per_batch"]
    batches = states.steps_since(loader)
    epoch, place = position.epoch, position.position
    if batches:
        ranks_per_batch = 1 if state["rank"] is not None else ranks
        if batches % ranks_per_batch:
            raise FeedError("the state was saved inside a step, expected between two steps; save it there")
        place += batches // ranks_per_batch * rows_per_step
        epoch, place = _normalised(epoch, place, position.num_rows, rows_per_step, state["ragged_end"])
    moved = RowPosition(num_rows=position.num_rows, seed=position.seed, epoch=epoch, position=place)
    return (0, 1, moved) if state["rank"] is None else (state["rank"], ranks, moved)
