"""The arguments of a real call, made again for other documents.

Algorithm: each slot of the new rows is given a slot of the real call to take after: the same document's, at the
same place. An argument with one value per token (token types, positions that restart, planes of positions) is
gathered there; a mask over pairs of tokens is gathered on both axes. What follows from where documents lie
(``cu_seq_lens_q``, document numbers, positions that run on) is computed anew in the caller's way of writing it.
Numbers, names and ``None`` are passed on.
Guarantee: an argument that is neither is refused by name, so that no call is probed that is not the caller's.
Price: one gather per argument and call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX, TAIL_DOCUMENT_ID
from hermetic.errors import ProbeError

IDS = ("document_ids", "seq_idx")
EDGES = ("cu_seq_lens_q", "cu_seq_lens_k")
LONGEST = ("max_length_q", "max_length_k")
BOUNDARY_ARGUMENTS = (*IDS, *EDGES, *LONGEST)
"""Arguments that say where documents start."""

LOSS_ONLY = (
    "fused_lm_head",
    "logits_to_keep",
    "num_logits_to_keep",
    "skip_logits",
    "return_dict",
    "num_items_in_batch",
)
"""Arguments that decide which logits come back and how the loss is counted, and change nothing else."""

_PADS = 2
"""Slots of padding in a rebuilt row, where the caller's rows are padded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Where a document, or the beginning of it, lies in the caller's rows."""

    row: int
    start: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Call:
    """A real call, and which of its documents are probed."""

    names: tuple[str, ...]
    """Of the positional arguments."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    required: frozenset[str]
    """Arguments that the model cannot do without."""
    ids_name: str
    """Of the argument that holds the token ids."""
    ids: torch.Tensor
    """``[B, S]``."""
    rows: tuple[tuple[Span, ...], ...]
    """The chosen documents, in the rows in which they are called."""
    padded: bool
    """The caller's mask blocks the slots of a padded tail or head."""
    positions_run_on: bool
    """Positions count through the row whatever its documents."""
    labels_are_ids: bool
    """Each label is the token's own id or -100, as in the Hugging Face convention."""
    labelled_firsts: bool
    """First tokens of documents keep their labels."""
    notes: tuple[str, ...] = field(default=())

    @property
    def named(self) -> dict[str, Any]:
        """All arguments by name."""
        return dict(zip(self.names, self.args, strict=True)) | self.kwargs

    @property
    def spans(self) -> tuple[Span, ...]:
        """The chosen documents in the order in which they are probed."""
        return tuple(span for row in self.rows for span in row)

    def flat_slots(self, span: Span) -> slice:
        """The slots of a document in the caller's rows, laid end to end."""
        start = span.row * self.ids.shape[1] + span.start
        return slice(start, start + span.length)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Slots:
    """The rows of a rebuilt call; every tensor is ``[B, S]`` on the host."""

    token: torch.Tensor
    """The token of the batch in each slot; -1 in padding."""
    source: torch.Tensor
    """The slot of the caller's rows that each slot takes after; 0 in padding."""
    origin: torch.Tensor
    """The first slot of the document that each slot takes after; 0 in padding."""
    place: torch.Tensor
    """Tokens before this one in its own document or run of padding."""
    document: torch.Tensor
    """Number of the document, over all rows; runs of padding are numbered after them."""

    @property
    def real(self) -> torch.Tensor:
        """Slots that hold a token."""
        return self.token >= 0

    @property
    def beyond(self) -> torch.Tensor:
        """How far a slot lies beyond the end of the document that it takes after, or into padding."""
        return self.place - (self.source - self.origin)

    @property
    def alone(self) -> bool:
        """There is one document and nothing beside it."""
        return bool((self.document == 0).all())

    @property
    def one_stream(self) -> bool:
        """There is one row and no padding in it."""
        return self.token.shape[0] == 1 and bool(self.real.all())

    @property
    def lengths(self) -> list[int]:
        """Of every run in the stream of all rows, padding included."""
        starts = torch.nonzero(self.place.flatten() == 0).flatten()
        ends = torch.tensor([self.place.numel()])
        return torch.cat([starts, ends]).diff().tolist()


def slots_for(call: Call, batch: PackedBatch) -> Slots:
    """Lay the documents of ``batch`` out in rows as the caller's are."""
    parts = [ids for ids in batch.unpack(batch.input_ids.cpu()) if len(ids)]
    as_chosen = len(parts) == len(call.spans)
    sizes = [len(row) for row in call.rows] if as_chosen else [len(parts)]
    spans = list(call.spans) if as_chosen else [_likeness(call, ids) for ids in parts]
    pads = _PADS if call.padded and len(parts) > 1 else 0
    width = max(sum(map(len, row)) for row in _cut(parts, sizes)) + pads
    rows: list[torch.Tensor] = []
    token, document = 0, 0
    for row_parts, row_spans in zip(_cut(parts, sizes), _cut(spans, sizes), strict=True):
        columns = []
        for ids, span in zip(row_parts, row_spans, strict=True):
            columns.append(_document(call, span, len(ids), token, document))
            token, document = token + len(ids), document + 1
        columns.append(_padding(width - sum(map(len, row_parts)), len(parts) + len(rows)))
        rows.append(torch.cat(columns, dim=1))
    fields = torch.stack(rows, dim=1)
    names = ("token", "origin", "source", "place", "document")
    return Slots(**dict(zip(names, fields, strict=True)))


def _cut(values: Sequence[Any], sizes: list[int]) -> list[list[Any]]:
    found, start = [], 0
    for size in sizes:
        found.append(list(values[start : start + size]))
        start += size
    return found


def _document(call: Call, span: Span, length: int, token: int, document: int) -> torch.Tensor:
    """``[5, length]``: the fields of ``Slots`` for one document."""
    origin, place = call.flat_slots(span).start, torch.arange(length)
    same = torch.ones_like(place)
    return torch.stack(
        [token + place, origin * same, origin + place.clamp(max=span.length - 1), place, document * same]
    )


def _padding(length: int, document: int) -> torch.Tensor:
    place = torch.arange(length)
    none = torch.zeros_like(place)
    return torch.stack([none - 1, none, none, place, none + document])


def _likeness(call: Call, ids: torch.Tensor) -> Span:
    """The chosen document that a document is: by its tokens, else by its length, else the first."""
    stream = call.ids.flatten()
    for span in call.spans:
        if span.length == len(ids) and torch.equal(stream[call.flat_slots(span)].cpu(), ids):
            return span
    return next((span for span in call.spans if span.length == len(ids)), call.spans[0])


def rebuilt(call: Call, batch: PackedBatch, slots: Slots, *, with_labels: bool) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of the call for the documents of ``batch``.

    Raises:
        ProbeError: an argument cannot be made for other documents.
    """
    left_out = {*LOSS_ONLY} if with_labels else {*LOSS_ONLY, "labels"}
    if slots.alone:
        left_out |= set(BOUNDARY_ARGUMENTS)
    left_out -= call.required
    args = [
        None if name in left_out else _argument(name, value, call, batch, slots)
        for name, value in zip(call.names, call.args, strict=True)
    ]
    kwargs = {
        name: _argument(name, value, call, batch, slots) for name, value in call.kwargs.items() if name not in left_out
    }
    return args, kwargs


def _argument(name: str, value: Any, call: Call, batch: PackedBatch, slots: Slots) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return _tensor(name, value, call, batch, slots).to(value)
    if name in LONGEST and value is not None:
        longest = max(slots.lengths)
        return torch.as_tensor(longest).to(value) if isinstance(value, torch.Tensor) else longest
    if name in {*EDGES, *IDS} and isinstance(value, list):
        return _tensor(name, torch.tensor(value), call, batch, slots).tolist()
    if isinstance(value, dict):
        return {key: _argument(f"{name}[{key!r}]", one, call, batch, slots) for key, one in value.items()}
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, torch.Tensor)):
        return value
    raise ProbeError(
        f"argument {name!r} is a {type(value).__name__}, which cannot be made for a few documents of the call; "
        "expected tensors with one value for each token, numbers, names or None. Leave it out of the call"
    )


def _tensor(name: str, value: torch.Tensor, call: Call, batch: PackedBatch, slots: Slots) -> torch.Tensor:
    derived = _derived(name, value, call, slots)
    if derived is not None:
        return derived
    if name == call.ids_name:
        return _shaped(_at_tokens(batch.input_ids, slots, _blank_id(call)), value)
    if name == "labels" and call.labels_are_ids:
        return _shaped(_labels(call, batch, slots), value)
    gathered = _gathered(name, value, call, slots)
    return _counted_on(gathered, slots) if name == "position_ids" else gathered


def _derived(name: str, value: torch.Tensor, call: Call, slots: Slots) -> torch.Tensor | None:
    """What follows from where documents lie; ``None`` for what is taken from the caller's tokens."""
    if name in EDGES:
        return _edges(slots)
    if name in IDS:
        return _shaped(_numbers(name, value, call, slots), value)
    if name == "attention_mask" and value.shape == call.ids.shape:
        return _mask(value, call, slots)
    if name == "position_ids" and call.positions_run_on:
        return torch.arange(slots.token.shape[1]).expand(*value.shape[:-2], *_rows_of(value, slots), -1)
    return None


def _shaped(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``[B, S]``, or one stream where the caller has one."""
    return rows.flatten() if like.ndim == 1 else rows


def _rows_of(value: torch.Tensor, slots: Slots) -> tuple[int, ...]:
    if value.ndim < 2:
        return ()
    return (1,) if value.shape[-2] == 1 else (slots.token.shape[0],)


def _at_tokens(stream: torch.Tensor, slots: Slots, blank: int) -> torch.Tensor:
    found: torch.Tensor = stream.cpu()[slots.token.clamp(min=0)].masked_fill(~slots.real, blank)
    return found


def _blank_id(call: Call) -> int:
    """What the caller fills rows up with: the id in the last slot; any other would do as well."""
    return int(call.ids.flatten()[-1])


def _labels(call: Call, batch: PackedBatch, slots: Slots) -> torch.Tensor:
    labels = _at_tokens(batch.labels, slots, IGNORE_INDEX)
    if not call.labelled_firsts:
        return labels
    firsts = slots.real & (slots.place == 0)
    return torch.where(firsts, _at_tokens(batch.input_ids, slots, IGNORE_INDEX), labels)


def _edges(slots: Slots) -> torch.Tensor:
    return torch.nn.functional.pad(torch.tensor(slots.lengths).cumsum(0), (1, 0))


def _numbers(name: str, value: torch.Tensor, call: Call, slots: Slots) -> torch.Tensor:
    """Documents numbered from where the caller starts, anew in each row if the caller does."""
    rows = value.reshape(call.ids.shape).cpu()
    first = int(rows[0, 0])
    anew = bool((rows[:, 0] == first).all())
    numbers = slots.document.masked_fill(~slots.real, -1)
    if anew:
        numbers = numbers - numbers[:, :1]
    numbers = numbers + max(first, 0)
    following = numbers.amax(dim=1, keepdim=True) + 1
    blank = torch.full_like(following, TAIL_DOCUMENT_ID) if name == "document_ids" else following
    return torch.where(slots.real, numbers, blank)


def _mask(value: torch.Tensor, call: Call, slots: Slots) -> torch.Tensor:
    """Ones, or document numbers where the caller's mask holds such; 0 in padding if it is padded."""
    numbered = bool((value > 1).any())
    mask = slots.document - slots.document[:, :1] + 1 if numbered else torch.ones_like(slots.token)
    return mask.masked_fill(~slots.real, 0) if call.padded else mask


def _counted_on(positions: torch.Tensor, slots: Slots) -> torch.Tensor:
    """Positions go on counting beyond the document they are taken from; those of padding are 0 and count too."""
    shared = positions.ndim == 1 or positions.shape[-2] == 1
    counted = positions + (slots.beyond[:1] if shared else slots.beyond)
    return counted[0] if positions.ndim == 1 else counted


def _gathered(name: str, value: torch.Tensor, call: Call, slots: Slots) -> torch.Tensor:
    """An argument with one value per token, or per pair of tokens, taken where each slot takes after."""
    rows, width = call.ids.shape
    shape, host = value.shape, value.detach().cpu()
    if is_over_pairs(value, call.ids):
        return _pairs(host, call, slots) if value.ndim > 2 else _pairs(host[None], call, slots)[0]
    blank = IGNORE_INDEX if name in {"labels", "shift_labels"} else 0
    if shape[:2] == (rows, width):
        return _blanked(host.flatten(0, 1)[slots.source], slots.real, blank)
    if value.ndim == 3 and shape[1:] == (rows, width):  # planes of positions
        return host.flatten(1)[:, slots.source].masked_fill(~slots.real, blank)
    if shape == (width,) and torch.equal(host, torch.arange(width).to(host)):  # numbers of the slots
        return torch.arange(slots.token.shape[1])
    if shape == (1, width) or (shape == (width,) and rows > 1):  # shared by all rows
        shared = _blanked(host.flatten()[slots.source[:1] % width], slots.real[:1], blank)
        return shared.view(*shape[:-1], -1)
    if shape[0] == rows * width:
        return _blanked(host[slots.source.flatten()], slots.real.flatten(), blank)
    raise ProbeError(
        f"argument {name!r} of shape {tuple(shape)} has no axis of {rows} x {width} tokens, so it cannot be made for a "
        "few documents of the call; expected one value for each token. Leave it out of the call, or probe the model "
        "with hermetic.probe"
    )


def is_over_pairs(value: torch.Tensor, ids: torch.Tensor) -> bool:
    """Whether a tensor has a value for every pair of tokens of a row: ``[B, ..., S, S]``, or ``[S, S]`` of one row."""
    rows, width = ids.shape
    if value.ndim < 2 or value.shape[-2:] != (width, width):
        return False
    return value.shape[0] in {1, rows} if value.ndim > 2 else rows == 1 < width


def _blanked(values: torch.Tensor, real: torch.Tensor, blank: int) -> torch.Tensor:
    return values.masked_fill(~real.view(*real.shape, *[1] * (values.ndim - real.ndim)), blank)


def _pairs(mask: torch.Tensor, call: Call, slots: Slots) -> torch.Tensor:
    """``[B, ..., S, S]``: pairs of tokens as the caller has them; nothing else attends, and pads to themselves."""
    width = call.ids.shape[1]
    allowed, blocked = mask.max(), mask.min()
    row, place = slots.source // width, slots.source % width
    index = row.clamp(max=mask.shape[0] - 1)  # documents of several of the caller's rows may lie in one row here
    values = mask.movedim((-2, -1), (1, 2))[index[:, :, None], place[:, :, None], place[:, None, :]]
    values = values.movedim((1, 2), (-2, -1))
    free = [1] * (mask.ndim - 3)

    def over_pairs(pairs: torch.Tensor) -> torch.Tensor:
        return pairs.view(pairs.shape[0], *free, *pairs.shape[1:])

    same = slots.document[:, :, None] == slots.document[:, None, :]
    real = slots.real[:, :, None] & slots.real[:, None, :]
    copies = (slots.origin[:, :, None] == slots.origin[:, None, :]) & ~same
    closed = (row[:, :, None] != row[:, None, :]) | copies | ~real
    if bool((mask == blocked)[..., torch.ones(width, width, dtype=torch.bool).triu(1)].all()):
        closed = closed | torch.ones_like(same).triu(1)
    itself = torch.eye(slots.token.shape[1], dtype=torch.bool) & ~real
    return torch.where(over_pairs(itself), allowed, torch.where(over_pairs(closed), blocked, values))
