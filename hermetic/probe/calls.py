"""Probe a model with the very arguments of a real call, such as those of a training batch.

Algorithm: the call is read for its token ids and for where its documents start: ``document_ids``, ``seq_idx`` or
``cu_seq_lens_q``; else positions that restart; else document numbers in ``attention_mask``; else the blocks of a
mask over pairs of tokens. A few documents, spread over the batch, are then called in rows of their own with
arguments of the same names and kinds (``hermetic.probe.rebuild``), and ``hermetic.probe`` does the rest.
Guarantee: what lets documents reach each other in the call, an all-ones mask or a cache say, is in the probed
call too. The model's weights, gradients, modes, hooks and random state are left alone, and DistributedDataParallel
and ``torch.compile`` around it are passed by: no gradient is sent to other ranks.
Price: that of a probe of at most six documents of the batch; one copy of the call's small tensors.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import NoBoundariesError, NotPackedError, ProbeError
from hermetic.probe.kept import with_all_labels
from hermetic.probe.padding import blank_tail, pairs_that_see, seen_by_themselves
from hermetic.probe.probe import probe
from hermetic.probe.rebuild import BOUNDARY_ARGUMENTS, Call, Slots, Span, is_over_pairs, rebuilt, slots_for
from hermetic.probe.report import LeakReport
from hermetic.probe.subject import Forward
from hermetic.probe.wrapped import unwrapped
from hermetic.seal.aligned import UNPACKED, Documents
from hermetic.seal.inputs import PackedRows, has_explicit_boundaries, packed_rows_from_call

MAX_DOCUMENTS = 6
"""Documents of a call that are probed: the cost grows with their number, what is seen hardly does."""

Rows = tuple[tuple[Span, ...], ...]
"""The documents of each row of a call."""


def probe_call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, seed: int = 0) -> LeakReport:
    """Probe a model on documents of a real call, called as they were.

    Args:
        model: the module that was called, possibly wrapped (DistributedDataParallel, torch.compile, PEFT).
        args: its positional arguments.
        kwargs: its named arguments. Token ids are ``[B, S]`` or one stream ``[T]``.
        seed: as in ``hermetic.probe``.

    Returns:
        The report of ``hermetic.probe``; its ``note`` says how boundaries were found, if they were not given.

    Raises:
        NotPackedError: each row holds one document, or none.
        NoBoundariesError: nothing in the call says where documents start.
        BoundariesError: what it says contradicts itself.
        ProbeError: an argument cannot be made for a few documents of the call, or there are no token ids.

    Example:
        >>> import hermetic, torch
        >>> from hermetic.probe import probe_call
        >>> class Tokenwise(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embedding, self.head = torch.nn.Embedding(16, 4), torch.nn.Linear(4, 16)
        ...     def forward(self, input_ids, position_ids=None):
        ...         return self.head(self.embedding(input_ids))
        >>> row = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]]), "position_ids": torch.tensor([[0, 1, 0, 1, 2]])}
        >>> report = probe_call(Tokenwise(), (), row)
        >>> report.verdict, report.lengths, report.note
        ('sealed', (2, 3), ('boundaries were inferred from position_ids',))
    """
    if not isinstance(model, nn.Module):
        raise ProbeError(
            f"cannot probe a call of a {type(model).__name__}; expected the torch module that is called, with its "
            "arguments. Give a function that takes a batch to hermetic.probe"
        )
    inner = unwrapped(model)
    call = read_call(inner, tuple(args), dict(kwargs))
    stream = call.ids.flatten().cpu()
    documents: list[dict[str, Any]] = [{"input_ids": stream[call.flat_slots(span)]} for span in call.spans]
    if call.labels_are_ids:
        labels = call.named["labels"].flatten().cpu()
        for document, span in zip(documents, call.spans, strict=True):
            document["labels"] = labels[call.flat_slots(span)]
    batch = collate(documents)
    rebuilt(call, batch, slots_for(call, batch), with_labels=True)  # an argument that cannot be made is refused here
    with _eager(inner), _no_autocast_cache():
        report = probe(_called_as(inner, call), documents=documents, seed=seed)
    return replace(report, note=(*report.note, *call.notes))


def read_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Find the token ids and the documents of a call, and choose some of them.

    Raises:
        ProbeError: as ``probe_call``.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    by_place = [p.name for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    names = (*by_place[: len(args)], *(f"argument {i}" for i in range(len(by_place), len(args))))
    ids_name, ids = _token_ids(model, dict(zip(names, args, strict=True)) | kwargs)
    kwargs = with_all_labels(kwargs, (ids.shape[0], ids.shape[1]))
    named = dict(zip(names, args, strict=True)) | kwargs
    found, notes = _documents(named, ids)
    rows = _chosen(found, named, ids)
    halved = sum(map(len, rows)) > sum(map(len, found))
    if halved:
        notes = (*notes, "the one document of the call was probed as two halves")
    padded = _is_padded(_unmasked(named.get("attention_mask"), ids))
    if not padded:
        rows = _of_equal_length(rows)
    return Call(
        names=names,
        args=args,
        kwargs=kwargs,
        required=frozenset(p.name for p in parameters if p.default is p.empty),
        ids_name=ids_name,
        ids=ids,
        rows=rows,
        padded=padded,
        positions_run_on=_run_on(named.get("position_ids"), ids, found[0][0].length if halved else ids.shape[1]),
        labels_are_ids=_are_ids(named.get("labels"), ids),
        labelled_firsts=_firsts_have_labels(named.get("labels"), ids, found),
        notes=notes,
    )


def _token_ids(model: nn.Module, named: dict[str, Any]) -> tuple[str, torch.Tensor]:
    """The argument that holds token ids, as ``[B, S]``."""
    candidates = ["input_ids"] if named.get("input_ids") is not None else list(named)[:1]
    for name in candidates:
        value = named[name]
        if isinstance(value, torch.Tensor) and not value.is_floating_point() and value.ndim in {1, 2}:
            if not value.numel():
                raise NotPackedError(f"not packed: {name} has shape {tuple(value.shape)}, so there are no documents")
            return name, value if value.ndim == 2 else value[None]
    raise ProbeError(
        f"{type(model).__name__} was called with {sorted(named)}, and none of them holds token ids that the probe "
        "could exchange; expected input_ids, or a first argument, of integers [B, S] or [T]"
    )


def _documents(named: dict[str, Any], ids: torch.Tensor) -> tuple[Rows, tuple[str, ...]]:
    """The documents of each row, and how they were found if nobody said where they start.

    Raises:
        NoBoundariesError: nothing says where documents start.
    """
    shape = (ids.shape[0], ids.shape[1])
    mask = named.get("attention_mask")
    unmasked = _unmasked(mask, ids)
    tail = torch.from_numpy(blank_tail(ids, named.get("position_ids"), named.get("labels")))
    real = ~tail if unmasked is None else unmasked & ~tail
    said = {name: named.get(name) for name in (*BOUNDARY_ARGUMENTS, "position_ids")}
    found = packed_rows_from_call(said | {"attention_mask": real}, shape)
    if has_explicit_boundaries(said):
        assert found is not None  # noqa: S101 - explicit boundaries always give rows
        return _spans(found), ()
    if found is not None:
        return _spans(found), ("boundaries were inferred from position_ids",)
    numbers, source = _numbers_in_mask(mask, ids)
    if numbers is None:
        _refuse_one_document_per_row(unmasked, ids, named)
    found = packed_rows_from_call({"document_ids": numbers, "attention_mask": real}, shape)
    assert found is not None  # noqa: S101 - explicit boundaries always give rows
    return _spans(found), (f"boundaries were inferred from {source}",)


def _spans(found: PackedRows) -> Rows:
    rows: list[list[Span]] = [[] for _ in range(found.num_rows)]
    slot = 0
    for length in found.lengths:
        row, start = divmod(slot, found.num_slots)
        if length and found.real[row, start]:
            rows[row].append(Span(row=row, start=start, length=length))
        slot += length
    return tuple(map(tuple, rows))


def _numbers_in_mask(mask: Any, ids: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Document numbers that a mask holds, or that its blocks show; ``None`` for any other mask."""
    if not isinstance(mask, torch.Tensor):
        return None, ""
    width = ids.shape[1]
    if mask.shape == ids.shape and bool((mask > 1).any()):
        return mask, "the numbers in attention_mask"
    if not is_over_pairs(mask, ids):
        return None, ""
    rows = mask.shape[0] if mask.ndim > 2 else 1
    allowed = pairs_that_see(mask).reshape(rows, -1, width, width)[:, 0]
    reaches_back = (allowed & torch.ones(width, width, dtype=torch.bool).tril(-1)).any(dim=-1)
    numbers = (~reaches_back).cumsum(dim=-1).expand(ids.shape[0], -1)
    several = bool((numbers[:, -1] > numbers[:, 0]).any())
    return (numbers, "the blocks of attention_mask") if several else (None, "")


def _refuse_one_document_per_row(unmasked: torch.Tensor | None, ids: torch.Tensor, named: dict[str, Any]) -> None:
    rows, width = ids.shape
    if _is_padded(unmasked):
        raise NotPackedError(
            f"not packed: each of {rows} rows holds one document, padded to {width} tokens, so none has a neighbour "
            "that could reach it"
        )
    raise NoBoundariesError(
        f"nothing says where documents start in {rows} row(s) of {width} tokens: the call has {sorted(named)}, no "
        f"position restarts, and no slot is padding; expected {', '.join(BOUNDARY_ARGUMENTS[:3])} or position_ids that "
        "restart. If each row is one document, there is nothing to probe"
    )


def _chosen(found: Rows, named: dict[str, Any], ids: torch.Tensor) -> Rows:
    """A few documents spread over the batch; of several rows, two.

    Raises:
        NotPackedError: no row holds two documents.
    """
    packed = [row for row in found if len(row) > 1]
    if len(found) == 1:
        return (_spread(found[0] if packed else _halves(found[0], named, ids), MAX_DOCUMENTS),)
    if not packed:
        raise NotPackedError(
            f"not packed: each of {len(found)} rows holds one document, so none has a neighbour that could reach it"
        )
    others = [row for row in found if row and row is not packed[0]]
    second = packed[-1] if len(packed) > 1 else next(iter(others), ())
    return tuple(_spread(row, MAX_DOCUMENTS // 2) for row in (packed[0], second) if row)


def _spread(row: Sequence[Span], count: int) -> tuple[Span, ...]:
    return tuple(row[:: -(-len(row) // count)])


def _halves(row: Sequence[Span], named: dict[str, Any], ids: torch.Tensor) -> tuple[Span, ...]:
    """A lone document of a stream with edges is cut in two: its batches are packed, if not this one."""
    has_edges = named.get("cu_seq_lens_q") is not None
    if not has_edges or not row or row[0].length < 2:
        raise NotPackedError(
            f"not packed: the one row of {ids.shape[1]} tokens holds {len(row)} document(s), so none has a neighbour "
            "that could reach it"
        )
    whole, middle = row[0], (row[0].length + 1) // 2
    second = Span(row=whole.row, start=whole.start + middle, length=whole.length - middle)
    return replace(whole, length=middle), second


def _of_equal_length(rows: Rows) -> Rows:
    """Rows cut to the shortest, at the ends of their longest documents, so that none needs padding."""
    shortest = min(sum(span.length for span in row) for row in rows)
    return tuple(_cut_to(row[: max(1, shortest)], shortest) for row in rows)


def _cut_to(row: tuple[Span, ...], total: int) -> tuple[Span, ...]:
    lengths = [span.length for span in row]
    while sum(lengths) > total:
        lengths[lengths.index(max(lengths))] -= 1
    return tuple(replace(span, length=length) for span, length in zip(row, lengths, strict=True))


def _unmasked(mask: Any, ids: torch.Tensor) -> torch.Tensor | None:
    """``[B, S]``: slots that the caller's mask takes for tokens; ``None`` where it does not say."""
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        return (mask != 0).cpu()
    seen = seen_by_themselves(mask, (ids.shape[0], ids.shape[1]))
    return None if seen is None else torch.from_numpy(seen)


def _is_padded(unmasked: torch.Tensor | None) -> bool:
    return unmasked is not None and not bool(unmasked.all())


def _run_on(positions: Any, ids: torch.Tensor, width: int) -> bool:
    """Whether positions count through the first ``width`` slots of each row, however many documents these hold.

    Those of a lone document do, and so they do in its halves, whatever follows in a tail.
    """
    if not isinstance(positions, torch.Tensor) or positions.shape[-1] != ids.shape[1]:
        return False
    return bool((positions[..., :width] == torch.arange(width, device=positions.device)).all())


def _are_ids(labels: Any, ids: torch.Tensor) -> bool:
    if not isinstance(labels, torch.Tensor) or labels.numel() != ids.numel():
        return False
    labels = labels.reshape(ids.shape)
    return bool(((labels == ids.to(labels.device)) | (labels == IGNORE_INDEX)).all())


def _firsts_have_labels(labels: Any, ids: torch.Tensor, found: Rows) -> bool:
    """Whether the first token of a document that follows another is a target, across the seam."""
    if not _are_ids(labels, ids):
        return False
    rows = labels.reshape(ids.shape).cpu()
    return any(int(rows[span.row, span.start]) != IGNORE_INDEX for row in found for span in row if span.start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """What the model made of a rebuilt call."""

    logits: torch.Tensor
    """``[T, V]``, the tokens of the probed documents in order."""
    loss: torch.Tensor | None
    """The model's own loss, when the call brings labels and the model returns it."""
    aux_loss: torch.Tensor | None
    """That of a router, which is a part of it."""
    whole: torch.Tensor | None
    """The model's own logits, from which the loss comes; ``logits`` is a selection of their lines."""
    lines: torch.Tensor | None
    """Which: ``[B * S]`` booleans; ``None`` for all."""


def _called_as(model: nn.Module, call: Call) -> Forward:
    """The model on other documents, called as in ``call``."""

    def forward(batch: PackedBatch, count: int | None = None) -> Any:
        slots = slots_for(call, batch)
        with _padding_known(slots):
            args, kwargs = rebuilt(call, batch, slots, with_labels=True)
            output = model(*args, **kwargs, **({} if count is None else {"num_items_in_batch": count}))
            logits = _logits_in(output, slots)
            whole = None if logits is None else getattr(output, "logits", None)
            if logits is None and "labels" in call.named:  # some fuse the loss with the head where they get labels
                args, kwargs = rebuilt(call, batch, slots, with_labels=False)
                logits = _logits_in(model(*args, **kwargs), slots)
        lines = None if slots.one_stream else slots.real.flatten()
        if logits is None:
            return output
        loss, aux_loss = getattr(output, "loss", None), getattr(output, "aux_loss", None)
        return Called(logits=logits, loss=loss, aux_loss=aux_loss, whole=whole, lines=lines)

    def counting(batch: PackedBatch, *, num_items_in_batch: int | None = None) -> Any:
        return forward(batch, num_items_in_batch)

    chosen = counting if "num_items_in_batch" in call.named else forward
    chosen.__qualname__ = type(model).__name__  # how the report calls it
    return chosen


def _logits_in(output: Any, slots: Slots) -> torch.Tensor | None:
    """``[T, V]`` of the real tokens, from the first of the output's tensors that has one line for each slot.

    Of one row without padding it is the output's own ``[1, T, V]``, from which the model's loss comes.
    """
    members = output if isinstance(output, (tuple, list)) else ()
    named = (getattr(output, name, None) for name in ("logits", "last_hidden_state"))
    for found in (output, *named, *members):
        if isinstance(found, torch.Tensor) and found.ndim in {2, 3}:
            stream = found.flatten(0, 1) if found.shape[:2] == slots.token.shape else found
            if stream.ndim == 2 and stream.shape[0] == slots.token.numel():
                return found if slots.one_stream else stream[slots.real.flatten().to(stream.device)]
    return None


@contextmanager
def _padding_known(slots: Slots) -> Iterator[None]:
    """Tell the instruments that watch embeddings which slots of a call are tokens."""
    if slots.one_stream:
        yield
        return
    rows, width = slots.token.shape
    token = UNPACKED.set(
        Documents(
            rows=rows,
            width=width,
            lengths=slots.real.sum(dim=1),
            stream=slots.token.clamp(min=0),
            batch_row=torch.arange(rows),
            real=slots.real,
        )
    )
    try:
        yield
    finally:
        UNPACKED.reset(token)


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """A weight that is cast while no gradient is wanted must not be found by the caller's forward, which wants one."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """Run what is compiled inside the model as it is written, for instruments hook into its modules."""
    compiled = (m._compiled_call_impl is not None or hasattr(m, "_orig_mod") for m in model.modules())  # noqa: SLF001 - how torch marks a module that was compiled in place
    if not any(compiled):
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        yield
