"""Rows of a packed folder as flat NumPy arrays, a thousand rows at a time, each document with its origin.

Guarantee: rows come in their order, all of them, once. Price: the tokens of one block; they are views of the mapped
files where Arrow allows it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.manifest import PackManifest
from hermetic.data.packed import PackedData

__all__ = ["PackedBlock", "block_of_row", "blocks_of", "source_names"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
IndexArray: TypeAlias = npt.NDArray[np.int64]

ROWS_AT_ONCE: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedBlock:
    """B rows that hold D documents of T tokens in all.

    Example:
        Rows ``[[5, 6, 7], [8]]`` and ``[[9, 4]]``: lengths ``[3, 1, 2]``, documents_per_row ``[2, 1]``,
        document_edges ``[0, 2, 3]``, token_edges ``[0, 4, 6]``, starts ``[0, 3, 4]``.
    """

    first_row: int
    input_ids: TokenArray
    """``[T]``."""

    labels: TokenArray
    """``[T]``, unshifted, -100 on the first token of each document and on unsupervised tokens."""

    lengths: IndexArray
    """``[D]`` tokens of each document."""

    documents_per_row: IndexArray
    """``[B]``."""

    document_ids: IndexArray
    """``[D]``: which document of those that were read each one is, or is cut from."""

    source_ids: IndexArray
    """``[D]``: index into :func:`source_names`."""

    record_numbers: IndexArray
    """``[D]``: 1-based line or row of the source."""

    roles: npt.NDArray[np.int8] | None
    """``[D]``: 1 chosen, 2 rejected, 0 neither; None where no preference pairs were packed."""

    @property
    def starts(self) -> IndexArray:
        """``[D]``: where each document begins in the tokens of the block."""
        return _edges(self.lengths)[:-1]

    @property
    def document_edges(self) -> IndexArray:
        """``[B + 1]``: row ``i`` holds the documents from edge ``i`` up to edge ``i + 1``."""
        return _edges(self.documents_per_row)

    @property
    def token_edges(self) -> IndexArray:
        """``[B + 1]``: row ``i`` holds the tokens from edge ``i`` up to edge ``i + 1``."""
        return _edges(self.lengths)[self.document_edges]


def blocks_of(packed: PackedData) -> Iterator[PackedBlock]:
    """All rows of a packed folder, in order."""
    first_row = 0
    for table in packed.dataset.with_format("arrow").iter(batch_size=ROWS_AT_ONCE):
        yield _block(table, first_row)
        first_row += table.num_rows


def block_of_row(packed: PackedData, row: int) -> PackedBlock:
    """The block of row ``row`` alone."""
    return _block(packed.dataset.with_format("arrow")[row : row + 1], row)


def source_names(manifest: PackManifest) -> tuple[str, ...]:
    """The names of the files that were packed, as their documents' ``source_ids`` count them."""
    return tuple(file.name for file in manifest.source_files)


def _block(table: Any, first_row: int) -> PackedBlock:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return PackedBlock(
        first_row=first_row,
        input_ids=_values(columns["input_ids"]),
        labels=_values(columns["labels"]),
        lengths=_values(columns["seq_lengths"]).astype(np.int64),
        documents_per_row=columns["seq_lengths"].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64),
        document_ids=_values(columns["document_ids"]),
        source_ids=_values(columns["source_ids"]).astype(np.int64),
        record_numbers=_values(columns["record_numbers"]),
        roles=_values(columns["roles"]) if "roles" in columns else None,
    )


def _values(column: Any) -> npt.NDArray[Any]:
    """The entries of a list column, end to end."""
    values: npt.NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return values


def _edges(lengths: IndexArray) -> IndexArray:
    """Example: lengths ``[3, 5]`` have the edges ``[0, 3, 8]``."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
