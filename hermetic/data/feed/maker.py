"""Documents to rows, one row at a time, with a state that holds no tokens.

**Algorithm.** The parts of an epoch are read in a seeded order; the lengths of their documents go through an
:class:`~hermetic.plan.online.OnlinePacker`; the rows that it gives go through a buffer, of which each new row pushes
out a random one. At the end of an epoch both run empty before the next one begins.
**Guarantee.** The rows depend on the source and the settings and on nothing else. The state says which documents wait
where; who loads it reads their tokens again from the source and goes on exactly. Every token that was read is in a row,
waits, or is counted as lost.
**Price.** The tokens that wait: ``max_buffered_tokens`` and ``shuffle_rows`` rows, at 8 bytes a token. A state has
about 10 bytes of JSON for each waiting document. Loading it reads one time each part that a waiting document is from.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.data.feed.ledger import StreamLedger
from hermetic.data.feed.order import drawn, key_of, permutation
from hermetic.data.feed.shards import Row
from hermetic.data.feed.source import DocumentPart, DocumentSource, TokenArray
from hermetic.data.feed.states import check_format
from hermetic.errors import DocumentTooLongError, FeedError
from hermetic.plan.online import OnlinePacker, Piece
from hermetic.plan.online import Row as PackedEntries

Entry: TypeAlias = tuple[int, int, int]
"""Tokens of a row: id of the document, its first token in the row, how many."""

FORMAT: Final = "hermetic.row_maker"
VERSION: Final = 1
_PARTS_PURPOSE: Final = 1
_ROWS_PURPOSE: Final = 2
_PART_SHIFT: Final = 32
_STATE_NAMES: Final = frozenset(
    {"settings", "source", "first_epoch", "epoch", "place", "document", "drawn", "ended", "ledger", "packer"}
    | {"ready", "buffer"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MakerSettings:
    """All that the rows depend on besides the source."""

    capacity: int
    max_buffered_tokens: int
    on_overflow: str
    max_documents_per_row: int | None
    shuffle_rows: int
    shuffle_parts: bool
    seed: int | None
    epochs: int | None


@dataclass(kw_only=True, slots=True)
class _Held:
    """Tokens of a document that waits, and how many of them are still to be given."""

    tokens: TokenArray
    labels: TokenArray
    left: int = 0


class RowMaker:
    """Makes the rows of one pass over a source, epoch after epoch."""

    def __init__(self, source: DocumentSource, settings: MakerSettings, *, epoch: int) -> None:
        self._source = source
        self._settings = settings
        self._packer = OnlinePacker(
            settings.capacity,
            max_buffered_tokens=settings.max_buffered_tokens,
            on_overflow=settings.on_overflow,
            max_documents_per_row=settings.max_documents_per_row,
        )
        self._first_epoch = epoch
        self._given = StreamLedger()
        self._held: dict[int, _Held] = {}
        self._ready: deque[list[Entry]] = deque()
        self._buffer: list[list[Entry]] = []
        self._start_epoch(epoch)

    def next_row(self) -> list[Entry] | None:
        """The next row of the pass, as entries to :meth:`take` or :meth:`drop`; None when there is none."""
        while True:
            if self._ready:
                pushed_out = self._through_buffer(self._ready.popleft())
                if pushed_out is not None:
                    return pushed_out
            elif not self._ended:
                self._push_one()
            elif self._buffer:
                return self._from_buffer()
            elif self._settings.epochs is None or self._epoch + 1 < self._first_epoch + self._settings.epochs:
                self._start_epoch(self._epoch + 1)
            else:
                return None

    def take(self, entries: list[Entry], *, provenance: bool) -> Row:
        """The tokens of a row that was made; each row is taken or dropped once."""
        held = [(self._held[key], slice(start, start + length)) for key, start, length in entries]
        lengths = np.array([length for _, _, length in entries], np.int32)
        labels = np.concatenate([document.labels[part] for document, part in held])
        labels[np.cumsum(lengths) - lengths] = IGNORE_INDEX  # of a piece, too, nothing predicts the first token
        row: Row = {
            "input_ids": np.concatenate([document.tokens[part] for document, part in held]),
            "labels": labels,
            "seq_lengths": lengths,
        }
        if provenance:
            keys = np.array([key for key, _, _ in entries], np.int64)
            row |= {"part_numbers": keys >> _PART_SHIFT, "document_numbers": keys & (2**_PART_SHIFT - 1)}
        self.drop(entries)
        return row

    def drop(self, entries: list[Entry]) -> None:
        """Forget the tokens of a row that somebody else takes."""
        for key, _, length in entries:
            self._held[key].left -= length
            if self._held[key].left == 0:
                del self._held[key]

    def count_rows(self, rows: Iterable[list[Entry]], *, left_out: bool) -> None:
        """Enter rows that were made, for whichever rank, into the ledger."""
        tokens = [sum(length for _, _, length in entries) for entries in rows]
        kind = "left_out" if left_out else "placed"
        counted = {f"rows_{kind}": len(tokens), f"tokens_{kind}": sum(tokens)}
        changes = {name: getattr(self._given, name) + value for name, value in counted.items()}
        self._given = dataclasses.replace(self._given, **changes)

    @property
    def ledger(self) -> StreamLedger:
        """What became of everything that was read so far."""
        packer, waiting = self._packer, [*self._ready, *self._buffer]
        return dataclasses.replace(
            self._given,
            documents_read=packer.num_documents,
            documents_dropped=packer.num_dropped,
            documents_truncated=packer.num_truncated,
            documents_empty=packer.num_empty,
            tokens_read=packer.num_tokens,
            tokens_lost=packer.lost_tokens,
            tokens_waiting=packer.buffered_tokens + sum(length for row in waiting for _, _, length in row),
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next rows depend on, as plain data that JSON holds exactly. No row may be under way."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "settings": dataclasses.asdict(self._settings),
            "source": {"num_parts": self._source.num_parts, "fingerprint": self._source.fingerprint},
            "first_epoch": self._first_epoch,
            "epoch": self._epoch,
            "place": self._place,
            "document": self._document,
            "drawn": self._drawn,
            "ended": self._ended,
            "ledger": dataclasses.asdict(self._given),
            "packer": self._packer.state_dict(),
            "ready": [[list(entry) for entry in row] for row in self._ready],
            "buffer": [[list(entry) for entry in row] for row in self._buffer],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a maker of the same rows stood.

        Raises:
            FeedError: It made other rows, or the source gives other documents now.
            PlanError: The packer's part of the state is not one.
        """
        check_format(state, FORMAT, VERSION, set(_STATE_NAMES))
        mine = {
            "settings": dataclasses.asdict(self._settings),
            "source": {"num_parts": self._source.num_parts, "fingerprint": self._source.fingerprint},
        }
        for what, values in mine.items():
            for name, value in values.items():
                if state[what].get(name) != value:
                    raise FeedError(
                        f"the state is of a stream with {name}={state[what].get(name)!r}, and this one has {value!r}; "
                        "make the stream as it was made when the state was saved"
                    )
        self._first_epoch = state["first_epoch"]
        self._start_epoch(state["epoch"])
        self._place, self._document = state["place"], state["document"]
        self._drawn, self._ended = state["drawn"], state["ended"]
        self._given = StreamLedger(**state["ledger"])
        self._packer.load_state_dict(state["packer"])
        self._ready = deque([tuple(entry) for entry in row] for row in state["ready"])
        self._buffer = [[tuple(entry) for entry in row] for row in state["buffer"]]
        rows = [*self._ready, *self._buffer, _entries_in_packer(state["packer"])]
        self._held = self._read_again([entry for row in rows for entry in row])
        self.ledger.check()

    def _start_epoch(self, epoch: int) -> None:
        seed = self._settings.seed if self._settings.shuffle_parts else None
        self._epoch = epoch
        self._order = permutation(self._source.num_parts, seed, epoch, _PARTS_PURPOSE)
        self._key = key_of(self._settings.seed or 0, epoch, _ROWS_PURPOSE)
        self._place = self._document = self._drawn = 0
        self._part: DocumentPart | None = None
        self._ended = False

    def _through_buffer(self, row: list[Entry]) -> list[Entry] | None:
        """Put a row into the buffer; return the one that has to leave for it, if any."""
        if len(self._buffer) < self._settings.shuffle_rows:
            self._buffer.append(row)
            return None
        if not self._buffer:
            return row
        place = self._draw()
        row, self._buffer[place] = self._buffer[place], row
        return row

    def _from_buffer(self) -> list[Entry]:
        place = self._draw()
        self._buffer[place], self._buffer[-1] = self._buffer[-1], self._buffer[place]
        return self._buffer.pop()

    def _draw(self) -> int:
        self._drawn += 1
        return drawn(self._key, self._drawn, len(self._buffer))

    def _push_one(self) -> None:
        """Pack the next document of the epoch, or what still waits when there is none."""
        if self._place == self._source.num_parts:
            self._ready.extend(self._entries(row) for row in self._packer.flush())
            self._ended = True
            return
        if self._part is None:
            self._open_part()
        part = self._part
        if part is None or self._document == len(part.lengths):
            self._place, self._document, self._part = self._place + 1, 0, None
            return
        number, length = int(self._order[self._place]), int(part.lengths[self._document])
        key, start = number << _PART_SHIFT | self._document, int(self._starts[self._document])
        try:
            rows = self._packer.push(key, length)
        except DocumentTooLongError as error:
            raise DocumentTooLongError(f"document {self._document} of part {number}: {error}") from error
        self._document += 1
        if kept := self._kept(length):
            # a row of the epoch before, in a step that reaches into this one, may hold the same document
            self._held.setdefault(key, _held(part, start, kept)).left += kept
        self._ready.extend(self._entries(row) for row in rows)

    def _open_part(self) -> None:
        """Read the part under the cursor; its skipped records are counted when its first document is due."""
        self._part = self._source.read(int(self._order[self._place]))
        self._starts = np.cumsum(self._part.lengths, dtype=np.int64) - self._part.lengths
        if self._document > len(self._part.lengths):
            raise FeedError(
                f"part {self._order[self._place]} has {len(self._part.lengths)} documents now, and had at least "
                f"{self._document} when the state was saved; a source must give the same documents each time"
            )
        if self._document == 0:
            skipped = self._given.records_skipped + self._part.num_skipped
            self._given = dataclasses.replace(self._given, records_skipped=skipped)

    def _kept(self, length: int) -> int:
        """How many tokens of a document will be in rows."""
        if length <= self._settings.capacity or self._settings.on_overflow == "split":
            return length
        return self._settings.capacity if self._settings.on_overflow == "truncate" else 0

    def _entries(self, row: PackedEntries) -> list[Entry]:
        return [self._entry(entry) for entry in row]

    def _entry(self, entry: Any) -> Entry:
        if isinstance(entry, Piece):
            return int(entry.document), entry.start, entry.length
        return int(entry), 0, len(self._held[int(entry)].tokens)

    def _read_again(self, entries: list[Entry]) -> dict[int, _Held]:
        """The tokens of all documents that wait, part by part."""
        waiting: dict[int, list[Entry]] = {}
        for entry in entries:
            waiting.setdefault(entry[0] >> _PART_SHIFT, []).append(entry)
        held: dict[int, _Held] = {}
        for number in sorted(waiting):
            part = self._source.read(number)
            starts = np.cumsum(part.lengths, dtype=np.int64) - part.lengths
            for key, start, length in waiting[number]:
                document = key & (2**_PART_SHIFT - 1)
                found = int(part.lengths[document]) if document < len(part.lengths) else -1
                self._check_length(number, document, start + length, found)
                if key not in held:
                    held[key] = _held(part, int(starts[document]), self._kept(found))
                held[key].left += length
        return held

    def _check_length(self, part: int, document: int, expected: int, found: int) -> None:
        """A document that fits into a row waits whole, a longer one in pieces."""
        if found != expected and not found > max(expected, self._settings.capacity):
            raise FeedError(
                f"document {document} of part {part} has {found} tokens now, and had {expected} when the state was "
                "saved (-1: there is none); a source must give the same documents each time"
            )


def _held(part: DocumentPart, start: int, kept: int) -> _Held:
    """A copy, so that the part can go."""
    tokens = slice(start, start + kept)
    return _Held(tokens=part.tokens[tokens].copy(), labels=part.labels[tokens].copy())


def _entries_in_packer(state: Mapping[str, Any]) -> list[Entry]:
    """What waits in the packer's part of a state."""
    pairs = zip(state["entries"], state["lengths"], strict=True)
    return [
        (entry["document"], entry["start"], entry["length"]) if isinstance(entry, Mapping) else (entry, 0, length)
        for entry, length in pairs
    ]
