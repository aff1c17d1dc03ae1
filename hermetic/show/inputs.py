"""A row of model inputs: which documents it holds, and what the readers of libraries take them to be.

Guarantee: the documents are those of the first source that can be read; a later source that tells other documents, or
cannot be read, is named in a note. Price: comparisons over the row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from hermetic.audit.batch.names import LABELS, LENGTHS, MASK, NUMBERS, POSITIONS, TOKENS
from hermetic.audit.batch.tensors import BatchTensors
from hermetic.audit.reading import (
    COLUMN,
    FLASH_ATTENTION,
    SDPA,
    STATE,
    VARLEN,
    Edges,
    Reading,
    edges_by_numbers,
    edges_by_sight,
    first_edges,
    over_pairs,
    readings,
    rows_of_lists,
    stream_edges,
)
from hermetic.batch import Boundaries
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import BoundariesError
from hermetic.show.masks import Ground, ReadAs
from hermetic.show.pattern import Bools, Cells, Intervals, Ints, Pattern
from hermetic.show.subject import PADDING, Row, Run, check_row

READERS: Final = {
    SDPA: ("transformers_mask", "transformers: sdpa, eager, flex"),
    FLASH_ATTENTION: ("transformers_flash", "transformers: flash attention"),
    VARLEN: ("edges", "Kernels that are told edges"),
    STATE: ("numbers", "Kernels that are told numbers"),
    COLUMN: ("column", "TRL's collator"),
}
"""What each reader is called in pictures."""

ALWAYS_DRAWN: Final = ("transformers_mask", "transformers_flash")
"""The others are drawn where they are wrong, or asked for."""

_NAMED: Final = 8
"""Lengths that a note names."""


def row_of_inputs(inputs: BatchTensors, row: int, tokenizer: Any) -> Row:
    """One row of a mapping or of a file.

    Raises:
        AuditError: there is no such row.
    """
    check_row(row, inputs.num_rows, f"{inputs.subject} has {inputs.shape}")
    ids, labels = (_slots(inputs, inputs.first(names), row) for names in (TOKENS, LABELS))
    edges, notes = _documents(inputs, row)
    mask = _slots(inputs, MASK, row) if inputs.fits(MASK) else None
    runs = _runs(edges, _padding(inputs, row, mask, edges[-1]))
    runs, tail_note = _without_blank_tail(runs, ids, labels)
    positions, position_note = _positions(inputs, row)
    return Row(
        subject=inputs.subject,
        row=row,
        num_rows=inputs.num_rows,
        runs=runs,
        positions=positions,
        ids=ids,
        labels=labels,
        inputs=inputs,
        tokenizer=tokenizer,
        notes=(*notes, *tail_note, *position_note),
    )


def readers_of(row: Row, ground: Ground) -> Iterator[ReadAs | str]:
    """What each library's reader makes of the row, or a note where it fails."""
    mask = _slots(row.inputs, MASK, row.row) if row.inputs.fits(MASK) else None
    for reading in readings(row.inputs):
        name, title = READERS[reading.name]
        if reading.documents is None:
            yield f"{title}: {reading.why}"
            continue
        pattern = _pattern(reading, row, ground, None if mask is None else mask == 0)
        yield ReadAs(name=name, title=title, says=f"It reads {reading.why}.", pattern=pattern)


def _pattern(reading: Reading, row: Row, ground: Ground, hidden: Bools | None) -> Pattern:
    pairs = over_pairs(row.inputs) if reading.name == SDPA else None
    if pairs is not None:
        return Cells(seen=pairs[row.row])
    assert reading.documents is not None  # noqa: S101 - its caller looked
    edges = reading.documents[row.row]
    return _inside(ground, edges, hidden if reading.name in {SDPA, FLASH_ATTENTION} else None)


def _inside(ground: Ground, edges: Edges, hidden: Bools | None) -> Intervals:
    """The rule inside of these edges; slots before the first and after the last see nothing."""
    known = edges or (0,)
    lengths = tuple(np.diff([0, *known, ground.num_slots]).tolist())
    whole = ground.cut(lengths, hidden)
    slot = np.arange(ground.num_slots)
    outside = (slot < known[0]) | (slot >= known[-1])
    return Intervals(first=whole.first, stop=np.where(outside, whole.first, whole.stop), hidden=hidden)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """One thing in a batch that tells documents."""

    name: str
    read: Callable[[], Edges | None]
    """``None`` where it tells nothing; raises BoundariesError where it cannot be read."""


def _documents(inputs: BatchTensors, row: int) -> tuple[Edges, tuple[str, ...]]:
    """Edges that begin at 0 and end at the row's end, and notes on what else is said."""
    width = int(np.diff(inputs.rows)[row])
    believed: tuple[str, Edges] | None = None
    notes = []
    for source in _sources(inputs, row):
        try:
            found = source.read()
        except BoundariesError as problem:
            notes.append(f"{source.name} cannot be read: {problem}")
            continue
        if found is None:
            continue
        edges = tuple(sorted({0, *found, width}))
        if believed is None:
            believed = source.name, edges
            notes.append(f"documents by {source.name}")
        elif edges != believed[1]:
            notes.append("; ".join(_lengths_in_words(*said) for said in ((source.name, edges), believed)))
    if believed is None:
        return (0, width), (*notes, "nothing says where documents start: the row is drawn as one")
    return believed[1], tuple(notes)


def _lengths_in_words(name: str, edges: Edges) -> str:
    lengths = np.diff(edges).tolist()
    more = f" and {len(lengths) - _NAMED:,} more" if len(lengths) > _NAMED else ""
    return f"{name}: lengths {', '.join(map(str, lengths[:_NAMED]))}{more}"


def _sources(inputs: BatchTensors, row: int) -> Iterator[_Source]:
    numbers, edges = inputs.first(NUMBERS), first_edges(inputs)
    if numbers is not None:
        yield _Source(name=numbers, read=lambda: edges_by_numbers(_slots(inputs, numbers, row)))
    if edges is not None:
        yield _Source(name=edges.name, read=lambda: _cut(stream_edges(inputs, edges), inputs, row))
    for name in LENGTHS:
        if name in inputs.tensors:
            yield _Source(name=name, read=partial(_added_up, inputs, name, row))
    yield _Source(name="positions that restart", read=lambda: _restarts(inputs, row))
    yield _Source(name=f"the numbers in {MASK}", read=lambda: _numbers_in_mask(inputs, row))
    yield _Source(name=f"the blocks of {MASK}", read=lambda: _blocks_of_mask(inputs, row))


def _added_up(inputs: BatchTensors, name: str, row: int) -> Edges | None:
    lists = rows_of_lists(inputs, inputs.tensors[name])
    return tuple(np.cumsum(lists[row]).tolist()) if row < len(lists) else None


def _cut(edges: Ints, inputs: BatchTensors, row: int) -> Edges:
    low, high = (int(edge) for edge in inputs.rows[row : row + 2])
    if (np.diff(edges) < 0).any() or edges[-1] > inputs.num_slots:
        raise BoundariesError(f"they fall or end beyond the {inputs.num_slots} slots of the batch")
    return tuple((edges[(edges >= low) & (edges <= high)] - low).tolist())


def _restarts(inputs: BatchTensors, row: int) -> Edges | None:
    planes = _planes(inputs, row)
    if planes is None:
        return None
    found = Boundaries.infer_from_position_ids(planes[:, None, :])
    return tuple(found.cu_seqlens.tolist()) if found.num_documents > 1 else None


def _numbers_in_mask(inputs: BatchTensors, row: int) -> Edges | None:
    mask = _slots(inputs, MASK, row) if inputs.fits(MASK) else None
    return edges_by_numbers(mask) if mask is not None and mask.max(initial=0) > 1 else None


def _blocks_of_mask(inputs: BatchTensors, row: int) -> Edges | None:
    pairs = over_pairs(inputs)
    edges = None if pairs is None else edges_by_sight(pairs[row])
    return edges if edges is not None and len(edges) > 2 else None


def _planes(inputs: BatchTensors, row: int) -> Ints | None:
    """``[A, T]`` positions of the row, whatever their planes mean."""
    name = next((name for name in POSITIONS if name in inputs.tensors), None)
    if name is None:
        return None
    if inputs.fits(name):
        slots = _slots(inputs, name, row)
        return None if slots is None else slots[None]
    values, width = inputs.tensors[name].values, int(np.diff(inputs.rows)[row])
    planes = values if values.ndim == 3 else values[None] if values.ndim == 2 else values[None, None]
    if planes.shape[-1] != width or planes.shape[-2] not in {1, inputs.num_rows}:
        return None
    return planes[:, min(row, planes.shape[-2] - 1)].astype(np.int64)


def _positions(inputs: BatchTensors, row: int) -> tuple[Ints, tuple[str, ...]]:
    planes = _planes(inputs, row)
    if planes is not None:
        return planes, ()
    width = int(np.diff(inputs.rows)[row])
    return np.arange(width)[None], ("no positions are given: a model counts through the row",)


def _padding(inputs: BatchTensors, row: int, mask: Ints | None, width: int) -> Bools:
    """``[T]``: slots that the batch itself says are in no document."""
    padding = np.zeros(width, dtype=np.bool_) if mask is None else mask == 0
    numbers = _slots(inputs, inputs.first(NUMBERS), row)
    return padding if numbers is None else padding | (numbers < 0)


def _runs(edges: Edges, padding: Bools) -> tuple[Run, ...]:
    """Documents cut where padding begins or ends, numbered from 0."""
    turns = (np.flatnonzero(np.diff(padding.astype(np.int8))) + 1).tolist()
    starts = sorted({*edges[:-1], *turns})
    runs, number = [], 0
    for start, stop in zip(starts, [*starts[1:], edges[-1]], strict=True):
        if padding[start]:
            runs.append(Run(number=PADDING, length=stop - start))
        else:
            runs.append(Run(number=number, length=stop - start))
            number += 1
    return tuple(runs)


def _without_blank_tail(
    runs: tuple[Run, ...], ids: Ints | None, labels: Ints | None
) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """The last documents as padding, where all that they hold is one id without a label."""
    if ids is None or labels is None or runs[-1].number is PADDING:
        return runs, ()
    blank = (ids == ids[-1]) & (labels == IGNORE_INDEX)
    kept, tail = list(runs), 0
    while len(kept) > 1 and blank[len(ids) - tail - kept[-1].length : len(ids) - tail].all():
        tail += kept.pop().length
    if not tail:
        return runs, ()
    note = f"the last {tail:,} slots hold the id {int(ids[-1])} alone, without a label: drawn as padding"
    return (*kept, Run(number=PADDING, length=tail)), (note,)


def _slots(inputs: BatchTensors, name: str | None, row: int) -> Any:
    """``[T]`` of the row, or ``None``."""
    flat = None if name is None else inputs.flat(name)
    return None if flat is None else flat[inputs.rows[row] : inputs.rows[row + 1]].astype(np.int64)
