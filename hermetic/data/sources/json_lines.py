"""JSONL: one JSON object a line.

Algorithm: a file is cut at the first line end behind every ``part_bytes`` bytes; line ends are counted by NumPy in
blocks that stay in cache. Files are read, not mapped: what vanishes under a mapping ends the process, what vanishes
under a read is an error. Guarantee: every byte lies in one part and every line in one part; lines of white space hold
no record and count as lines; a line above MAX_RECORD_BYTES is reported with its size and never held. Price: one pass
to cut, one line in memory to read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from hermetic.data.sources.json_text import completeness, parse_object
from hermetic.data.sources.parts import MAX_RECORD_BYTES, BadRecord, Part, Range, SourceFile, SourceRecord, location
from hermetic.errors import SourceError

__all__ = ["BOM", "read_lines", "split_lines"]

BOM: Final = b"\xef\xbb\xbf"
_BLOCK_BYTES: Final = 1 << 20
_LINE_END: Final = ord("\n")


def split_lines(file: SourceFile, *, part_bytes: int) -> Iterator[Range]:
    """Cut a JSONL file behind the first line end at or after every ``part_bytes`` bytes."""
    start, number = 0, 1
    lines = 0  # line ends in the part so far
    position = 0
    block = bytearray(_BLOCK_BYTES)
    with Path(file.path).open("rb", buffering=0) as stream:
        while size := stream.readinto(block):
            done = 0
            while (cut := block.find(b"\n", max(done, start + part_bytes - 1 - position), size)) >= 0:
                stop, lines = position + cut + 1, lines + _line_ends(block, done, cut + 1)
                yield Range(start=start, stop=stop, first_number=number)
                start, number, lines, done = stop, number + lines, 0, cut + 1
            lines += _line_ends(block, done, size)
            position += size
    if start < position:
        yield Range(start=start, stop=position, first_number=number)


def _line_ends(block: bytearray, start: int, stop: int) -> int:
    return int(np.count_nonzero(np.frombuffer(block, np.uint8, stop - start, start) == _LINE_END))


def read_lines(file: SourceFile, part: Part) -> Iterator[SourceRecord | BadRecord]:
    """Read the records of a part, each with its line."""
    position, number = part.start, part.first_number
    with Path(file.path).open("rb") as stream:
        stream.seek(part.start)
        while position < part.stop and (line := stream.readline(MAX_RECORD_BYTES + 1)):
            size = len(line)
            if size > MAX_RECORD_BYTES and not line.endswith(b"\n"):
                size += _rest_of_line(stream)
                yield _too_long(file, number, size)
            elif record := _record(file, line.removeprefix(BOM) if position == 0 else line, number, position + size):
                yield record
            position += size
            number += 1


def _rest_of_line(stream: BinaryIO) -> int:
    """Pass over the rest of a line; returns its bytes."""
    size = 0
    while piece := stream.readline(_BLOCK_BYTES):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


def _record(file: SourceFile, line: bytes, number: int, end: int) -> SourceRecord | BadRecord | None:
    if not line or line.isspace():
        return None
    where = location(file.name, number)
    try:
        return SourceRecord(where=where, number=number, values=parse_object(line.rstrip(b"\r\n"), where, what="line"))
    except SourceError as error:
        torn = end == file.size and not line.endswith(b"\n") and completeness(line) == "cut off"
        return BadRecord(where=where, number=number, error=_torn(where, line, end) if torn else error)


def _torn(where: str, line: bytes, end: int) -> SourceError:
    return SourceError(
        f"{where}: the file ends at byte {end} in the middle of this line, {len(line)} bytes after it began; expected "
        "a complete JSON object; copy the file anew, or remove the line",
        reason="truncated_file",
    )


def _too_long(file: SourceFile, number: int, size: int) -> BadRecord:
    where = location(file.name, number)
    error = SourceError(
        f"{where}: the line has {size} bytes, expected at most {MAX_RECORD_BYTES}; check that the file has line ends, "
        "and split or remove the record",
        reason="too_long",
    )
    return BadRecord(where=where, number=number, error=error)
