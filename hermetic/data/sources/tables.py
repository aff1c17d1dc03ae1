"""Rows of Parquet files, of Arrow IPC files and streams, and of folders that ``datasets`` saved.

Algorithm: a part is a range of rows, cut where row groups and record batches end; a large one is cut inside, into
16 at most, for what stands before a row in its row group has to be decoded to reach it. Arrow is mapped into memory, so
passing over a batch costs nothing; a folder of ``datasets`` is its Arrow files one after the other, read
without that package. Guarantee: every row once, with its number, or an error; a column that occurs twice is refused, an
Arrow batch is validated before it is read, a stream without an end marker is refused, for its writer never finished.
Price: a batch of rows in memory at a time. A mapped file that is truncated while it is read ends the process.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from hermetic.data.sources.fingerprint import data_files
from hermetic.data.sources.parts import BadRecord, Part, Range, SourceFile, SourceRecord, location
from hermetic.data.sources.table_rows import Row, check_schema, rows_of
from hermetic.errors import SourceError

__all__ = ["read_rows", "split_rows"]

_SLICES: Final = 16
_ROWS_AT_ONCE: Final = 1024
_BYTES_AT_ONCE: Final = 4 << 20
_FILE_MAGIC: Final = b"ARROW1"
_STREAM_ENDS: Final = (b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")
"""End of an Arrow stream, as it is written today and as it was before version 0.15."""


_DAMAGE: Final = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises over a file that is not what it says it is."""


def _damaged(file: SourceFile, after: int, cause: Exception) -> SourceError:
    return SourceError(
        f"{file.name} cannot be read as a table after row {after}: {cause}; write or copy the file anew",
        reason="corrupt_file",
    )


def split_rows(file: SourceFile, *, part_bytes: int) -> Iterator[Range]:
    """Cut a table into ranges of rows of about ``part_bytes`` bytes.

    Raises:
        SourceError: If the file is damaged or has a column twice.
    """
    try:
        chunks = list(_row_groups(file) if file.kind == "parquet" else _batch_sizes(file))
    except _DAMAGE as error:
        raise _damaged(file, 0, error) from error
    start = stop = held = 0
    for rows, size in chunks:
        if held and held + size > part_bytes:
            yield Range(start=start, stop=stop, first_number=start + 1)
            start, held = stop, 0
        pieces = max(1, min(-(-size // part_bytes), rows, _SLICES))
        for piece in range(1, pieces):
            cut = stop + rows * piece // pieces
            yield Range(start=start, stop=cut, first_number=start + 1)
            start = cut
        stop, held = stop + rows, size // pieces if pieces > 1 else held + size
    if start < stop:
        yield Range(start=start, stop=stop, first_number=start + 1)


def read_rows(file: SourceFile, part: Part) -> Iterator[SourceRecord | BadRecord]:
    """Read the rows of a part, each with its number.

    Raises:
        SourceError: If the file is damaged, or ends before the part does.
    """
    batches = _parquet_batches(file, part) if file.kind == "parquet" else _arrow_batches(file, part)
    number = part.start
    try:
        for batch in batches:
            for row in rows_of(batch):
                number += 1
                yield _record(file, number, row)
    except _DAMAGE as error:
        raise _damaged(file, number, error) from error
    if number != part.stop:
        raise SourceError(
            f"{file.name} ends after row {number}, expected rows up to {part.stop}; write or copy the file anew",
            reason="truncated_file",
        )


def _record(file: SourceFile, number: int, row: Row) -> SourceRecord | BadRecord:
    where = location(file.name, number)
    if isinstance(row, dict):
        return SourceRecord(where=where, number=number, values=row)
    text = isinstance(row, UnicodeDecodeError)
    error = SourceError(
        f"{where}: {'a text of the row is not UTF-8' if text else 'a value of the row cannot be read'} ({row}); "
        "write the column anew",
        reason="not_utf8" if text else "malformed",
    )
    return BadRecord(where=where, number=number, error=error)


def _row_groups(file: SourceFile) -> Iterator[tuple[int, int]]:
    """Rows and unpacked bytes of each row group."""
    with _parquet(file) as table:
        check_schema(table.schema_arrow, file.name)
        for index in range(table.num_row_groups):
            group = table.metadata.row_group(index)
            yield group.num_rows, group.total_byte_size


def _parquet(file: SourceFile) -> Any:
    return pq.ParquetFile(file.path, page_checksum_verification=True)


def _parquet_batches(file: SourceFile, part: Part) -> Iterator[pa.RecordBatch]:
    with _parquet(file) as table:
        first = 0
        for index in range(table.num_row_groups):
            group = table.metadata.row_group(index)
            if first < part.stop and first + group.num_rows > part.start:
                rows = rows_at_once(group.num_rows, group.total_byte_size)
                yield from _within(table.iter_batches(batch_size=rows, row_groups=[index]), first, part)
            first += group.num_rows


def _within(batches: Iterable[pa.RecordBatch], first: int, part: Part) -> Iterator[pa.RecordBatch]:
    """Give the rows of a part out of batches that begin with row ``first``."""
    for batch in batches:
        begin, end = max(part.start - first, 0), min(part.stop - first, len(batch))
        if begin < end:
            yield batch.slice(begin, end - begin)
        first += len(batch)
        if first >= part.stop:
            return


def _batch_sizes(file: SourceFile) -> Iterator[tuple[int, int]]:
    """Rows and bytes of each record batch."""
    for path in data_files(file.path, file.name):
        with _arrow(path, file.name) as (schema, batches):
            check_schema(schema, file.name)
            for batch in batches:
                yield len(batch), batch.get_total_buffer_size()  # nbytes would follow offsets not yet validated


def _arrow_batches(file: SourceFile, part: Part) -> Iterator[pa.RecordBatch]:
    for batch in _within(_all_batches(file), 0, part):
        batch.validate(full=True)  # else an offset that points elsewhere would be followed
        rows = rows_at_once(len(batch), batch.nbytes)
        for start in range(0, len(batch), rows):
            yield batch.slice(start, rows)


def _all_batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    for path in data_files(file.path, file.name):
        with _arrow(path, file.name) as (_, batches):
            yield from batches


@contextmanager
def _arrow(path: Path, name: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open an Arrow IPC file or stream, whichever it is."""
    with pa.memory_map(str(path)) as mapped:
        is_file = mapped.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        mapped.seek(0)
        if is_file:
            table = pa.ipc.open_file(mapped)
            yield table.schema, (table.get_batch(index) for index in range(table.num_record_batches))
        else:
            table = pa.ipc.open_stream(mapped)
            yield table.schema, _stream(table, mapped, name)


def _stream(table: pa.RecordBatchReader, mapped: pa.MemoryMappedFile, name: str) -> Iterator[pa.RecordBatch]:
    """Give the batches of a stream, which has to end as its writer ends it: Arrow takes any end of the file for one."""
    end = mapped.tell()
    for batch in table:
        end = mapped.tell()
        yield batch
    mapped.seek(end)
    rest = mapped.read()
    if rest not in _STREAM_ENDS:
        raise SourceError(
            f"{name}: after the last batch of the Arrow stream come {len(rest)} bytes, expected the end marker that "
            "its writer leaves when it closes, and nothing else; write or copy the file anew",
            reason="trailing_content" if len(rest) > len(_STREAM_ENDS[0]) else "truncated_file",
        )


def rows_at_once(rows: int, size: int) -> int:
    """How many rows of ``size`` bytes together are turned into Python values at once."""
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * rows // max(1, size)))
