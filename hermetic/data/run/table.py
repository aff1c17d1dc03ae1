"""Flat columns to a file of rows: an Arrow stream that ``datasets`` maps into memory, or Parquet.

Guarantee: the same columns give the same bytes; the file appears whole or not at all. Price: the columns are written as
they lie, without a copy.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hermetic.files import replacing, write_text

__all__ = ["COLUMN_TYPES", "DOCUMENT_COLUMNS", "TOKEN_COLUMNS", "write_dataset_files", "write_table"]

IndexArray: TypeAlias = npt.NDArray[np.int64]

TOKEN_COLUMNS: Final = ("input_ids", "labels")
"""One entry for each token of the row."""

DOCUMENT_COLUMNS: Final = ("seq_lengths", "document_ids", "source_ids", "record_numbers", "roles")
"""One entry for each document of the row; ``roles`` only where preference pairs were packed."""

COLUMN_TYPES: Final = {
    "input_ids": "int32",
    "labels": "int32",
    "seq_lengths": "int32",
    "document_ids": "int64",
    "source_ids": "int32",
    "record_numbers": "int64",
    "roles": "int8",
}

_ROWS_AT_ONCE: Final = 1024
_LARGEST_OFFSET: Final = 2**31 - 1


def write_table(
    path: Path, columns: dict[str, npt.NDArray[Any]], documents_per_row: IndexArray, *, file_format: str
) -> None:
    """Write flat columns as a file of rows.

    Args:
        path: of the file.
        columns: those of ``TOKEN_COLUMNS``, ``[T]``, and of ``DOCUMENT_COLUMNS``, ``[D]``.
        documents_per_row: ``[B]``.
        file_format: ``"arrow"`` or ``"parquet"``.
    """
    with replacing(path) as file:
        schema = _schema(tuple(columns))
        if file_format == "arrow":
            with pa.ipc.new_stream(file, schema) as stream:
                for batch in _batches(columns, documents_per_row, schema):
                    stream.write_batch(batch)
        else:
            import pyarrow.parquet as pq

            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in _batches(columns, documents_per_row, schema):
                    writer.write_batch(batch)


def _batches(columns: dict[str, npt.NDArray[Any]], documents_per_row: IndexArray, schema: Any) -> Iterator[Any]:
    document_edges = np.concatenate([[0], np.cumsum(documents_per_row)])
    token_edges = np.concatenate([[0], np.cumsum(columns["seq_lengths"], dtype=np.int64)])[document_edges]
    first = 0
    while first < len(documents_per_row):
        fitting = int(np.searchsorted(token_edges, token_edges[first] + _LARGEST_OFFSET, side="right")) - 1
        stop = min(first + _ROWS_AT_ONCE, fitting)
        arrays = []
        for name, values in columns.items():
            edges = (token_edges if name in TOKEN_COLUMNS else document_edges)[first : stop + 1]
            offsets = pa.array((edges - edges[0]).astype(np.int32))
            arrays.append(pa.ListArray.from_arrays(offsets, pa.array(values[edges[0] : edges[-1]])))
        yield pa.record_batch(
            [array.cast(kind.type) for array, kind in zip(arrays, schema, strict=True)], schema=schema
        )
        first = stop


def _schema(names: tuple[str, ...]) -> Any:
    fields = [pa.field(name, pa.list_(getattr(pa, COLUMN_TYPES[name])())) for name in names]
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": _features(names)}})})


def _features(names: tuple[str, ...]) -> dict[str, Any]:
    """What ``datasets`` calls the type of each column."""
    return {name: {"feature": {"dtype": COLUMN_TYPES[name], "_type": "Value"}, "_type": "List"} for name in names}


def write_dataset_files(folder: Path, shards: list[str], columns: tuple[str, ...], *, fingerprint: str) -> None:
    """Write the two small files beside Arrow shards that let ``datasets.load_from_disk`` open the folder."""
    info = {"citation": "", "description": "", "features": _features(columns), "homepage": "", "license": ""}
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in shards],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_text(folder / "dataset_info.json", json.dumps(info, indent=2))
    write_text(folder / "state.json", json.dumps(state, indent=2))
