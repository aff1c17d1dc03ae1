"""What each backend would take the documents of a batch to be.

The same tensors mean different things to those who read them: transformers has two helpers that look for documents in
positions and do not agree, kernels are told edges or numbers, and a 2-D mask turns looking off. Here is one pure
function for each of these readings, on NumPy arrays, and :func:`readings`, which says them all for a batch.

Algorithm: comparisons of neighbours. Guarantee: the two helpers are those of the transformers that is installed, which
the tests ask; nothing is corrected, so a reading may leave tokens in no document, or split padding token by token.
Price: O(slots); of a mask over pairs, one look at its two diagonals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hermetic.audit.batch.names import EDGES, FLASH, LENGTHS, MASK, NUMBERS, PADDED_EDGES, POSITIONS
from hermetic.audit.batch.tensors import BatchTensors, Bools, Ints, Tensor, tensors_of

Edges = tuple[int, ...]
"""Where documents of a row start, and where the last one ends; tokens before the first edge and after the last are in
no document."""

SDPA: Final = "sdpa, eager, flex"
FLASH_ATTENTION: Final = "flash attention"
VARLEN: Final = "variable-length kernels"
STATE: Final = "kernels told by numbers"
COLUMN: Final = "TRL's collator"

_NO_WEIGHT: Final = -100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The documents that one reader sees."""

    name: str
    """Who reads: ``"sdpa, eager, flex"``, ``"flash attention"``, ``"variable-length kernels"``, ``"kernels told by
    numbers"`` or ``"TRL's collator"``."""
    documents: tuple[Edges, ...] | None
    """For each row the edges of its documents; ``None`` where this reader fails, or joins rows."""
    why: str
    """What was read, and what was not looked at."""


def edges_by_steps(positions: Ints) -> Edges:
    """The mask helper of transformers, for one row: a document starts wherever the position does not go up by one.

    Args:
        positions: ``[S]``.

    Example:
        >>> edges_by_steps(np.array([3, 4, 5, 0, 1, 2]))
        (0, 3, 6)
    """
    starts = np.flatnonzero(np.diff(positions) != 1) + 1
    return _edges([0, *starts.tolist()] if len(positions) else [], len(positions))


def edges_by_minimum(positions: Ints) -> Edges:
    """The flash helper of transformers, for one flat row: a document starts wherever the position is the smallest one.

    It is asked only if the positions do not simply count up; then the row is one document.

    Args:
        positions: ``[S]``.

    Example:
        >>> edges_by_minimum(np.array([3, 4, 5, 0, 1, 2]))
        (3, 6)
    """
    if len(positions) < 2 or (positions == positions.min() + np.arange(len(positions))).all():
        return _edges([0], len(positions))
    return _edges(np.flatnonzero(positions == positions.min()).tolist(), len(positions))


def edges_by_numbers(numbers: Ints) -> Edges:
    """Kernels that carry state while the number stays the same: a document is a run of equal numbers.

    Args:
        numbers: ``[S]``.

    Example:
        >>> edges_by_numbers(np.array([0, 0, 1, 1, 2]))
        (0, 2, 4, 5)
    """
    starts = np.flatnonzero(np.diff(numbers) != 0) + 1
    return _edges([0, *starts.tolist()] if len(numbers) else [], len(numbers))


def edges_by_booleans(mask: Bools) -> Edges:
    """A 2-D mask, for one row: whatever is not 0 is one document, numbers of documents included.

    Args:
        mask: ``[S]``, True where a token is.

    Example:
        >>> edges_by_booleans(np.array([1, 1, 1, 2, 2, 0]) != 0)
        (0, 5)
    """
    real = np.flatnonzero(mask)
    return (int(real[0]), int(real[-1]) + 1) if len(real) else ()


def edges_by_sight(sees: Bools) -> Edges:
    """A mask over pairs of tokens, for one row: a document starts at each token that does not see the one before it.

    Args:
        sees: ``[S, S]``, True where the query (row) may see the key (column).

    Example:
        >>> edges_by_sight(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]]) != 0)
        (0, 2, 3)
    """
    starts = np.flatnonzero(~sees.diagonal(-1)) + 1
    return _edges([0, *starts.tolist()] if len(sees) else [], len(sees))


def text_plane(planes: Ints) -> Ints | None:
    """The plane of multi-axis positions that transformers looks for documents in.

    Args:
        planes: ``[A, B, S]``.

    Returns:
        ``[B, S]``: of four planes the first, which counts text; of three, which are time, height and width, none.
    """
    return planes[0] if len(planes) == 4 else None


def _edges(starts: Sequence[int], end: int) -> Edges:
    return (*starts, end) if starts else ()


def readings(batch: Any) -> tuple[Reading, ...]:
    """What each backend would take the documents of a batch to be.

    transformers' two come first and are always there; the others only if the batch holds what they read.

    Args:
        batch: A ``PackedBatch`` or a mapping of tensors, arrays or lists, as for :func:`hermetic.audit.audit_batch`.

    Raises:
        AuditError: If it cannot be read at all.

    Example:
        >>> for reading in readings({"input_ids": [[5, 6, 7, 8]], "position_ids": [[2, 3, 0, 1]]}):
        ...     print(reading.name, reading.documents)
        sdpa, eager, flex ((0, 2, 4),)
        flash attention ((2, 4),)
    """
    tensors = tensors_of(batch)
    found = [_sdpa(tensors), _flash(tensors)]
    edges = first_edges(tensors)
    if edges is not None:
        found.append(_told_edges(VARLEN, tensors, edges, f"the edges of {edges.name}"))
    numbers = tensors.first(NUMBERS)
    if numbers is not None:
        rows = tuple(edges_by_numbers(row) for row in _split(tensors, numbers))
        found.append(Reading(name=STATE, documents=rows, why=f"runs of equal numbers in {numbers}"))
    lengths = next((tensors.tensors[name] for name in LENGTHS if name in tensors.tensors), None)
    if lengths is not None:
        rows = tuple(_summed(row) for row in rows_of_lists(tensors, lengths))
        found.append(Reading(name=COLUMN, documents=rows, why=f"the lengths of {lengths.name}"))
    return tuple(found)


def first_edges(batch: BatchTensors) -> Tensor | None:
    """The edges that kernels are handed: those that count slots, if there are such."""
    return next((batch.tensors[name] for name in (*PADDED_EDGES, *EDGES) if name in batch.tensors), None)


def rows_of_lists(batch: BatchTensors, tensor: Tensor) -> list[Ints]:
    """A list for each row, of a tensor with as many lists as the batch has rows; a flat one is of the only row."""
    if tensor.counts is not None:
        return [part.astype(np.int64) for part in np.split(tensor.values, np.cumsum(tensor.counts)[:-1])]
    if tensor.values.ndim == 1 and batch.num_rows == len(tensor.values) > 1:
        return [row.astype(np.int64) for row in tensor.values[:, None]]
    return [row.astype(np.int64) for row in np.atleast_2d(tensor.values)]


def stream_edges(batch: BatchTensors, tensor: Tensor) -> Ints:
    """Edges over the stream of all slots: flat ones as they are, those of each row moved to where the row starts."""
    if tensor.counts is None and tensor.values.ndim == 1:
        return tensor.values.astype(np.int64)
    rows = rows_of_lists(batch, tensor)
    if len(rows) != batch.num_rows:
        return rows[0] if len(rows) == 1 else np.concatenate(rows)
    return np.concatenate([row + start for row, start in zip(rows, batch.rows[:-1], strict=True)])


def _told_edges(name: str, batch: BatchTensors, tensor: Tensor, why: str) -> Reading:
    """Edges over the stream, cut where rows start; rows that share a document cannot be cut."""
    edges = np.unique(stream_edges(batch, tensor))
    joined = sorted(set(batch.rows[1:-1].tolist()) - set(edges.tolist()))
    if joined:
        row = int(np.searchsorted(batch.rows, joined[0]))
        return Reading(name=name, documents=None, why=f"{why}, in which a document runs on into row {row}")
    cut = (edges[(edges >= low) & (edges <= high)] - low for low, high in zip(batch.rows, batch.rows[1:], strict=False))
    return Reading(name=name, documents=tuple(tuple(row.tolist()) for row in cut), why=why)


def _summed(lengths: Ints) -> Edges:
    return (0, *np.cumsum(lengths[lengths > 0]).tolist())


def _split(batch: BatchTensors, name: str) -> list[Any]:
    flat = batch.flat(name)
    assert flat is not None  # noqa: S101 - asked for after first() found it
    return list(np.split(flat, batch.rows[1:-1]))


def whole_rows(batch: BatchTensors) -> tuple[Edges, ...]:
    """Each row as one document."""
    return tuple((0, int(width)) for width in np.diff(batch.rows))


def over_pairs(batch: BatchTensors) -> list[Bools] | None:
    """What tokens see under a mask over pairs, a ``[S, S]`` for each row; ``None`` for any other mask.

    Of several heads what any of them sees. Booleans say it; numbers, which are added to scores, do where they are above
    -100, for e**-100 is no weight in 32 bits; a mask of ones and zeros is read as booleans.
    """
    tensor = batch.tensors.get(MASK)
    if tensor is None or tensor.values.ndim < 3 or tensor.values.shape[-1] != tensor.values.shape[-2]:
        return None
    values, width = tensor.values, tensor.values.shape[-1]
    rows = values.reshape(values.shape[0], -1, width, width).max(axis=1)
    if (np.diff(batch.rows) != width).any() or len(rows) not in {1, batch.num_rows}:
        return None
    sees = rows != 0 if is_of_ones(tensor.values) else rows > _NO_WEIGHT
    return [sees[min(row, len(rows) - 1)] for row in range(batch.num_rows)]


def is_of_ones(mask: NDArray[Any]) -> bool:
    """Whether a mask says 1 or True where a token may see, rather than numbers to add to scores."""
    return mask.dtype.kind == "b" or bool(((mask == 0) | (mask == 1)).all() and (mask == 1).any())


def _sdpa(batch: BatchTensors) -> Reading:
    """The mask builder of transformers: a mask, then a cache, then the steps of the positions."""
    pairs = over_pairs(batch)
    if pairs is not None:
        return _sight(batch, pairs)
    mask = batch.flat(MASK)
    if mask is not None:
        rows = tuple(edges_by_booleans(row != 0) for row in np.split(mask, batch.rows[1:-1]))
        return Reading(name=SDPA, documents=rows, why=f"the 2-D {MASK} as booleans; then positions are not looked at")
    if batch.settings.get("use_cache"):
        return Reading(name=SDPA, documents=whole_rows(batch), why="use_cache: then positions are not looked at")
    positions, why = _positions(batch)
    if positions is None:
        return Reading(name=SDPA, documents=whole_rows(batch), why=why)
    steps = tuple(edges_by_steps(row) for row in positions)
    return Reading(name=SDPA, documents=steps, why=f"steps of {why} other than +1, if there is no cache")


def _sight(batch: BatchTensors, pairs: list[Bools]) -> Reading:
    """A mask over pairs is taken as it is, which is not always as it was meant."""
    kind = batch.tensors[MASK].values.dtype.kind
    if kind != "b" and is_of_ones(batch.tensors[MASK].values):
        why = f"the {MASK} of ones and zeros is added to scores and blocks nothing"
        return Reading(name=SDPA, documents=whole_rows(batch), why=why)
    rows = tuple(edges_by_sight(row) for row in pairs)
    eager = "; eager attention adds booleans, and they block nothing there" if kind == "b" else ""
    return Reading(name=SDPA, documents=rows, why=f"the {MASK} over pairs of tokens, taken as it is{eager}")


def _flash(batch: BatchTensors) -> Reading:
    """The flash attention of transformers: a mask with zeros, then all four arguments, then the smallest positions."""
    if over_pairs(batch) is not None:
        return Reading(name=FLASH_ATTENTION, documents=None, why=f"takes no {MASK} over pairs of tokens")
    mask = batch.flat(MASK)
    if mask is not None and not mask.all():
        rows = tuple(edges_by_booleans(row != 0) for row in np.split(mask, batch.rows[1:-1]))
        return Reading(name=FLASH_ATTENTION, documents=rows, why=f"the {MASK} with zeros; nothing else is looked at")
    if all(name in batch.tensors or name in batch.settings for name in FLASH):
        return _told_edges(FLASH_ATTENTION, batch, batch.tensors[FLASH[0]], f"{FLASH[0]}, with all of its kind")
    positions, why = _positions(batch)
    if positions is None:
        return Reading(name=FLASH_ATTENTION, documents=whole_rows(batch), why=why)
    if batch.num_rows > 1:
        why = "several rows, each one document: positions are looked at in one row only"
        return Reading(name=FLASH_ATTENTION, documents=whole_rows(batch), why=why)
    smallest = tuple(edges_by_minimum(row) for row in positions)
    return Reading(name=FLASH_ATTENTION, documents=smallest, why=f"the smallest of {why}")


def _positions(batch: BatchTensors) -> tuple[list[Ints] | None, str]:
    """A row of positions for each row of the batch, as transformers' models pass them on, and which; or why none."""
    name = next((name for name in POSITIONS if name in batch.tensors), None)
    if name is None:
        return None, "no positions: each row is one document"
    found = positions_of(batch, name)
    if found is None and batch.tensors[name].values.ndim == 3:
        planes = len(batch.tensors[name].values)
        return None, f"{name} of {planes} planes without one for text: each row is one document"
    if found is None:
        return None, f"{name} of another shape than the tokens: each row is one document"
    return found, name


def positions_of(batch: BatchTensors, name: str) -> list[Ints] | None:
    """Text positions row by row; one row of them is everyone's. ``None`` where there is no text plane or none fits."""
    tensor = batch.tensors[name]
    if batch.fits(name):
        return [row.astype(np.int64) for row in np.split(tensor.values.reshape(-1), batch.rows[1:-1])]
    plane = text_plane(tensor.values) if tensor.values.ndim == 3 else tensor.values if tensor.values.ndim == 2 else None
    widths = np.diff(batch.rows)
    if plane is None or len(plane) not in {1, batch.num_rows} or (widths != plane.shape[-1]).any():
        return None
    return [plane[min(row, len(plane) - 1)].astype(np.int64) for row in range(batch.num_rows)]


def starts_fit(batch: BatchTensors, tensor: Tensor) -> bool:
    """Whether multi-axis positions, which have a plane for each axis, have one value for each slot in each plane."""
    return tensor.values.ndim == 3 and len(tensor.values) > 0 and tensor.values[0].size == batch.num_slots
