"""A packer for streams: bounded memory, rows as soon as they are worth emitting, resumable at any document.

**Algorithm.** Documents wait in a buffer of at most ``max_buffered_tokens``. When the next one would not fit, the
buffer is planned best-fit-decreasing and its fullest rows are emitted until half of the buffer is free; what the other
rows hold waits on, so that a document that found no good company yet may still find it. A piece of exactly
``capacity`` tokens is a row of its own and never waits.

**Guarantee.** The buffer never holds more than ``max_buffered_tokens``. Every token that was pushed is in exactly one
emitted row, in the buffer, or counted in ``lost_tokens``. The rows depend on what was pushed and on nothing else, so a
packer that resumes from ``state_dict`` in another process emits the same ones. A stream that fits into the buffer is
packed exactly as ``plan_rows`` packs it; with a buffer of 10,000 documents of natural lengths it takes within 0.1 % as
many rows.

**Price.** Documents leave their order. Amortised O(1) per document and per token: each plan of the buffer pays for half
a buffer of new tokens. Whether ids are unique is the caller's affair, for remembering all of them has no bound.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from hermetic.errors import DocumentTooLongError, PlanError
from hermetic.plan import arguments
from hermetic.plan.arrays import IntArray
from hermetic.plan.overflow import OPTION
from hermetic.plan.rows import plan_rows

DocumentId: TypeAlias = int | str

FORMAT: Final = "hermetic.online_packer"
VERSION: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a document in a row: a fragment, or the head that ``"truncate"`` keeps.

    It is the tokens ``start .. start + length - 1`` of ``document``. A whole document stands in its row as its id.

    Example:
        Document ``"a"`` of 5 tokens at capacity 4 is ``Piece(document="a", start=0, length=4)`` and
        ``Piece(document="a", start=4, length=1)`` under ``"split"``, and the first of them under ``"truncate"``.
    """

    document: DocumentId
    start: int
    length: int


Entry: TypeAlias = DocumentId | Piece
Row: TypeAlias = list[Entry]


@dataclass(kw_only=True, slots=True)
class _Ledger:
    """What happened to everything that was pushed so far."""

    num_documents: int = 0
    num_tokens: int = 0
    num_rows: int = 0
    emitted_tokens: int = 0
    lost_tokens: int = 0
    num_dropped: int = 0
    num_truncated: int = 0
    num_empty: int = 0


class OnlinePacker:
    """Packs a stream of documents into rows, best-fit within a bounded buffer.

    Args:
        capacity: tokens per row, ``1..2**31 - 1``.
        max_buffered_tokens: most tokens that wait for company, at least ``capacity``. About 10,000 documents' worth is
            as good as seeing the whole stream.
        on_overflow: what happens to a document longer than ``capacity``: ``"error"`` refuses it, ``"truncate"`` keeps
            its first ``capacity`` tokens as a ``Piece``, ``"split"`` makes a ``Piece`` of every ``capacity`` tokens and
            one of the rest, ``"drop"`` leaves it out. What is cut off or left out is counted in ``lost_tokens``.
        max_documents_per_row: most documents or pieces in a row; None for no limit.

    Raises:
        PlanError: an argument is not as described.

    Example:
        >>> packer = OnlinePacker(10, max_buffered_tokens=20)
        >>> [packer.push(name, length) for name, length in [("a", 6), ("b", 4), ("c", 7)]]
        [[], [], []]
        >>> packer.push("d", 5)
        [['a', 'b']]
        >>> packer.flush()
        [['c'], ['d']]
    """

    def __init__(
        self,
        capacity: int,
        *,
        max_buffered_tokens: int,
        on_overflow: str = "error",
        max_documents_per_row: int | None = None,
    ) -> None:
        self.capacity = arguments.read_capacity(capacity)
        self.max_buffered_tokens = arguments.whole_number(max_buffered_tokens, "max_buffered_tokens", minimum=1)
        if self.max_buffered_tokens < self.capacity:
            raise PlanError(
                f"max_buffered_tokens is {self.max_buffered_tokens}, less than the capacity {self.capacity}; "
                "expected room for at least one row. About 10,000 documents' worth packs as well as a whole plan"
            )
        self.on_overflow = arguments.choice(on_overflow, "on_overflow", arguments.OVERFLOW_POLICIES)
        self.max_documents_per_row = arguments.read_limit(max_documents_per_row)
        self._entries: list[Entry] = []
        self._lengths: list[int] = []
        self._buffered_tokens = 0
        self._ledger = _Ledger()

    def push(self, document_id: DocumentId, length: int) -> list[Row]:
        """Take in one document; return the rows that it completes or pushes out, mostly none.

        Args:
            document_id: an int or a str that names it in the rows.
            length: its tokens. An empty document is counted and is in no row.

        Returns:
            Rows of ids (whole documents) and of ``Piece`` (parts of documents).

        Raises:
            DocumentTooLongError: it does not fit and ``on_overflow`` is ``"error"``; the packer is as it was before.
            PlanError: the id or the length is not as described; the packer is as it was before.
        """
        if type(document_id) is not str and type(document_id) is not int:
            document_id = _read_id(document_id)
        if type(length) is not int or length < 0:
            length = arguments.whole_number(length, f"the length of document {document_id!r}", minimum=0)
        rows: list[Row] = []
        if length == 0:
            self._ledger.num_empty += 1
        elif length > self.capacity:
            rows = self._overflow(document_id, length)
        else:
            rows = self._place(document_id, length)
        self._ledger.num_documents += 1
        self._ledger.num_tokens += length
        return rows

    def flush(self) -> list[Row]:
        """Return rows of all that still waits, best-fit, and leave the buffer empty."""
        return self._emit(down_to=0)

    @property
    def buffered_tokens(self) -> int:
        """Tokens that wait in the buffer, never more than ``max_buffered_tokens``."""
        return self._buffered_tokens

    @property
    def num_buffered(self) -> int:
        """Documents and pieces that wait in the buffer."""
        return len(self._entries)

    @property
    def num_documents(self) -> int:
        """Documents pushed so far, with those that were dropped or empty."""
        return self._ledger.num_documents

    @property
    def num_tokens(self) -> int:
        """Tokens pushed so far: emitted, buffered, or lost."""
        return self._ledger.num_tokens

    @property
    def num_rows(self) -> int:
        """Rows emitted so far."""
        return self._ledger.num_rows

    @property
    def emitted_tokens(self) -> int:
        """Tokens in the rows emitted so far."""
        return self._ledger.emitted_tokens

    @property
    def lost_tokens(self) -> int:
        """Tokens that are in no row and never will be: cut off by ``"truncate"`` or left out by ``"drop"``."""
        return self._ledger.lost_tokens

    @property
    def num_dropped(self) -> int:
        """Documents left out by ``"drop"``."""
        return self._ledger.num_dropped

    @property
    def num_truncated(self) -> int:
        """Documents that lost their tail to ``"truncate"``."""
        return self._ledger.num_truncated

    @property
    def num_empty(self) -> int:
        """Documents without a token, which are in no row."""
        return self._ledger.num_empty

    @property
    def utilization(self) -> float:
        """Tokens / (rows x capacity) of the rows emitted so far; 1.0 before the first."""
        return self.emitted_tokens / (self.num_rows * self.capacity) if self.num_rows else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next rows depend on, as plain data that JSON holds exactly.

        It grows with the buffer, and holds the documents that were pushed and not yet emitted.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            **self._settings(),
            "entries": [dataclasses.asdict(entry) if isinstance(entry, Piece) else entry for entry in self._entries],
            "lengths": list(self._lengths),
            "ledger": dataclasses.asdict(self._ledger),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the packer that returned ``state`` stood.

        Raises:
            PlanError: the state is not one of a packer with these arguments, is of another version, or does not add
                up; this packer is as it was before.
        """
        entries, lengths, ledger = _read_state(state, self._settings())
        _check_buffer(entries, lengths, self.capacity)
        buffered = sum(lengths)
        if buffered > self.max_buffered_tokens:
            _refuse(f"it buffers {buffered} tokens, more than max_buffered_tokens {self.max_buffered_tokens}")
        accounted = ledger.emitted_tokens + ledger.lost_tokens + buffered
        if ledger.num_tokens != accounted:
            _refuse(f"its emitted, lost and buffered tokens are {accounted}, but {ledger.num_tokens} were pushed")
        self._entries, self._lengths, self._ledger = entries, lengths, ledger
        self._buffered_tokens = buffered

    def _settings(self) -> dict[str, Any]:
        names = ("capacity", "max_buffered_tokens", "on_overflow", "max_documents_per_row")
        return {name: getattr(self, name) for name in names}

    def _overflow(self, document_id: DocumentId, length: int) -> list[Row]:
        """Apply the policy to a document that does not fit into a row."""
        if self.on_overflow == "split":
            return self._split(document_id, length)
        if self.on_overflow == "truncate":
            self._ledger.num_truncated += 1
            self._ledger.lost_tokens += length - self.capacity
            return self._place(Piece(document=document_id, start=0, length=self.capacity), self.capacity)
        if self.on_overflow == "drop":
            self._ledger.num_dropped += 1
            self._ledger.lost_tokens += length
            return []
        raise DocumentTooLongError(
            f"document {document_id!r} has {length} tokens and a row holds {self.capacity} "
            f"({length} > {self.capacity}). Raise the capacity, or choose what happens to it, by "
            f"{OPTION}: 'truncate', 'split' or 'drop'"
        )

    def _split(self, document_id: DocumentId, length: int) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, length, self.capacity):
            size = min(self.capacity, length - start)
            rows += self._place(Piece(document=document_id, start=start, length=size), size)
        return rows

    def _place(self, entry: Entry, length: int) -> list[Row]:
        """Buffer a piece of at least one token, after making room for it."""
        if length == self.capacity:
            self._ledger.num_rows += 1
            self._ledger.emitted_tokens += length
            return [[entry]]
        rows: list[Row] = []
        if self._buffered_tokens + length > self.max_buffered_tokens:
            rows = self._emit(down_to=min(self.max_buffered_tokens // 2, self.max_buffered_tokens - length))
        self._entries.append(entry)
        self._lengths.append(length)
        self._buffered_tokens += length
        return rows

    def _emit(self, *, down_to: int) -> list[Row]:
        """Plan the buffer; take out its fullest rows until at most ``down_to`` tokens are left."""
        lengths = np.array(self._lengths, np.int64)
        plan = plan_rows(lengths, self.capacity, max_documents_per_row=self.max_documents_per_row)
        emitted, buffered = _fullest_rows(lengths[plan.order], plan.row_offsets, down_to)
        edges, order = plan.row_offsets.tolist(), plan.order.tolist()
        rows = [[self._entries[place] for place in order[edges[row] : edges[row + 1]]] for row in emitted]
        waits = np.ones(len(lengths), np.bool_)
        for row in emitted:
            waits[plan.order[edges[row] : edges[row + 1]]] = False
        kept = np.flatnonzero(waits)
        self._entries = [self._entries[place] for place in kept.tolist()]
        self._lengths = lengths[kept].tolist()
        self._ledger.num_rows += len(rows)
        self._ledger.emitted_tokens += self._buffered_tokens - buffered
        self._buffered_tokens = buffered
        return rows


def _fullest_rows(placed_lengths: IntArray, row_offsets: IntArray, down_to: int) -> tuple[list[int], int]:
    """Return as few rows as leave at most ``down_to`` tokens, the fullest first, and the tokens that are left."""
    if len(placed_lengths) == 0:
        return [], 0
    tokens = np.add.reduceat(placed_lengths, row_offsets[:-1])
    fullest = np.argsort(-tokens, kind="stable")
    left = int(tokens.sum()) - np.cumsum(tokens[fullest])
    count = int(np.argmax(left <= down_to)) + 1
    return fullest[:count].tolist(), int(left[count - 1])


def _read_id(value: Any) -> DocumentId:
    """Return an id that JSON gives back as it was: a str, or an int that is no bool."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise PlanError(f"document id {value!r} is a {type(value).__name__}; expected an int or a str, which JSON can hold")


def _refuse(reason: str) -> NoReturn:
    raise PlanError(f"the state cannot be loaded: {reason}. Expected what state_dict returned")


def _read_state(state: Any, settings: dict[str, Any]) -> tuple[list[Entry], list[int], _Ledger]:
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        _refuse("it is not the state of an OnlinePacker")
    if state.get("version") != VERSION:
        _refuse(f"it is of version {state.get('version')!r}, and this release of hermetic reads version {VERSION}")
    expected = {"format", "version", "entries", "lengths", "ledger", *settings}
    if set(state) != expected:
        _refuse(f"its keys differ from the expected ones in {sorted(map(str, set(state) ^ expected))}")
    for name, value in settings.items():
        if state[name] != value:
            _refuse(f"its packer had {name}={state[name]!r}, and this one has {value!r}")
    if not isinstance(state["entries"], list) or not isinstance(state["lengths"], list):
        _refuse("entries and lengths are not both lists")
    return [_read_entry(entry) for entry in state["entries"]], list(state["lengths"]), _read_ledger(state["ledger"])


def _read_entry(value: Any) -> Entry:
    if not isinstance(value, Mapping):
        return _read_id(value)
    if set(value) != {"document", "start", "length"}:
        _refuse(f"a piece has the keys {sorted(map(str, value))}, not document, start and length")
    start = arguments.whole_number(value["start"], "the start of a piece", minimum=0)
    length = arguments.whole_number(value["length"], "the length of a piece", minimum=1)
    return Piece(document=_read_id(value["document"]), start=start, length=length)


def _read_ledger(value: Any) -> _Ledger:
    names = {field.name for field in dataclasses.fields(_Ledger)}
    if not isinstance(value, Mapping) or set(value) != names:
        _refuse(f"its ledger does not count exactly {', '.join(sorted(names))}")
    return _Ledger(**{name: arguments.whole_number(count, name, minimum=0) for name, count in value.items()})


def _check_buffer(entries: list[Entry], lengths: list[int], capacity: int) -> None:
    if len(entries) != len(lengths):
        _refuse(f"it has {len(entries)} entries and {len(lengths)} lengths")
    for entry, length in zip(entries, lengths, strict=True):
        arguments.whole_number(length, f"the buffered length of {entry!r}", minimum=1)
        if length >= capacity:
            _refuse(f"it buffers {entry!r} with {length} tokens, and only less than {capacity} ever wait")
        if isinstance(entry, Piece) and entry.length != length:
            _refuse(f"{entry!r} is buffered with {length} tokens")
