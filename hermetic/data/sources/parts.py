"""What sources are made of: files, parts of files, and records; plain data that any process can be handed.

Guarantee: a part names its file and a range of whole records, so a task that holds both reads the same records
wherever and whenever it runs, or learns that the file is no longer the same. Price: two calls of ``stat`` a part.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from hermetic.errors import HermeticError, SourceError

__all__ = [
    "MAX_RECORD_BYTES",
    "BadRecord",
    "Kind",
    "Part",
    "Range",
    "SourceFile",
    "SourceRecord",
    "location",
    "opening",
]

MAX_RECORD_BYTES: Final = 64 << 20
"""A line or an array element above this is not a document but a file that lost its line ends; it is never parsed."""

Kind: TypeAlias = Literal["jsonl", "json_array", "parquet", "arrow", "dataset"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file of a source."""

    source: int
    """0-based place of the :class:`SourceSpec` that it belongs to."""

    path: str
    """What a task opens; of a compressed file and of standard input, the unpacked copy."""

    name: str
    """For messages, manifest and provenance: as the user wrote it."""

    kind: Kind

    sha256: str
    """Of the bytes as they lie in the source: of a compressed file the compressed ones, of a folder of ``datasets``
    those of its data files one after the other."""

    size: int
    """Bytes of ``path`` when it was fingerprinted; of a folder, of its data files."""

    mtime_ns: int
    """Of ``path``; of a folder, of the youngest of its data files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A run of whole records of one file."""

    index: int
    """0-based, over all files."""

    file: int
    """Place of the file in the list of files."""

    start: int
    """First byte of a JSONL file or JSON array, first row of a table (0-based)."""

    stop: int
    """The byte or row after the last one."""

    first_number: int
    """1-based line, element or row that the part begins with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Where one part of a file lies; the fields are those of :class:`Part`."""

    start: int
    stop: int
    first_number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """One record as it stands in its file."""

    where: str
    """File and number, as :func:`location` writes it."""

    number: int
    """1-based line of JSONL, element of a JSON array, or row of a table."""

    values: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRecord:
    """The place of a record that cannot be read, and why; the records after it can be."""

    where: str
    number: int
    error: HermeticError
    """A :class:`SourceError` here; ``error.reason`` is a word to count by."""


def location(path: str | os.PathLike[str], number: int) -> str:
    """The place of a record, as compilers write it: ``chats.jsonl:12``."""
    return f"{os.fspath(path)}:{number}"


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Turn what the system says about a file into a :class:`SourceError` that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{name} does not exist, expected a file; check the path", reason="missing") from error
    except OSError as error:
        raise SourceError(
            f"{name} cannot be read: {error.strerror or error}; check its permissions and its disk", reason="unreadable"
        ) from error
