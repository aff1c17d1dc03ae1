"""What each tensor of a batch says about documents, and what all of them come to.

Algorithm: each view is turned into two booleans for each slot: a document starts here; this is no padding. Numbers of
documents come first, then edges, lengths, numbers in a mask, a mask over pairs, and positions, which are made for
something else. Guarantee: a view that is malformed is left out here, for a check of its own names it; padding is what
any view says it is. Price: O(slots) for each view, O(S * S) for a mask over pairs.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hermetic.audit.batch.labels import Labels, labels_of
from hermetic.audit.batch.names import (
    EDGES,
    LENGTHS,
    MASK,
    NUMBERS,
    PADDED_EDGES,
    POSITIONS,
)
from hermetic.audit.batch.tensors import BatchTensors, Bools, Ints, Tensor
from hermetic.audit.finding import AuditFinding, Certainty
from hermetic.audit.reading import edges_by_sight, over_pairs, positions_of, rows_of_lists, starts_fit, stream_edges


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class View:
    """What one tensor says."""

    name: str
    starts: Bools
    """``[T]``: a document, or a run of padding, starts here."""
    real: Bools
    """``[T]``: not padding, as far as this tensor says."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchFacts:
    """A batch and its documents."""

    batch: BatchTensors
    views: tuple[View, ...]
    """Those that say where documents start, the most trusted one first."""
    starts: Bools
    """``[T]``: real slots at which a document starts, by the most trusted view; by the rows if there is none."""
    real: Bools
    """``[T]``: not padding by any view, a 2-D mask included."""
    labels: tuple[Labels, ...] = ()
    ends: Collection[int] = ()
    """Token ids that end a text, where the caller says."""
    heads: int | None = None
    head_dim: int | None = None

    @property
    def packed(self) -> bool:
        """Whether some row holds more than one document."""
        return bool(self.seams.any())

    @property
    def seams(self) -> Bools:
        """``[T]``: starts that another document comes before in the same row."""
        seams: Bools = self.starts & ~first_real(self.batch, self.real)
        return seams

    @property
    def lengths(self) -> Ints:
        """``[D]``: real tokens of each document."""
        number = np.cumsum(self.starts)[self.real]
        counts: Ints = np.bincount(number, minlength=1)[1:].astype(np.int64)
        return counts

    def finding(
        self,
        code: str,
        tensor: str,
        *,
        what: str,
        value: str,
        way_out: str,
        certainty: Certainty = "certain",
        versions: str | None = None,
    ) -> AuditFinding:
        """A finding about a tensor of this batch."""
        return AuditFinding(
            code=code,
            certainty=certainty,
            what=what,
            place=self.batch.place(tensor),
            value=value,
            way_out=way_out,
            versions=versions,
        )


def facts_of(
    batch: BatchTensors, *, ends: Collection[int] = (), heads: int | None = None, head_dim: int | None = None
) -> BatchFacts:
    """Every view of a batch, and the documents of the most trusted one."""
    views = tuple(_views(batch))
    masks = [view.real for view in views]
    mask = batch.flat(MASK)
    if mask is not None:
        masks.append(mask != 0)
    if batch.tail is not None:
        masks.append(np.arange(batch.num_slots) < batch.tail)
    real = reduce(np.logical_and, masks, np.ones(batch.num_slots, dtype=np.bool_))
    said = views[0].starts if views else batch.row_starts()
    return BatchFacts(
        batch=batch,
        views=views,
        starts=real & (said | after_padding(batch, real)),
        real=real,
        labels=labels_of(batch),
        ends=ends,
        heads=heads,
        head_dim=head_dim,
    )


def after_padding(batch: BatchTensors, real: Bools) -> Bools:
    """``[T]``: real slots that begin a row or follow padding, where a document starts whatever else is said."""
    before = np.concatenate([[False], real[:-1]])
    starts: Bools = real & (batch.row_starts() | ~before)
    return starts


def first_real(batch: BatchTensors, real: Bools) -> Bools:
    """``[T]``: the first real slot of each row."""
    count = np.cumsum(real)
    before_row = np.concatenate([[0], count])[batch.rows[:-1]]
    firsts: Bools = real & (count - before_row[batch.row_of_slots()] == 1)
    return firsts


def _views(batch: BatchTensors) -> Iterator[View]:
    for name in NUMBERS:
        numbers = batch.flat(name)
        if numbers is not None:
            yield _by_numbers(batch, name, numbers)
    for tensor in distinct_edges(batch):
        view = _by_edges(batch, tensor)
        if view is not None:
            yield view
    for name in LENGTHS:
        view = _by_lengths(batch, batch.tensors[name]) if name in batch.tensors else None
        if view is not None:
            yield view
    mask = batch.flat(MASK)
    if mask is not None and (mask > 1).any():
        yield _by_numbers(batch, MASK, mask)
    yield from _by_pairs(batch)
    yield from _by_positions(batch)


def is_padding(batch: BatchTensors, name: str, numbers: Ints) -> Bools:
    """Numbers of no document: those below 0, and 0 itself in a mask, and where no row starts with it.

    ``seq_idx`` counts from 0.
    """
    from_zero = name == "seq_idx" or (name != MASK and bool((numbers[batch.row_starts()] == 0).any()))
    padding: Bools = numbers < (0 if from_zero else 1)
    return padding


def _by_numbers(batch: BatchTensors, name: str, numbers: Ints) -> View:
    changes = np.concatenate([[True], np.diff(numbers) != 0])
    return View(name=name, starts=changes | batch.row_starts(), real=~is_padding(batch, name, numbers))


def distinct_edges(batch: BatchTensors) -> Iterator[Tensor]:
    """Edges over slots, those of queries and keys once if they are the same; real ones only if they have no room."""
    with_room = {real for padded, real in PADDED_EDGES.items() if padded in batch.tensors}
    seen: list[Ints] = []
    for name in (*PADDED_EDGES, *EDGES):
        tensor = batch.tensors.get(name)
        if tensor is None or name in with_room:
            continue
        edges = stream_edges(batch, tensor)
        if not any(np.array_equal(edges, other) for other in seen):
            seen.append(edges)
            yield tensor


def _by_edges(batch: BatchTensors, tensor: Tensor) -> View | None:
    edges = stream_edges(batch, tensor)
    if edges.size == 0 or (np.diff(edges) < 0).any() or edges[0] < 0 or edges[-1] > batch.num_slots:
        return None
    starts = batch.row_starts()
    starts[edges[edges < batch.num_slots]] = True
    real = np.arange(batch.num_slots) < edges[-1]
    room = batch.tensors.get(PADDED_EDGES.get(tensor.name, ""))
    if room is not None:
        lengths = np.diff(stream_edges(batch, room))
        if len(lengths) != len(edges) - 1 or (lengths < 0).any():
            return None
        real &= _within(edges, lengths, batch.num_slots)
    return View(name=tensor.name, starts=starts, real=real)


def _within(edges: Ints, lengths: Ints, num_slots: int) -> Bools:
    """``[T]``: slots that a document fills of its room."""
    if not lengths.size:
        return np.zeros(num_slots, dtype=np.bool_)
    index = np.searchsorted(edges, np.arange(num_slots), side="right") - 1
    inside = index < len(lengths)
    index = np.minimum(index, len(lengths) - 1)
    filled: Bools = inside & (np.arange(num_slots) - edges[index] < lengths[index])
    return filled


def _by_lengths(batch: BatchTensors, tensor: Tensor) -> View | None:
    rows = rows_of_lists(batch, tensor)
    starts, real = batch.row_starts(), np.zeros(batch.num_slots, dtype=np.bool_)
    if len(rows) != batch.num_rows:
        return None
    for lengths, low, high in zip(rows, batch.rows, batch.rows[1:], strict=False):
        edges = low + np.cumsum(lengths)
        if (lengths < 0).any() or (edges > high).any():
            return None
        starts[edges[edges < high]] = True
        real[low : low + lengths.sum()] = True
    return View(name=tensor.name, starts=starts, real=real)


def _by_pairs(batch: BatchTensors) -> Iterator[View]:
    pairs = over_pairs(batch)
    if pairs is not None:
        starts = np.zeros(batch.num_slots, dtype=np.bool_)
        for sees, low in zip(pairs, batch.rows, strict=False):
            starts[low + np.array(edges_by_sight(sees)[:-1], dtype=np.int64)] = True
        yield View(name=MASK, starts=starts, real=np.concatenate([sees.diagonal() for sees in pairs]))


def _by_positions(batch: BatchTensors) -> Iterator[View]:
    name = next((name for name in POSITIONS if name in batch.tensors), None)
    if name is None:
        return
    starts = starts_by_positions(batch, name)
    if starts is not None:
        yield View(name=name, starts=starts, real=np.ones(batch.num_slots, dtype=np.bool_))


def starts_by_positions(batch: BatchTensors, name: str) -> Bools | None:
    """``[T]``: where steps are not +1; of planes without one for text, where all are back at the row's first values."""
    rows = positions_of(batch, name)
    if rows is not None:
        return np.concatenate([np.concatenate([[True], np.diff(row) != 1]) for row in rows if len(row)])
    planes = batch.tensors[name].values
    if not starts_fit(batch, batch.tensors[name]):
        return None
    text = (planes == planes[:1]).all(axis=(0, 2))
    steps = np.concatenate([np.ones_like(planes[0][:, :1], dtype=np.bool_), np.diff(planes[0], axis=1) != 1], axis=1)
    starts: Bools = np.where(text[:, None], steps, (planes == planes[:, :, :1]).all(axis=0)).reshape(-1)
    return starts


def text_positions(facts: BatchFacts) -> tuple[str, Ints] | None:
    """The name and ``[T]`` values of positions that count text, where the batch has such."""
    name = next((name for name in POSITIONS if name in facts.batch.tensors), None)
    rows = None if name is None else positions_of(facts.batch, name)
    return None if name is None or rows is None else (name, np.concatenate(rows))


def listed(values: Collection[int], most: int = 8) -> str:
    """Numbers as a message shows them.

    Example:
        >>> listed([0, 3, 8])
        '0, 3, 8'
    """
    shown = [f"{value}" for value in list(values)[:most]]
    return ", ".join([*shown, *(["..."] if len(values) > most else [])])
