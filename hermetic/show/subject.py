"""One row of whatever was given to be shown: its runs of slots, and what stands in them.

Algorithm: boundaries, lengths and a ``PackedBatch`` are one row. A mapping of model inputs, or a file of them, has the
documents that the first of these names: numbers of documents, edges, lengths, positions that restart, numbers in
``attention_mask``, blocks of a mask over pairs. What else it holds is what readers are shown to make of it.
Guarantee: nothing is mended. Where a source contradicts the one that was believed, a note says so. Price: that of
reading it; of a packed folder, its check.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hermetic.batch import Boundaries, PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import AuditError
from hermetic.show.pattern import Bools, Ints
from hermetic.show.picture import DocumentOfRow

PADDING = None
"""What a run that belongs to no document has in place of a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Consecutive slots of one document, or of padding."""

    number: int | None
    """Of the document; ``None``: padding."""
    length: int
    """0 of an empty document."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """A row as it came, before anybody reads it."""

    subject: str
    row: int
    num_rows: int
    runs: tuple[Run, ...]
    positions: Ints
    """``[A, T]``."""
    ids: Ints | None = None
    labels: Ints | None = None
    inputs: Any = None
    """The ``BatchTensors`` of the audit, of a mapping or a file: what the helpers of libraries read."""
    tokenizer: Any = None
    notes: tuple[str, ...] = field(default=())

    @property
    def lengths(self) -> tuple[int, ...]:
        """Slots of each run that has some."""
        return tuple(run.length for run in self.runs if run.length)

    @property
    def document_ids(self) -> Ints:
        """``[T]``: which document of the row a slot belongs to, counted from 0; -1 for padding."""
        numbers = iter(range(len(self.runs)))
        ids = [-1 if run.number is PADDING else next(numbers) for run in self.runs]
        return np.repeat(np.array(ids, dtype=np.int64), [run.length for run in self.runs])

    @property
    def real(self) -> Bools:
        """``[T]``: whether a slot belongs to a document."""
        return self.document_ids >= 0

    def documents(self) -> tuple[DocumentOfRow, ...]:
        """The documents in their order, empty ones included."""
        starts = accumulate((run.length for run in self.runs), initial=0)
        return tuple(
            DocumentOfRow(number=run.number, start=start, length=run.length, supervised=self._supervised(start, run))
            for start, run in zip(starts, self.runs, strict=False)
            if run.number is not PADDING
        )

    def _supervised(self, start: int, run: Run) -> int | None:
        if self.labels is None:
            return None
        return int((self.labels[start : start + run.length] != IGNORE_INDEX).sum())


def row_of(subject: Any, row: int, tokenizer: str | os.PathLike[str] | None) -> Row:
    """The row to show.

    Raises:
        AuditError: it is nothing that can be shown, has no such row, or the row holds no token.
    """
    found = _row_of(subject, row, tokenizer)
    if not sum(found.lengths):
        raise AuditError(
            f"{found.subject} holds no token, so there is nothing to draw; expected one document with some"
        )
    return found


def _row_of(subject: Any, row: int, tokenizer: str | os.PathLike[str] | None) -> Row:
    if isinstance(subject, str | os.PathLike):
        path = Path(subject)
        return _of_folder(path, row, tokenizer) if path.is_dir() else _of_file(path, row, tokenizer)
    loaded = _loaded(tokenizer)
    if isinstance(subject, Boundaries):
        check_row(row, 1, "boundaries are one row")
        return _of_lengths(subject.document_lengths, "documents given by their boundaries")
    if isinstance(subject, PackedBatch):
        check_row(row, 1, "a PackedBatch is one row")
        return _of_batch(subject, loaded)
    if isinstance(subject, Mapping):
        from hermetic.audit.batch.tensors import tensors_of
        from hermetic.show.inputs import row_of_inputs

        return row_of_inputs(tensors_of(subject, name="model inputs"), row, loaded)
    if isinstance(subject, Sequence) or hasattr(subject, "shape"):
        check_row(row, 1, "lengths are one row")
        return _of_lengths(Boundaries.from_lengths(subject).document_lengths, "documents given by their lengths")
    raise AuditError(
        f"cannot show a {type(subject).__name__}; expected lengths of documents, Boundaries, a PackedBatch, a mapping "
        "of model inputs, the path of a file of a batch, or of a folder that `hermetic pack` made"
    )


def check_row(row: int, num_rows: int, why: str) -> None:
    """Refuse a row that is not there.

    Raises:
        AuditError: it is below 0 or beyond the last.
    """
    if not 0 <= row < num_rows:
        raise AuditError(f"row is {row}, and {why}; expected 0 to {num_rows - 1}")


def _of_lengths(lengths: tuple[int, ...], name: str, num_slots: int | None = None) -> Row:
    runs = [Run(number=number, length=length) for number, length in enumerate(lengths)]
    tail = (num_slots or 0) - sum(lengths)
    if tail > 0:
        runs.append(Run(number=PADDING, length=tail))
    positions = Boundaries.from_lengths([run.length for run in runs]).position_ids.numpy()[None]
    return Row(subject=name, row=0, num_rows=1, runs=tuple(runs), positions=positions)


def _of_batch(batch: PackedBatch, tokenizer: Any) -> Row:
    plain = _of_lengths(batch.boundaries.document_lengths, "PackedBatch", batch.num_slots)
    ids, labels = batch.input_ids.cpu().numpy(), batch.labels.cpu().numpy()
    return Row(
        subject=plain.subject,
        row=0,
        num_rows=1,
        runs=plain.runs,
        positions=plain.positions,
        ids=ids,
        labels=labels,
        tokenizer=tokenizer,
    )


def _of_folder(path: Path, row: int, tokenizer: str | os.PathLike[str] | None) -> Row:
    from hermetic.data import open_packed
    from hermetic.data.blocks import block_of_row
    from hermetic.data.show import require_tokenizer_of

    packed = open_packed(path)
    check_row(row, len(packed), f"{path} has {len(packed):,} rows")
    loaded = _loaded(tokenizer)
    if loaded is not None:
        require_tokenizer_of(packed, loaded, os.fspath(tokenizer or ""))
    block = block_of_row(packed, row)
    numbers = block.document_ids.tolist()
    runs = tuple(
        Run(number=number, length=length) for number, length in zip(numbers, block.lengths.tolist(), strict=True)
    )
    filled = sum(run.length for run in runs)
    return Row(
        subject=os.fspath(path),
        row=row,
        num_rows=len(packed),
        runs=runs,
        positions=Boundaries.from_lengths(block.lengths).position_ids.numpy()[None],
        ids=block.input_ids.astype(np.int64),
        labels=block.labels.astype(np.int64),
        tokenizer=loaded,
        notes=(f"{filled:,} of {packed.manifest.capacity:,} tokens of the row are filled",),
    )


def _of_file(path: Path, row: int, tokenizer: str | os.PathLike[str] | None) -> Row:
    from hermetic.audit.batch.files import read_batch
    from hermetic.show.inputs import row_of_inputs

    return row_of_inputs(read_batch(path), row, _loaded(tokenizer))


def _loaded(tokenizer: str | os.PathLike[str] | None) -> Any:
    if tokenizer is None:
        return None
    from hermetic.data import load_tokenizer

    return load_tokenizer(tokenizer)
