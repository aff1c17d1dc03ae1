"""Records out of a JSONL or Parquet file, one at a time, each with its place in the file.

Algorithm: JSONL is read line by line and each line is parsed alone; Parquet is read in record batches.
Guarantee: every record comes once, in file order, with its 1-based number (line of JSONL, row of Parquet),
and whatever is not a record stops the reading with the place and the reason. Lines of nothing but white space
hold no record and are passed over. Price: one line, or one batch of rows, in memory at a time.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermetic.errors import SourceError

__all__ = ["SourceRecord", "location", "read_records", "sha256_of_file"]

_PARQUET_BATCH_ROWS: Final = 1024
_HASH_BLOCK_BYTES: Final = 1 << 20
_SNIPPET_CHARACTERS: Final = 20
"""Characters shown on each side of the place where a line stops being JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """One record as it stands in its file."""

    where: str
    """File and number, as :func:`location` writes it."""

    number: int
    """1-based line of a JSONL file or row of a Parquet file."""

    values: dict[str, Any]


def location(path: Path, number: int) -> str:
    """The place of a record, as compilers write it: ``chats.jsonl:12``."""
    return f"{path}:{number}"


def read_records(path: str | os.PathLike[str]) -> Iterator[SourceRecord]:
    """Read the records of a ``.jsonl``, ``.json`` (one object a line) or ``.parquet`` file.

    Args:
        path: the file.

    Returns:
        An iterator over the records in file order; the file is opened when the first one is asked for.

    Raises:
        SourceError: If the file is missing, ends otherwise, is empty, or holds something that is not a
            record.
    """
    source = Path(path)
    readers = {".jsonl": _read_jsonl, ".json": _read_jsonl, ".parquet": _read_parquet}
    if source.suffix not in readers:
        raise SourceError(
            f"{source} ends in {source.suffix!r}, expected one of {', '.join(readers)}; "
            "convert it to JSONL (one JSON object a line) or Parquet"
        )
    if not source.is_file():
        kind = "is a folder" if source.is_dir() else "does not exist"
        raise SourceError(f"{source} {kind}, expected a JSONL or Parquet file; check the path")
    return _not_empty(source, readers[source.suffix](source))


def _not_empty(path: Path, records: Iterator[SourceRecord]) -> Iterator[SourceRecord]:
    first = next(records, None)
    if first is None:
        raise SourceError(f"{path} is empty, expected at least one record; check how the file was written")
    yield first
    yield from records


def _read_jsonl(path: Path) -> Iterator[SourceRecord]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                where = location(path, number)
                yield SourceRecord(where=where, number=number, values=_parse_line(line, where))


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{where}: byte {error.start + 1} of the line is not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _SNIPPET_CHARACTERS) : error.pos + _SNIPPET_CHARACTERS].strip()
        raise SourceError(
            f"{where}: malformed JSON, {error.msg} at column {error.colno}, near {near!r}; "
            "expected one complete JSON object on each line"
        ) from error
    except ValueError as error:  # a number with more digits than Python reads
        raise SourceError(f"{where}: {error}; expected numbers of usual size") from error
    if not isinstance(value, dict):
        raise SourceError(
            f"{where}: the line holds a JSON {type(value).__name__}, expected an object; "
            f'write one object such as {{"text": ...}} on each line'
        )
    return value


def _read_parquet(path: Path) -> Iterator[SourceRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield SourceRecord(where=location(path, number), number=number, values=values)
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet after row {number}: {error}; write the file anew"
        ) from error


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal, read block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
