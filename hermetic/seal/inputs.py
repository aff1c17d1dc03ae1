"""From whatever a caller passes to the documents of each row.

Precedence: ``document_ids``, then ``cu_seq_lens_q``, then ``position_ids`` (a new document wherever the step
is not +1), each cut at row starts. A 2-D ``attention_mask`` says which slots are padding and nothing else.
Facts that contradict each other are an error; nothing is guessed from token values.
All of it is NumPy on the host: one copy of the small integer tensors per forward pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hermetic.batch import Boundaries
from hermetic.constants import TAIL_DOCUMENT_ID
from hermetic.errors import BoundariesError, SealError

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedRows:
    """Rows of a device batch, cut into runs: documents, and runs of padding."""

    lengths: tuple[int, ...]
    """Slots of each run, over all rows in one stream."""
    num_rows: int
    num_slots: int
    real: Bools
    """``[B, S]``: whether a slot holds a token of a document, as far as the caller says."""

    def position_ids(self) -> torch.Tensor:
        """``[B, S]`` int64 on the host, counted from the start of each run."""
        return Boundaries(document_lengths=self.lengths).position_ids.view(self.num_rows, self.num_slots)


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbering:
    """How a model numbers the tokens of one document when it is given no positions."""

    start: int = 0
    by_token: bool = False
    """Which token it is decides, too: RoBERTa gives every pad the same number and does not count it."""


def packed_rows_from_call(arguments: Mapping[str, Any], shape: tuple[int, int]) -> PackedRows | None:
    """The runs of a call over ``[B, S]`` token slots; ``None`` when every row holds one document.

    Explicit boundaries (``document_ids``, ``seq_idx``, ``cu_seq_lens_q``, ``cu_seq_lens_k``) always give rows,
    even of one document each.

    Raises:
        BoundariesError: the arguments contradict each other or do not describe documents.
        SealError: a 4-D mask was passed, in which boundaries cannot be seen.
    """
    real = _real_slots(arguments.get("attention_mask"), shape)
    explicit = _explicit_starts(arguments, shape)
    if explicit is not None:
        ids = arguments.get("document_ids")
        if ids is not None:
            real = real & (_host(ids).reshape(shape) != TAIL_DOCUMENT_ID)
        return _rows(explicit, real, shape)
    position_ids = arguments.get("position_ids")
    if position_ids is None:
        return None
    starts = _starts_from_positions(_rows_of_positions(position_ids, shape), real)
    if (starts & real).sum(axis=1).max(initial=0) <= 1:
        return None
    return _rows(starts, real, shape)


def positions_for(
    rows: PackedRows, given: torch.Tensor | None, *, explicit: bool, numbering: Numbering
) -> torch.Tensor | None:
    """Positions by place, for a caller who asks for none in particular; ``None`` for one who does.

    Positions that count on through the row are what a model makes up when it is given none, so with explicit
    boundaries they are replaced; so are those that start each document at 0, in a model that numbers them otherwise.
    Positions that count by one inside every document are kept, and with them an offset that all documents share.
    Padding may have any. Planes of multi-axis positions are the caller's.

    Raises:
        BoundariesError: positions and explicit boundaries contradict each other.
    """
    counted = rows.position_ids() + numbering.start
    if given is None:
        return counted
    if given.ndim > 2:
        return None
    if numbering != Numbering() and (_host(given).reshape(-1, rows.num_slots)[:, 0] == 0).all():
        return counted
    if not explicit:
        return None
    restarted = rows.position_ids().numpy()
    positions = np.broadcast_to(_host(given), restarted.shape)
    if (positions == np.arange(rows.num_slots)).all():
        return counted
    wrong = np.argwhere(rows.real[:, 1:] & (restarted[:, 1:] > 0) & (np.diff(positions, axis=1) != 1))
    if wrong.size:
        row, slot = (int(x) for x in wrong[0])
        raise BoundariesError(
            f"position_ids go from {positions[row, slot]} to {positions[row, slot + 1]} at slot {slot + 1} of row "
            f"{row}, inside one document of the boundaries; expected steps of 1 there. Leave position_ids out: "
            "they are derived from the boundaries"
        )
    firsts = np.argwhere(rows.real & (restarted == 0))
    offsets = positions[tuple(firsts.T)]
    if (offsets != offsets[:1]).any():
        row, slot = (int(x) for x in firsts[offsets != offsets[0]][0])
        raise BoundariesError(
            f"position_ids start a document at {offsets[0]} and another, at slot {slot} of row {row}, at "
            f"{positions[row, slot]}; expected all documents to start at one position. Leave position_ids out: they "
            "are derived from the boundaries"
        )
    return None


def has_explicit_boundaries(arguments: Mapping[str, Any]) -> bool:
    """Whether the caller said where documents start, rather than leaving it to the positions."""
    return any(arguments.get(name) is not None for name in (*_IDS, *_EDGES))


_IDS = ("document_ids", "seq_idx")
_EDGES = ("cu_seq_lens_q", "cu_seq_lens_k")


def _rows(starts: Bools, real: Bools, shape: tuple[int, int]) -> PackedRows:
    """Cut where a document starts and where padding begins or ends."""
    begins = starts.copy()
    begins[:, 0] = True
    begins[:, 1:] |= real[:, 1:] != real[:, :-1]
    edges = np.append(np.flatnonzero(begins.ravel()), begins.size)
    _refuse_holes(starts, real)
    lengths = tuple(int(length) for length in np.diff(edges))
    return PackedRows(lengths=lengths, num_rows=shape[0], num_slots=shape[1], real=real)


def _refuse_holes(starts: Bools, real: Bools) -> None:
    """A masked slot in the middle of a document would cut it in two."""
    resumes = np.zeros_like(real)
    resumes[:, 1:] = real[:, 1:] & ~real[:, :-1] & ~starts[:, 1:]
    document = np.cumsum(starts, axis=1)
    for row, slot in np.argwhere(resumes):
        if (real[row, :slot] & (document[row, :slot] == document[row, slot])).any():
            raise BoundariesError(
                f"attention_mask is 0 before slot {slot} of row {row}, in the middle of a document; expected padding "
                "only before or after documents. Mask tokens out of the loss through labels instead"
            )


def _real_slots(mask: Any, shape: tuple[int, int]) -> Bools:
    if mask is None:
        return np.ones(shape, dtype=np.bool_)
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        found = f"shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise SealError(
            f"attention_mask is a ready-made mask ({found}) in which a sealed model cannot see the documents; pass "
            "document_ids, cu_seq_lens_q or position_ids instead of it, or unseal the model"
        )
    values = _host(mask)
    if values.shape != shape:
        raise BoundariesError(f"attention_mask has shape {values.shape}; expected {shape}, as the tokens")
    other = np.argwhere((values != 0) & (values != 1))
    if other.size:
        row, slot = (int(x) for x in other[0])
        raise BoundariesError(
            f"attention_mask is {values[row, slot]} at slot {slot} of row {row}; expected 0 or 1. transformers "
            "turns a 2-D mask into booleans, so numbers of documents in it are lost: pass them as document_ids, "
            "counted from 0"
        )
    return values.astype(np.bool_)


def _explicit_starts(arguments: Mapping[str, Any], shape: tuple[int, int]) -> Bools | None:
    """Where documents start by whatever says so; all that say so have to agree."""
    said = [(name, _starts_from_ids(name, _host(arguments[name]), shape)) for name in _IDS if _given(arguments, name)]
    said += [(name, _starts_from_edges(name, arguments[name], shape)) for name in _EDGES if _given(arguments, name)]
    if not said:
        return None
    first, starts = said[0]
    for other, other_starts in said[1:]:
        differ = np.argwhere(starts != other_starts)
        if differ.size:
            row, slot = (int(x) for x in differ[0])
            raise BoundariesError(
                f"{first} and {other} disagree on whether a document starts at slot {slot} of row {row}; expected the "
                "same documents. Pass one of them"
            )
    return starts


def _given(arguments: Mapping[str, Any], name: str) -> bool:
    return arguments.get(name) is not None


def _starts_from_ids(name: str, ids: Ints, shape: tuple[int, int]) -> Bools:
    if ids.size != shape[0] * shape[1] or ids.ndim > 2:
        raise BoundariesError(
            f"{name} has shape {ids.shape}; expected one id for each of {shape[0]} x {shape[1]} tokens"
        )
    ids = ids.reshape(shape)
    starts = np.ones(shape, dtype=np.bool_)
    starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
    for row in range(shape[0]):
        runs = ids[row][starts[row]]
        values, counts = np.unique(runs[runs != TAIL_DOCUMENT_ID], return_counts=True)
        if (counts > 1).any():
            raise BoundariesError(
                f"{name} comes back to document {values[counts > 1][0]} in row {row} after another document; "
                "expected the tokens of a document side by side"
            )
    return starts


def _starts_from_edges(name: str, edges: Any, shape: tuple[int, int]) -> Bools:
    total = shape[0] * shape[1]
    cu_seqlens = Boundaries.from_cu_seqlens(edges, num_tokens=total).cu_seqlens
    if int(cu_seqlens[-1]) != total:
        raise BoundariesError(
            f"{name} ends at {int(cu_seqlens[-1])} and the rows have {total} slots; expected the last edge at "
            "their end: a padded tail is one more edge, and tokens that a wrapper adds are none of these documents'"
        )
    starts = np.zeros(total + 1, dtype=np.bool_)
    starts[cu_seqlens.numpy()] = True
    rows = starts[:total].reshape(shape)
    if not rows[:, 0].all():
        row = int(np.flatnonzero(~rows[:, 0])[0])
        raise BoundariesError(
            f"{name} has no edge at {row * shape[1]}, where row {row} starts; expected edges over all rows "
            "in one stream, for no document goes on in the next row"
        )
    return rows


def _rows_of_positions(position_ids: torch.Tensor, shape: tuple[int, int]) -> Ints:
    """``[A, B, S]`` positions, one plane for ordinary ones."""
    positions = _host(position_ids)
    positions = positions.reshape(-1, *positions.shape[-2:]) if positions.ndim > 1 else positions[None, None]
    if positions.shape[2] != shape[1] or positions.shape[1] not in {1, shape[0]}:
        raise BoundariesError(
            f"position_ids has shape {tuple(position_ids.shape)}; expected one position for each of "
            f"{shape[0]} x {shape[1]} tokens"
        )
    return np.broadcast_to(positions, (positions.shape[0], *shape))


def _starts_from_positions(planes: Ints, real: Bools) -> Bools:
    """A real token starts a document unless it goes on from the real token before it.

    With padding in between, positions that are larger go on, others restart. Several planes (text, time,
    height, width) that differ restart together, at the values they began the row with.
    """
    starts = np.zeros(real.shape, dtype=np.bool_)
    for row in range(real.shape[0]):
        slots = np.flatnonzero(real[row])
        if slots.size == 0:
            continue
        positions = planes[:, row, slots]
        if not (planes == planes[:1]).all():
            restarts = (positions[:, 1:] == positions[:, :1]).all(axis=0)
        else:
            step = np.diff(positions[0])
            restarts = np.where(np.diff(slots) == 1, step != 1, step <= 0)
        starts[row, slots[0]] = True
        starts[row, slots[1:]] = restarts
    return starts


def _host(x: Any) -> Ints:
    array = x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "biu" else array
