"""Rows as Parquet, with every column that the packed folder has.

Columns: those that :mod:`hermetic.data.pack` describes, unchanged: lists of int32 or int64. Labels are unshifted, -100
on each document's first token. Rows have no padding and no tail. Files ``rows-00000-of-0000N.parquet`` of at most
65,536 rows, in row groups of at most 1,024, compressed with zstd.

    documents [5, 6, 7] and [8, 9] of records 1 and 2, 6, 7 and 9 supervised:
    input_ids [5, 6, 7, 8, 9], labels [-100, 6, 7, -100, 9], seq_lengths [3, 2], document_ids [0, 1]
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from hermetic.data.blocks import ROWS_AT_ONCE
from hermetic.data.packed import PackedData

__all__ = ["write", "write_files"]

BLOCKS_PER_FILE: Final = 64


def write(packed: PackedData, folder: Path, on_rows: Callable[[int], None]) -> None:
    """Write the rows in this form."""
    tables = packed.dataset.with_format("arrow").iter(batch_size=ROWS_AT_ONCE)
    write_files(tables, folder, "rows-{index:05d}-of-{count:05d}.parquet", rows=len(packed), on_rows=on_rows)


def write_files(tables: Iterable[Any], folder: Path, name: str, *, rows: int, on_rows: Callable[[int], None]) -> None:
    """Write Arrow tables of a thousand rows, each as a row group, 64 of them to a file.

    Args:
        tables: of at most ``ROWS_AT_ONCE`` rows, all of one schema, all but the last of just so many.
        folder: for the files.
        name: of a file, with the fields ``index`` and ``count``.
        rows: of all tables together.
        on_rows: called with the number of rows written so far.
    """
    import pyarrow.parquet as pq

    count = -(-rows // (ROWS_AT_ONCE * BLOCKS_PER_FILE))
    done = 0
    with ExitStack() as files:
        for block, table in enumerate(_plain(tables)):
            if block % BLOCKS_PER_FILE == 0:
                files.close()
                path = folder / name.format(index=block // BLOCKS_PER_FILE, count=count)
                writer = files.enter_context(pq.ParquetWriter(path, table.schema, compression="zstd"))
            writer.write_table(table)
            done += table.num_rows
            on_rows(done)


def _plain(tables: Iterable[Any]) -> Iterator[Any]:
    """Without what ``datasets`` notes in a schema, which would call the files a part of another data set."""
    for table in tables:
        yield table.replace_schema_metadata(None)
