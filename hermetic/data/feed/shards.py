"""The shards of a packed folder, one row at a time.

**Algorithm.** An Arrow shard is mapped into memory and its record batches are found once, by their headers; a row is a
slice of the mapped buffers. Of a Parquet shard the row group that holds the row is decoded.
**Guarantee.** An Arrow row is a read-only view: no byte of it is copied, and pages that nobody looks at are not read.
A shard that is cut short, or holds another number of rows than its manifest says, is an error when it is opened.
**Price.** Arrow: one header for each 1024 rows on first use, then O(1) a row. Parquet: a row group is decoded, and the
last ``_GROUPS_KEPT`` of them are kept, so reading in random order decodes a row group for nearly every row. As with any
mapped file, a process that reads a shard which another one cuts short at that moment is ended by the system (SIGBUS).
"""

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.manifest import PackManifest
from hermetic.errors import PackedDataError

Row: TypeAlias = dict[str, npt.NDArray[Any]]
Views: TypeAlias = dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
"""For each column its values end to end, and where each row's begin and end in them."""

_GROUPS_KEPT: Final = 4
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """A file of rows."""

    path: Path
    rows: int


def list_shards(folder: Path, manifest: PackManifest) -> list[ShardFile]:
    """The files that hold the rows of a packed folder, in order.

    Raises:
        PackedDataError: A file is missing or cut short.
    """
    shards = [ShardFile(path=folder / shard.name, rows=shard.rows) for shard in manifest.shards]
    for shard in shards:
        _check_whole(shard.path)
    return shards


def _check_whole(path: Path) -> None:
    """Look at the last bytes of a file: Arrow streams and Parquet files end in a mark of their own."""
    if not path.is_file():
        raise PackedDataError(f"{path} is missing, expected by the manifest; pack the source again")
    mark = b"PAR1" if path.suffix == ".parquet" else _END_OF_STREAM
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(mark)))
        end = file.read()
    if end != mark:
        raise PackedDataError(
            f"{path} is cut short: its {size} bytes do not end as a whole file does; copy it again or pack the source "
            "again"
        )


class Shard:
    """The rows of one file; opened on first use, and never part of a pickle."""

    def __init__(self, file: ShardFile, columns: tuple[str, ...]) -> None:
        import pyarrow as pa

        self._columns = columns
        try:
            self._open(file.path)
        except (pa.ArrowInvalid, OSError) as error:
            raise PackedDataError(f"{file.path} cannot be read ({error}); pack the source again") from error
        if self.edges[-1] != file.rows:
            raise PackedDataError(
                f"{file.path} holds {self.edges[-1]} rows, expected {file.rows} by its manifest; pack the source again"
            )

    edges: npt.NDArray[np.int64]
    """Rows before each record batch or row group, and in all."""

    def row(self, index: int) -> Row:
        """Row ``index`` of the shard."""
        part = int(np.searchsorted(self.edges, index, side="right")) - 1
        place = index - int(self.edges[part])
        return {
            name: values[edges[place] : edges[place + 1]]
            for name, (values, edges) in self._views(part, self._columns).items()
        }

    def _open(self, path: Path) -> None:
        raise NotImplementedError

    def _views(self, part: int, columns: tuple[str, ...]) -> Views:
        raise NotImplementedError


class ArrowShard(Shard):
    """An Arrow IPC stream, mapped into memory."""

    def _open(self, path: Path) -> None:
        import pyarrow as pa

        table = pa.ipc.open_stream(pa.memory_map(os.fspath(path))).read_all()
        _check_columns(path, table.column_names, self._columns)
        self._chunks = {name: table.column(name).chunks for name in self._columns}
        self.edges = _edges([len(chunk) for chunk in self._chunks[self._columns[0]]])
        self._seen: dict[int, Views] = {}

    def _views(self, part: int, columns: tuple[str, ...]) -> Views:
        if part not in self._seen:
            self._seen[part] = {name: _views_of(self._chunks[name][part]) for name in columns}
        return self._seen[part]


class ParquetShard(Shard):
    """A Parquet file, decoded a row group at a time."""

    def _open(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path)
        _check_columns(path, self._file.schema_arrow.names, self._columns)
        metadata = self._file.metadata
        self.edges = _edges([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
        self._seen: OrderedDict[int, Views] = OrderedDict()

    def _views(self, part: int, columns: tuple[str, ...]) -> Views:
        if part not in self._seen:
            table = self._file.read_row_group(part, columns=list(columns)).combine_chunks()
            self._seen[part] = {name: _views_of(table.column(name).chunk(0)) for name in columns}
        self._seen.move_to_end(part)
        while len(self._seen) > _GROUPS_KEPT:
            self._seen.popitem(last=False)
        return self._seen[part]


def open_shard(file: ShardFile, columns: tuple[str, ...]) -> Shard:
    """Open a shard by what its name ends in."""
    return (ParquetShard if file.path.suffix == ".parquet" else ArrowShard)(file, columns)


def _views_of(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)


def _edges(counts: list[int]) -> npt.NDArray[np.int64]:
    """Example: counts ``[3, 5]`` have the edges ``[0, 3, 8]``."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _check_columns(path: Path, found: list[str], asked: tuple[str, ...]) -> None:
    missing = [name for name in asked if name not in found]
    if missing:
        raise PackedDataError(f"{path} has no column {missing[0]!r}, expected one of: {', '.join(found)}")
