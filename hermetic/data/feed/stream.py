"""Documents in, packed batches out, without a plan and without a folder.

**Algorithm.** Every consumer, that is every worker of every rank, reads all documents and packs their lengths alike
(:mod:`hermetic.data.feed.maker`). A step of W ranks takes the next W x B rows; rank r takes the r-th B of them, and in
a rank the workers take the steps in turn. Only who takes a row gathers its tokens.
**Guarantee.** The ranks' batches of all steps, end to end, are the same sequence of rows for any number of ranks and
workers. A pass of a stream has a state, exact after each step, which another process can load; and a position without
ranks in it, from which any number of ranks goes on. What overflow and the ragged end cost stands in a ledger.
**Price.** Each consumer reads, and where the source does so tokenizes, *all* documents: W ranks with K workers do it
W x K times. One worker a rank is mostly enough, and more workers share no reading. Where tokenizing is dear, pack into
a folder once and use :class:`~hermetic.data.feed.dataset.PackedDataset`. Resuming reads again the part under the cursor
and each part that a waiting document is from. A step is W x B rows of tokens in memory.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch.utils.data import IterableDataset, get_worker_info

from hermetic.data.feed import states
from hermetic.data.feed.arguments import read_choice, read_rank, read_seed, share, whole_number
from hermetic.data.feed.ledger import StreamLedger
from hermetic.data.feed.maker import Entry, MakerSettings, RowMaker
from hermetic.data.feed.shards import Row
from hermetic.data.feed.source import DocumentSource
from hermetic.errors import FeedError
from hermetic.plan import OnlinePacker

Batch: TypeAlias = list[Row]

FORMAT: Final = "hermetic.stream_pass"
POSITION: Final = "hermetic.stream_position"
VERSION: Final = 1
_ROWS_BUFFERED: Final = 64
"""Rows that wait in the packer unless the caller says otherwise."""

_DEAL: Final = ("rank", "num_ranks", "rows_per_batch", "worker", "num_workers")
_NAMES: Final = frozenset({*_DEAL, "steps", "finished", "maker", "ledger"})


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPosition:
    """Where a stream stands, without ranks, batches or workers in it; for :meth:`PackedStream.start_at`."""

    maker: Mapping[str, Any]
    """State of a :class:`~hermetic.data.feed.maker.RowMaker`."""

    rows_behind: int = 0
    """Rows that were given after that state was taken."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data that JSON holds exactly."""
        return {"format": POSITION, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "StreamPosition":
        """Read what :meth:`state_dict` returned.

        Raises:
            FeedError: It is another thing.
        """
        states.check_format(state, POSITION, VERSION, {"maker", "rows_behind"})
        return cls(maker=state["maker"], rows_behind=state["rows_behind"])


class PackedStream(IterableDataset[Batch]):
    """Batches of rows, packed while they are read.

    An item is a whole batch: a list of rows as :class:`~hermetic.data.feed.dataset.PackedDataset` has them. So the
    loader is told ``batch_size=None``, and its ``collate_fn`` gets the list.

    Args:
        source: documents in parts, see :class:`~hermetic.data.feed.source.DocumentSource`.
        capacity: tokens per row.
        rows_per_batch: B, rows of one batch of one rank.
        ragged_end: what happens to the rows at the end of a pass that do not fill a step of all ranks: ``"drop"``
            leaves them out and counts them in the ledger; ``"short"`` deals them evenly as one smaller step, where
            ranks beyond the number of rows have one batch less: not for ranks that wait for each other.
        seed: of the order of parts and rows; None for the order of the source, with ``shuffle_rows=0``.
        max_buffered_tokens: tokens that wait for company, 64 rows of them by default.
        on_overflow: as in ``hermetic.OnlinePacker``.
        max_documents_per_row: as in ``hermetic.OnlinePacker``.
        shuffle_rows: rows that wait for a random turn.
        shuffle_parts: whether an epoch has its own order of parts.
        epochs: epochs of one pass, with no ragged end between them; None for a pass without end.
        rank: which rank takes from this stream.
        num_ranks: W.
        provenance: whether rows have ``part_numbers`` and ``document_numbers`` (0-based, in the part), ``[D]`` int64.

    Raises:
        FeedError: An argument is not as described. PlanError: those of the packer are not.

    Example:
        >>> from hermetic.data.feed.source import DocumentList
        >>> source = DocumentList([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
        >>> stream = PackedStream(source, capacity=8, rows_per_batch=1, ragged_end="short")
        >>> [row["seq_lengths"].tolist() for batch in stream for row in batch]
        [[3, 2]]
    """

    def __init__(
        self,
        source: DocumentSource,
        *,
        capacity: int,
        rows_per_batch: int,
        ragged_end: str,
        seed: int | None = 0,
        max_buffered_tokens: int | None = None,
        on_overflow: str = "error",
        max_documents_per_row: int | None = None,
        shuffle_rows: int = 256,
        shuffle_parts: bool = True,
        epochs: int | None = 1,
        rank: int = 0,
        num_ranks: int = 1,
        provenance: bool = False,
    ) -> None:
        super().__init__()
        buffered = _ROWS_BUFFERED * capacity if max_buffered_tokens is None else max_buffered_tokens
        packer = OnlinePacker(
            capacity,
            max_buffered_tokens=buffered,
            on_overflow=on_overflow,
            max_documents_per_row=max_documents_per_row,
        )
        self.source = source
        self.settings = MakerSettings(
            capacity=packer.capacity,
            max_buffered_tokens=packer.max_buffered_tokens,
            on_overflow=packer.on_overflow,
            max_documents_per_row=packer.max_documents_per_row,
            shuffle_rows=whole_number(shuffle_rows, "shuffle_rows", minimum=0),
            shuffle_parts=bool(shuffle_parts),
            seed=read_seed(seed),
            epochs=None if epochs is None else whole_number(epochs, "epochs", minimum=1),
        )
        if seed is None and shuffle_rows:
            raise FeedError(f"seed is None and shuffle_rows is {shuffle_rows}, expected a seed or shuffle_rows=0")
        self.rows_per_batch = whole_number(rows_per_batch, "rows_per_batch", minimum=1)
        self.num_ranks = whole_number(num_ranks, "num_ranks", minimum=1)
        self.rank = read_rank(rank, self.num_ranks)
        self.ragged_end = read_choice(ragged_end, "ragged_end", ("drop", "short"))
        self.provenance = provenance
        self._start: StreamPosition | None = None
        # in shared memory, so that workers that live through several passes see the next epoch
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        # and the process of the loader sees what they counted
        self._counts = torch.full((len(dataclasses.fields(StreamLedger)),), -1, dtype=torch.int64).share_memory_()

    @property
    def last_ledger(self) -> StreamLedger | None:
        """The ledger of the latest pass that was read to its end, here or by a worker; None before the first.

        All ranks and workers count the same, so it does not matter whose it is.
        """
        counts = self._counts.tolist()
        names = [field.name for field in dataclasses.fields(StreamLedger)]
        return None if counts[0] < 0 else StreamLedger(**dict(zip(names, counts, strict=True)))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass begin with ``epoch``; a pass that ends does not do so by itself.

        A stream that starts at a position inside a pass from this very epoch still does.
        """
        self._epoch.fill_(whole_number(epoch, "epoch", minimum=0))

    def start_at(self, position: StreamPosition) -> None:
        """Let the next pass go on from ``position``, which streams of any number of ranks may have reached.

        Raises:
            FeedError: It is a position in other rows.
        """
        RowMaker(self.source, self.settings, epoch=0).load_state_dict(position.maker)
        self._start = position
        self.set_epoch(position.maker["first_epoch"])

    def pass_after(self, passes: int) -> "PackedStream":
        """This stream as its pass comes after so many others, each of ``epochs`` epochs; itself is left as it is.

        Args:
            passes: 0 for the pass at which it stands, its position included.

        Returns:
            A stream over the same source, whose passes enter this one's ``last_ledger``.

        Raises:
            FeedError: It is none, or there is no other pass, for the first does not end.

        Example:
            >>> from hermetic.data.feed.source import DocumentList
            >>> source = DocumentList([{"input_ids": [number]} for number in range(5)])
            >>> stream = PackedStream(source, capacity=1, rows_per_batch=5, ragged_end="short")
            >>> [[int(row["input_ids"][0]) for row in next(iter(stream.pass_after(number)))] for number in range(2)]
            [[4, 2, 1, 0, 3], [4, 1, 3, 0, 2]]
        """
        number, epochs = whole_number(passes, "passes", minimum=0), self.settings.epochs
        if number and epochs is None:
            raise FeedError(
                f"a pass {number} after the first was asked of a stream with epochs=None, whose first does not end; "
                "expected 0, or a stream with a number of epochs"
            )
        later = copy.copy(self)
        later._epoch = (self._epoch + number * (epochs or 0)).share_memory_()  # noqa: SLF001 - a stream of this class
        later._start = None if number else self._start  # noqa: SLF001 - the same
        return later

    def __iter__(self) -> "StreamPass":
        worker = get_worker_info()
        epoch = int(self._epoch)
        maker = RowMaker(self.source, self.settings, epoch=epoch)
        if self._start is not None and self._start.maker["first_epoch"] == epoch:
            maker.load_state_dict(self._start.maker)
            _pass_over(maker, self._start.rows_behind)
        return StreamPass(
            self, maker, worker=0 if worker is None else worker.id, workers=1 if worker is None else worker.num_workers
        )


class StreamPass(Iterator[Batch]):
    """One consumer's batches of one pass."""

    def __init__(self, stream: PackedStream, maker: RowMaker, *, worker: int, workers: int) -> None:
        self._stream = stream
        self._maker = maker
        self._deal = {
            "rank": stream.rank,
            "num_ranks": stream.num_ranks,
            "rows_per_batch": stream.rows_per_batch,
            "worker": worker,
            "num_workers": workers,
        }
        self._steps = 0
        self._finished = False

    def __iter__(self) -> "StreamPass":
        return self

    def __next__(self) -> Batch:
        while not self._finished:
            batch = self._next_step()
            if batch:
                return batch
        raise StopIteration

    @property
    def ledger(self) -> StreamLedger:
        """What became of everything that was read for the steps so far."""
        return self._maker.ledger

    def state_dict(self) -> dict[str, Any]:
        """All that the next batches depend on, as plain data that JSON holds exactly."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self._deal,
            "steps": self._steps,
            "finished": self._finished,
            "maker": self._maker.state_dict(),
            "ledger": dataclasses.asdict(self.ledger),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the same consumer's pass stood.

        Raises:
            FeedError: It was of another rank or worker, or of other rows.
        """
        states.check_format(state, FORMAT, VERSION, set(_NAMES))
        for name, mine in self._deal.items():
            if state[name] != mine:
                raise FeedError(
                    f"the state is of a consumer with {name}={state[name]}, and this one has {mine}; to go on with "
                    "other ranks or workers, give stream_position_from_loaders the states of all ranks and the "
                    "result to start_at"
                )
        self._maker.load_state_dict(state["maker"])
        self._steps, self._finished = state["steps"], state["finished"]

    def _next_step(self) -> Batch:
        """Make the rows of one step; return this consumer's, none if the step is another worker's."""
        stream, maker = self._stream, self._maker
        wanted = stream.num_ranks * stream.rows_per_batch
        rows = _made(maker, wanted)
        whole = len(rows) == wanted
        left_out = not whole and stream.ragged_end == "drop"
        mine = range(0)
        if not left_out and self._steps % self._deal["num_workers"] == self._deal["worker"]:
            size = stream.rows_per_batch
            start = stream.rank * size
            mine = range(start, start + size) if whole else range(*share(len(rows), stream.rank, stream.num_ranks))
        maker.count_rows(rows, left_out=left_out)
        self._finished = not whole
        self._steps += bool(rows) and not left_out
        if self._finished:
            stream._counts.copy_(torch.tensor(dataclasses.astuple(maker.ledger)))  # noqa: SLF001 - two halves of one thing
        batch = []
        for number, row in enumerate(rows):
            if number in mine:
                batch.append(maker.take(row, provenance=stream.provenance))
            else:
                maker.drop(row)
        return batch


def _made(maker: RowMaker, wanted: int) -> list[list[Entry]]:
    rows: list[list[Entry]] = []
    while len(rows) < wanted and (row := maker.next_row()) is not None:
        rows.append(row)
    return rows


def _pass_over(maker: RowMaker, count: int) -> None:
    """Give rows that somebody had already."""
    for _ in range(count):
        row = _made(maker, 1)
        maker.count_rows(row, left_out=False)
        for entries in row:
            maker.drop(entries)


def stream_position_from_loaders(loaders: Sequence[Mapping[str, Any]]) -> StreamPosition:
    """Where a stream stands, from the states of all ranks' ``StatefulDataLoader``.

    Args:
        loaders: what ``state_dict`` of each rank's loader returned after the same step, in any order.

    Returns:
        A position for streams of any number of ranks, under loaders with any number of workers.

    Raises:
        FeedError: A rank is missing, or the ranks stood at different steps.
    """
    found = [_furthest(loader) for loader in loaders]
    if not found:
        raise FeedError("there is no state, expected that of every rank's loader")
    states.check_ranks([state["rank"] for state in found], found[0]["num_ranks"])
    steps = [state["steps"] + states.steps_since(loader) for state, loader in zip(found, loaders, strict=True)]
    if len(set(steps)) > 1:
        raise FeedError(f"the ranks stood after {steps} steps, expected one number; save all of them after one step")
    behind = states.steps_since(loaders[0]) * found[0]["num_ranks"] * found[0]["rows_per_batch"]
    return StreamPosition(maker=found[0]["maker"], rows_behind=behind)


def ledger_from_loader(loader: Mapping[str, Any]) -> StreamLedger:
    """What became of everything that was read for the steps so far, from the state of one rank's loader.

    It is the same on all ranks, and as old as the loader's last snapshot: of the end of a pass, which follows the last
    batch, a loader with workers takes none. That is in :attr:`PackedStream.last_ledger`.

    Raises:
        FeedError: It is not the state of a loader of a stream.
    """
    return StreamLedger(**_furthest(loader)["ledger"])


def _furthest(loader: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the worker that gave the latest batch; the others stand where they gave theirs."""
    passes = list(states.states_of(loader, FORMAT))
    if not passes:
        raise FeedError(
            "the state holds no pass of a stream; give what state_dict of a StatefulDataLoader with a PackedStream "
            "returned"
        )
    return max(passes, key=lambda state: (state["steps"], state["finished"]))
