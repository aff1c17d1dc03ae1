"""Files into parts, and parts into records.

Algorithm: each kind of file has a function that cuts it into ranges and one that reads a range. Guarantee: the parts of
a file hold each of its records once and in order, however large they are; reading a part gives the same records in any
process; a file that changes meanwhile is an error, before what the change broke is taken for a bad record. Price: one
pass over JSON to cut it, the footer of Parquet, the headers of Arrow; a record, or a batch of rows, in memory to read.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from hermetic.data.sources.files import fingerprinted
from hermetic.data.sources.fingerprint import refuse_change
from hermetic.data.sources.json_array import read_elements, split_elements
from hermetic.data.sources.json_lines import read_lines, split_lines
from hermetic.data.sources.listing import Listed, list_path
from hermetic.data.sources.parts import BadRecord, Part, SourceFile, SourceRecord, opening
from hermetic.data.sources.tables import read_rows, split_rows
from hermetic.errors import SourceError

__all__ = ["PART_BYTES", "read_part", "read_records", "split_into_parts"]

PART_BYTES: Final = 16 << 20

_SPLITTERS: Final = {
    "jsonl": split_lines,
    "json_array": split_elements,
    "parquet": split_rows,
    "arrow": split_rows,
    "dataset": split_rows,
}
_READERS: Final[dict[str, Callable[[SourceFile, Part], Iterator[SourceRecord | BadRecord]]]] = {
    "jsonl": read_lines,
    "json_array": read_elements,
    "parquet": read_rows,
    "arrow": read_rows,
    "dataset": read_rows,
}


def split_into_parts(files: Sequence[SourceFile], *, part_bytes: int = PART_BYTES) -> list[Part]:
    """Cut files into runs of whole records.

    Args:
        files: what :func:`hermetic.data.sources.find_files` gave.
        part_bytes: about how many bytes a part holds, at least 1; a single record may hold more.

    Returns:
        The parts of all files, numbered from 0 in the order of ``files``; each file has at least one.

    Raises:
        SourceError: If a file is empty, damaged in a way that hides where its records end, or changed.

    Example:
        A JSONL file of three lines of 10 bytes, ``part_bytes=15``: bytes 0 to 20, beginning with line 1, and 20 to 30,
        beginning with line 3.
    """
    parts: list[Part] = []
    for place, file in enumerate(files):
        refuse_change(file)
        before = len(parts)
        with opening(file.name):
            for range_ in _SPLITTERS[file.kind](file, part_bytes=part_bytes):
                part = Part(
                    index=len(parts),
                    file=place,
                    start=range_.start,
                    stop=range_.stop,
                    first_number=range_.first_number,
                )
                parts.append(part)
        if len(parts) == before:
            raise SourceError(
                f"{file.name} is empty, expected at least one record; check how the file was written",
                reason="empty_file",
            )
        refuse_change(file)
    return parts


def read_part(file: SourceFile, part: Part) -> Iterator[SourceRecord | BadRecord]:
    """Read the records of one part.

    Args:
        file: the file that ``part.file`` points to.
        part: one of its parts.

    Returns:
        An iterator over the part in file order: each record, or what is wrong with it and where.

    Raises:
        SourceError: While iterating, if the file changed since it was fingerprinted, or a table is damaged.
    """
    refuse_change(file)
    with opening(file.name):
        for record in _READERS[file.kind](file, part):
            if isinstance(record, BadRecord):
                refuse_change(file)
            yield record
    refuse_change(file)


def read_records(path: str | os.PathLike[str]) -> Iterator[SourceRecord]:
    """Read all records of one file, or of one folder that ``datasets`` saved.

    Args:
        path: JSONL, a JSON array, Parquet or Arrow, the first two perhaps compressed.

    Returns:
        An iterator over the records in file order; the file is read when the first one is asked for.

    Raises:
        SourceError: If the file is missing, of no known kind or empty; while iterating, at the first thing that is not
            a record.
    """
    return _records_of(list_path(os.fspath(path), source=0))


def _records_of(listed: Listed) -> Iterator[SourceRecord]:
    with tempfile.TemporaryDirectory(prefix="hermetic-") as spool:
        file = fingerprinted(listed, spool=Path(spool), on_block=lambda _: None)
        for part in split_into_parts([file]):
            for record in read_part(file, part):
                if isinstance(record, BadRecord):
                    raise record.error
                yield record
