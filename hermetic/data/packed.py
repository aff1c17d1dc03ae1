"""A folder of packed rows, opened and checked.

Guarantee: what :func:`open_packed` returns is what was packed: every file has the checksum of the manifest,
each row's document lengths sum to its tokens, each document's first label is -100, and the counts agree.
Price: one pass over the files, in memory a thousand rows at a time; the rows themselves stay on disk until
they are asked for.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.constants import IGNORE_INDEX
from hermetic.data.dependencies import import_optional
from hermetic.data.manifest import MANIFEST_NAME, PackManifest
from hermetic.data.sources import sha256_of_file
from hermetic.errors import PackedDataError

__all__ = ["PackedData", "open_packed"]

Document: TypeAlias = dict[str, npt.NDArray[np.int32]]
IndexArray: TypeAlias = npt.NDArray[np.int64]

_ROWS_AT_ONCE: Final = 1024
_COLUMNS: Final = ("input_ids", "labels", "seq_lengths", "document_ids")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedData:
    """Packed rows and their manifest; ``len`` counts rows."""

    path: Path
    manifest: PackManifest
    dataset: Any
    """The ``datasets.Dataset``, with the columns that :mod:`hermetic.data.pack` describes."""

    document_lengths: IndexArray
    """``[D]`` tokens of each document, row after row."""

    documents_per_row: IndexArray
    """``[B]``."""

    def __len__(self) -> int:
        return len(self.documents_per_row)

    def documents_of_row(self, index: int) -> list[Document]:
        """The documents of row ``index``, each with ``input_ids`` and ``labels``, for ``hermetic.collate``.

        Raises:
            PackedDataError: If there is no such row.

        Example:
            A row with input_ids ``[5, 6, 7, 8, 9]`` and seq_lengths ``[3, 2]`` gives the documents ``[5, 6,
            7]`` and ``[8, 9]``.
        """
        if not 0 <= index < len(self):
            raise PackedDataError(f"row {index} does not exist in {self.path}, expected 0 to {len(self) - 1}")
        row = self.dataset.with_format("numpy")[index]
        edges = np.cumsum(row["seq_lengths"])[:-1]
        columns = (np.split(np.asarray(row[name], dtype=np.int32), edges) for name in ("input_ids", "labels"))
        return [{"input_ids": ids, "labels": labels} for ids, labels in zip(*columns, strict=True)]

    def rows(self) -> Iterator[list[Document]]:
        """The documents of every row, in order."""
        return (self.documents_of_row(index) for index in range(len(self)))


def open_packed(path: str | os.PathLike[str]) -> PackedData:
    """Open a folder that :func:`hermetic.data.pack_file` made.

    Raises:
        PackedDataError: If it is not such a folder, a file is missing or damaged, or its rows are
            inconsistent.
        MissingDependencyError: If datasets is not installed.
    """
    folder = Path(path)
    manifest = PackManifest.load(folder)
    unlisted = sorted({path.name for path in folder.iterdir() if path.is_file()} - {MANIFEST_NAME, *manifest.files})
    if unlisted or not manifest.files:
        raise PackedDataError(
            f"{folder} has files without a checksum in its manifest: {unlisted}; expected only what was packed. "
            "Remove them, or pack the source again"
        )
    for name, expected in manifest.files.items():
        _check_file(folder / name, expected)
    dataset = import_optional("datasets").load_from_disk(os.fspath(folder))
    lengths, documents_per_row = _check_rows(folder, manifest, dataset)
    return PackedData(
        path=folder,
        manifest=manifest,
        dataset=dataset,
        document_lengths=lengths,
        documents_per_row=documents_per_row,
    )


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise PackedDataError(f"{path} is missing, expected by the manifest; pack the source again")
    found = sha256_of_file(path)
    if found != expected:
        raise PackedDataError(
            f"{path} is damaged: its SHA-256 is {found}, expected {expected}; copy it again or pack the source again"
        )


def _check_rows(folder: Path, manifest: PackManifest, dataset: Any) -> tuple[IndexArray, IndexArray]:
    """The lengths of all documents and how many each row holds, after checking every row."""
    if sorted(dataset.column_names) != sorted(_COLUMNS):
        raise PackedDataError(
            f"{folder} has the columns {sorted(dataset.column_names)}, expected {sorted(_COLUMNS)}; "
            "pack the source again"
        )
    lengths, documents_per_row = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    supervised = first_row = 0
    for batch in dataset.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE):
        columns = {name: batch.column(name).combine_chunks() for name in _COLUMNS}
        counts, batch_lengths = _check_batch(columns, f"{folder}, rows {first_row} and later")
        documents_per_row.append(counts)
        lengths.append(batch_lengths)
        _check_capacity(columns["input_ids"], manifest.capacity, f"{folder}, rows {first_row} and later")
        supervised += int((_values(columns["labels"]) != IGNORE_INDEX).sum())
        first_row += len(counts)
    all_lengths = np.concatenate(lengths)
    found = {"rows": first_row, "tokens_placed": int(all_lengths.sum()), "supervised_tokens": supervised}
    for name, value in found.items():
        if value != getattr(manifest, name):
            raise PackedDataError(
                f"{folder} holds {value} {name}, expected {getattr(manifest, name)} by its manifest; "
                "pack the source again"
            )
    return all_lengths, np.concatenate(documents_per_row)


def _check_capacity(input_ids: Any, capacity: int, where: str) -> None:
    tokens = _counts(input_ids)
    if (tokens > capacity).any():
        row = int(np.argmax(tokens > capacity))
        raise PackedDataError(
            f"{where}: row +{row} has {tokens[row]} tokens, above the {capacity} of a row by the manifest; "
            "pack the source again"
        )


def _values(column: Any) -> IndexArray:
    """The entries of a list column, end to end."""
    values: IndexArray = column.flatten().to_numpy(zero_copy_only=False)
    return values


def _counts(column: Any) -> IndexArray:
    """The number of entries of each list of a column."""
    counts: IndexArray = column.value_lengths().to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _check_batch(columns: dict[str, Any], where: str) -> tuple[IndexArray, IndexArray]:
    """The documents in each row of a batch, and the tokens in each document."""
    documents_per_row = _counts(columns["seq_lengths"])
    lengths = _values(columns["seq_lengths"]).astype(np.int64)
    if not (lengths > 0).all() or not (documents_per_row > 0).all():
        raise PackedDataError(f"{where}: a row or a document is empty, expected tokens; pack the source again")
    edges = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.concatenate([[0], np.cumsum(documents_per_row)])
    tokens_per_row = np.diff(edges[rows])
    for name, expected in (
        ("input_ids", tokens_per_row),
        ("labels", tokens_per_row),
        ("document_ids", documents_per_row),
    ):
        differing = np.flatnonzero(_counts(columns[name]) != expected)
        if len(differing):
            row = int(differing[0])
            raise PackedDataError(
                f"{where}: row +{row} has {_counts(columns[name])[row]} {name}, expected {expected[row]} by "
                "its seq_lengths; pack the source again"
            )
    if (_values(columns["labels"])[edges[:-1]] != IGNORE_INDEX).any():
        raise PackedDataError(
            f"{where}: the first token of a document is supervised, so it would be trained to follow another "
            f"document; expected the label {IGNORE_INDEX} there; pack the source again"
        )
    return documents_per_row, lengths
