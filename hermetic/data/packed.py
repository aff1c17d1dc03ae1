"""A folder of packed rows, opened and checked.

Guarantee: what :func:`open_packed` returns is what was packed: every file has the checksum of the manifest,
each row's document lengths sum to its tokens, each document's first label is -100, and the counts agree.
Price: one pass over the files, in memory a thousand rows at a time; the rows themselves stay on disk until
they are asked for, unless they are Parquet.
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
from hermetic.data.manifest import MANIFEST_NAME, PackManifest, Shard
from hermetic.data.run.table import DOCUMENT_COLUMNS, TOKEN_COLUMNS
from hermetic.data.sources import sha256_of_file
from hermetic.errors import PackedDataError

__all__ = ["PackedData", "open_packed", "shard_batches"]

Document: TypeAlias = dict[str, npt.NDArray[np.int32]]
IndexArray: TypeAlias = npt.NDArray[np.int64]

_ROWS_AT_ONCE: Final = 1024
_CHOSEN, _REJECTED = 1, 2


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
    """Open a folder that :func:`hermetic.data.pack_sources` made.

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
    lengths, documents_per_row = _check_rows(folder, manifest)
    return PackedData(
        path=folder,
        manifest=manifest,
        dataset=_dataset(folder, manifest),
        document_lengths=lengths,
        documents_per_row=documents_per_row,
    )


def _dataset(folder: Path, manifest: PackManifest) -> Any:
    datasets = import_optional("datasets")
    if manifest.file_format == "arrow":
        return datasets.load_from_disk(os.fspath(folder))
    import pyarrow as pa
    import pyarrow.parquet as pq

    return datasets.Dataset(pa.concat_tables(pq.read_table(folder / shard.name) for shard in manifest.shards))


def shard_batches(folder: Path, manifest: PackManifest, shard: Shard) -> Iterator[Any]:
    """The record batches of one file of rows, of at most 1024 rows each; of an Arrow file mapped, not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / shard.name
    try:
        if manifest.file_format == "arrow":
            with pa.memory_map(os.fspath(path)) as source, pa.ipc.open_stream(source) as stream:
                yield from stream
        else:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=_ROWS_AT_ONCE)
    except pa.ArrowInvalid as error:
        raise PackedDataError(f"{path} is not a file of rows ({error}); pack the source again") from error


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise PackedDataError(f"{path} is missing, expected by the manifest; pack the source again")
    found = sha256_of_file(path)
    if found != expected:
        raise PackedDataError(
            f"{path} is damaged: its SHA-256 is {found}, expected {expected}; copy it again or pack the source again"
        )


def _check_rows(folder: Path, manifest: PackManifest) -> tuple[IndexArray, IndexArray]:
    """The lengths of all documents and how many each row holds, after checking every row."""
    lengths, documents_per_row = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    supervised = 0
    for shard in manifest.shards:
        first, documents, tokens = 0, 0, 0
        for batch in shard_batches(folder, manifest, shard):
            where = f"{folder / shard.name}, rows {first} and later"
            counts, batch_lengths = _check_batch(batch, manifest, where)
            documents_per_row.append(counts)
            lengths.append(batch_lengths)
            supervised += int((_values(batch.column("labels")) != IGNORE_INDEX).sum())
            first, documents, tokens = first + len(counts), documents + len(batch_lengths), tokens + batch_lengths.sum()
        found = {"rows": first, "documents": documents, "tokens": int(tokens)}
        _check_counts(folder / shard.name, found, shard)
    all_lengths, all_counts = np.concatenate(lengths), np.concatenate(documents_per_row)
    _check_counts(folder, {"tokens_placed": int(all_lengths.sum()), "supervised_tokens": supervised}, manifest)
    return all_lengths, all_counts


def _check_counts(where: Path, found: dict[str, int], said: Any) -> None:
    for name, value in found.items():
        if value != getattr(said, name):
            raise PackedDataError(
                f"{where} holds {value} {name}, expected {getattr(said, name)} by its manifest; pack the source again"
            )


def _check_batch(batch: Any, manifest: PackManifest, where: str) -> tuple[IndexArray, IndexArray]:
    """The documents in each row of a batch, and the tokens in each document."""
    expected = {*TOKEN_COLUMNS, *DOCUMENT_COLUMNS[:-1], *(["roles"] if manifest.preference_pairs else [])}
    if set(batch.schema.names) != expected:
        raise PackedDataError(
            f"{where}: the columns are {sorted(batch.schema.names)}, expected {sorted(expected)}; pack the source again"
        )
    documents_per_row = _counts(batch.column("seq_lengths"))
    lengths = _values(batch.column("seq_lengths")).astype(np.int64)
    if not (lengths > 0).all() or not (documents_per_row > 0).all():
        raise PackedDataError(f"{where}: a row or a document is empty, expected tokens; pack the source again")
    edges = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.concatenate([[0], np.cumsum(documents_per_row)])
    tokens_per_row = np.diff(edges[rows])
    for name in sorted(expected):
        counts = tokens_per_row if name in TOKEN_COLUMNS else documents_per_row
        differing = np.flatnonzero(_counts(batch.column(name)) != counts)
        if len(differing):
            row = int(differing[0])
            raise PackedDataError(
                f"{where}: row +{row} has {_counts(batch.column(name))[row]} {name}, expected {counts[row]} by "
                "its seq_lengths; pack the source again"
            )
    _check_capacity(tokens_per_row, manifest.capacity, where)
    if (_values(batch.column("labels"))[edges[:-1]] != IGNORE_INDEX).any():
        raise PackedDataError(
            f"{where}: the first token of a document is supervised, so it would be trained to follow another "
            f"document; expected the label {IGNORE_INDEX} there; pack the source again"
        )
    _check_provenance(batch, manifest, rows, where)
    return documents_per_row, lengths


def _check_capacity(tokens: IndexArray, capacity: int, where: str) -> None:
    if (tokens > capacity).any():
        row = int(np.argmax(tokens > capacity))
        raise PackedDataError(
            f"{where}: row +{row} has {tokens[row]} tokens, above the {capacity} of a row by the manifest; "
            "pack the source again"
        )


def _check_provenance(batch: Any, manifest: PackManifest, rows: IndexArray, where: str) -> None:
    """Every document comes from a source of the manifest, and no pair is torn."""
    for name, first, beyond in (
        ("source_ids", 0, len(manifest.source_files)),
        ("document_ids", 0, manifest.documents_read),
        ("record_numbers", 1, np.iinfo(np.int64).max),
    ):
        values = _values(batch.column(name))
        wrong = (values < first) | (values >= beyond)
        if wrong.any():
            raise PackedDataError(
                f"{where}: {name} holds {values[np.argmax(wrong)]}, expected {first} to {beyond - 1} by the manifest; "
                "pack the source again"
            )
    if manifest.preference_pairs:
        roles = _values(batch.column("roles"))
        chosen = np.flatnonzero(roles == _CHOSEN)
        followed = np.append(roles, 0)[chosen + 1] == _REJECTED
        torn = not followed.all() or len(chosen) != (roles == _REJECTED).sum() or np.isin(rows[1:-1] - 1, chosen).any()
        if torn:
            raise PackedDataError(
                f"{where}: a chosen answer is not followed by its rejected one in the same row; pack the source again"
            )


def _values(column: Any) -> IndexArray:
    """The entries of a list column, end to end."""
    values: IndexArray = column.flatten().to_numpy(zero_copy_only=False)
    return values


def _counts(column: Any) -> IndexArray:
    """The number of entries of each list of a column."""
    counts: IndexArray = column.value_lengths().to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)
