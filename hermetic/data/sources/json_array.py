"""A file that is one JSON array of objects, as chat exports are.

Algorithm: a compiled scanner goes over the bytes once and finds the commas between the elements; a part begins behind
such a comma, where reading it starts in the same state, so each element is parsed alone and the file is never whole in
memory. Guarantee: every element is a record or a BadRecord with its number and byte. Where the end of an element cannot
be found, what follows it cannot be told into records either: then the file is refused as a whole, and only an element
that the end of the file cuts off is one bad record. Price: one pass to cut, one element in memory to read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from hermetic.data.sources.json_lines import BOM
from hermetic.data.sources.json_text import completeness, parse_object
from hermetic.data.sources.parts import MAX_RECORD_BYTES, BadRecord, Part, Range, SourceFile, SourceRecord, location
from hermetic.data.sources.scan import find_separators, start_state
from hermetic.errors import SourceError

__all__ = ["first_character", "read_elements", "split_elements"]

_BLOCK_BYTES: Final = 1 << 20


def first_character(stream: BinaryIO, position: int = 0) -> tuple[int, bytes]:
    """Find the first byte at or after ``position`` that is no white space; ``b""`` and the end if there is none."""
    stream.seek(position)
    while block := stream.read(_BLOCK_BYTES):
        if position == 0 and block.startswith(BOM):
            block, position = block[len(BOM) :], len(BOM)
        if rest := block.lstrip():
            return position + len(block) - len(rest), rest[:1]
        position += len(block)
    return position, b""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Bytes of an array and where in them elements end."""

    position: int
    """Of the first byte, in the file."""

    content: bytes
    ends: list[int]
    """Places in ``content`` of the commas between elements and of the bracket that closes the array."""

    closed: bool
    """The last of ``ends`` is that bracket."""


def _blocks(stream: BinaryIO, start: int, stop: int) -> Iterator[_Block]:
    """Scan ``start`` to ``stop``, which begins between two elements, as far as the array reaches."""
    state, found = start_state(), np.empty(_BLOCK_BYTES, np.int64)
    stream.seek(start)
    while start < stop and state[0] > 0 and (content := stream.read(min(_BLOCK_BYTES, stop - start))):
        count = find_separators(np.frombuffer(content, np.uint8), state, found)
        yield _Block(position=start, content=content, ends=found[:count].tolist(), closed=bool(state[0] == 0))
        start += len(content)


def split_elements(file: SourceFile, *, part_bytes: int) -> Iterator[Range]:
    """Cut an array behind the first comma between elements at or after every ``part_bytes`` bytes.

    Raises:
        SourceError: If something follows the array, or an element has no end that can be found.
    """
    with Path(file.path).open("rb") as stream:
        begin = last = first_character(stream)[0] + 1  # of the part; behind the last separator
        number = first = 1  # of the element that comes; of the part
        closed = False
        for block in _blocks(stream, begin, file.size):
            for end in block.ends:
                last, number = block.position + end + 1, number + 1
                if last - begin >= part_bytes and last < file.size and not (block.closed and end == block.ends[-1]):
                    yield Range(start=begin, stop=last, first_number=first)
                    begin, first = last, number
            closed = block.closed
        if closed:
            _refuse_content_after(file, stream, last)
        else:
            _refuse_endless(file, stream, last, number)
        if number != 2 or not closed or first_character(stream, begin)[1] != b"]":  # "[ ]" has no element
            yield Range(start=begin, stop=file.size, first_number=first)


def _refuse_content_after(file: SourceFile, stream: BinaryIO, end: int) -> None:
    place, character = first_character(stream, end)
    if character:
        raise SourceError(
            f"{file.name}: the array ends at byte {end} of {file.size} and {character!r} follows at byte {place + 1}; "
            "expected one array; write each array to a file of its own, or remove the bracket too many",
            reason="trailing_content",
        )


def _refuse_endless(file: SourceFile, stream: BinaryIO, start: int, number: int) -> None:
    """Refuse a file whose last element is neither whole nor cut off: it may have swallowed any number of records."""
    size = file.size - start
    stream.seek(start)
    if size > MAX_RECORD_BYTES or completeness(stream.read(size)) == "malformed":
        raise SourceError(
            f"{location(file.name, number)}: the end of this element, which begins at byte {start + 1}, cannot be "
            f"found in the {size} bytes up to the end of the file: a quote or a bracket in it has no partner; "
            "expected complete JSON objects; repair the element",
            reason="endless_element",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Element:
    """What stands between two separators."""

    position: int
    """Of its first byte, in the file."""

    size: int
    content: bytes
    """Empty if ``size`` is above MAX_RECORD_BYTES."""

    number: int
    ended: bool
    """A separator follows, and not the end of the file."""

    last: bool
    """The separator is the bracket that closes the array."""


def _elements(file: SourceFile, part: Part) -> Iterator[_Element]:
    number, position, size = part.first_number, part.start, 0
    held = bytearray()
    with Path(file.path).open("rb") as stream:
        for block in _blocks(stream, part.start, part.stop):
            done = 0
            for end in block.ends:
                size += end - done
                content = bytes(held) + block.content[done:end] if size <= MAX_RECORD_BYTES else b""
                last = block.closed and end == block.ends[-1]
                yield _Element(position=position, size=size, content=content, number=number, ended=True, last=last)
                position, number, done, size = position + size + 1, number + 1, end + 1, 0
                held.clear()
            size += len(block.content) - done
            if size <= MAX_RECORD_BYTES:
                held += block.content[done:]
            else:
                held.clear()
            if block.closed:
                return
    if part.stop == file.size:
        yield _Element(position=position, size=size, content=bytes(held), number=number, ended=False, last=True)


def read_elements(file: SourceFile, part: Part) -> Iterator[SourceRecord | BadRecord]:
    """Read the records of a part, each with the number of its element."""
    for element in _elements(file, part):
        blank = element.size <= MAX_RECORD_BYTES and not element.content.strip()
        if blank and element.ended and element.last and element.number == 1:
            return  # nothing stands between the brackets
        whole = element.ended or completeness(element.content) == "whole"
        if whole:
            yield _record(file, element, blank=blank)
        if not element.ended:
            yield _torn(file, element.number + int(whole), element)


def _record(file: SourceFile, element: _Element, *, blank: bool) -> SourceRecord | BadRecord:
    number, where = element.number, location(file.name, element.number)
    if blank or element.size > MAX_RECORD_BYTES:
        error = _nothing(where, element) if blank else _too_long(where, element)
        return BadRecord(where=where, number=number, error=error)
    try:
        place = f"{where} (from byte {element.position + 1})"
        return SourceRecord(where=where, number=number, values=parse_object(element.content, place, what="element"))
    except SourceError as error:
        return BadRecord(where=where, number=number, error=error)


def _nothing(where: str, element: _Element) -> SourceError:
    return SourceError(
        f"{where}: nothing stands before the separator at byte {element.position + element.size + 1}, expected an "
        "object; remove the comma"
    )


def _too_long(where: str, element: _Element) -> SourceError:
    return SourceError(
        f"{where}: the element that begins at byte {element.position + 1} has {element.size} bytes, expected at most "
        f"{MAX_RECORD_BYTES}; split or remove the record",
        reason="too_long",
    )


def _torn(file: SourceFile, number: int, element: _Element) -> BadRecord:
    where = location(file.name, number)
    error = SourceError(
        f"{where}: the file ends at byte {file.size} before its array does; its last element begins at byte "
        f"{element.position + 1}; expected a closing bracket; copy the file anew",
        reason="truncated_file",
    )
    return BadRecord(where=where, number=number, error=error)
