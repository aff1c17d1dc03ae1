"""Sources in, fingerprinted files out, in an order that is always the same.

Algorithm: sources are listed (:mod:`hermetic.data.sources.listing`), then each file is read once for its SHA-256, and
what cannot be cut as it lies is unpacked. Guarantee: the same sources give the same files, so a run that is started
again can tell that nothing changed. Price: one pass over all bytes; the room that unpacked copies take.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hermetic.data.sources.fingerprint import data_files, sha256_of_files, stat_of
from hermetic.data.sources.json_array import first_character
from hermetic.data.sources.listing import STDIN, Listed, list_files
from hermetic.data.sources.parts import Kind, SourceFile, opening
from hermetic.data.sources.spec import SourceSpec
from hermetic.data.sources.spool import ARCHIVES, spool_stdin, unpack
from hermetic.errors import SourceError

__all__ = ["find_files", "fingerprinted"]

_MISTAKEN: Final = {
    b"\x1f\x8b": ("a gzip archive", "add .gz to its name"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard archive", "add .zst to its name"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16", "save it as UTF-8"),
    b"PAR1": ("Parquet", "add .parquet to its name"),
}
"""First bytes of what is taken for JSON by its name and is not, what it is, and the way out."""


def find_files(
    specs: Sequence[SourceSpec], *, spool: Path, on_progress: Callable[[int], None] | None = None
) -> list[SourceFile]:
    """Find and fingerprint the files of all sources.

    Args:
        specs: the sources, at least one.
        spool: a folder of this run, for plain copies of compressed files and of standard input; made when needed.
        on_progress: called with the bytes read so far.

    Returns:
        The files, in the order of ``specs``, those of one source in the order of their names.

    Raises:
        SourceError: If a source stands for no file, for one of no known kind, or for one that is empty, damaged, named
            twice or changing.
        MissingDependencyError: If a source of the hub is named and ``datasets`` is not installed.

    Example:
        ``find_files([parse_source("chats/*.jsonl.gz@0.5")], spool=Path("run/spool"))``
    """
    if not specs:
        raise SourceError("no source is named, expected at least one; name a file", reason="missing")
    progress = _Progress(report=on_progress)
    return [fingerprinted(file, spool=spool, on_block=progress.add) for file in list_files(specs)]


@dataclass(kw_only=True, slots=True)
class _Progress:
    """Bytes read so far, reported as they grow."""

    report: Callable[[int], None] | None
    done: int = 0

    def add(self, size: int) -> None:
        self.done += size
        if self.report is not None:
            self.report(self.done)


def fingerprinted(file: Listed, *, spool: Path, on_block: Callable[[int], None]) -> SourceFile:
    """Read a listed file once and say what it is.

    Raises:
        SourceError: As :func:`find_files`.
    """
    if file.path == STDIN:
        path, sha256 = spool_stdin(spool, name=file.name, on_progress=on_block)
    else:
        path = Path(file.path)
        sha256 = _sha256(file, on_block)
        if path.suffix in ARCHIVES:
            path = unpack(path, file.name, sha256=sha256, spool=spool)
    size, mtime_ns = stat_of(data_files(str(path), file.name))
    return SourceFile(
        source=file.source,
        path=str(path.absolute()),
        name=file.name,
        kind=_kind(file, path),
        sha256=sha256,
        size=size,
        mtime_ns=mtime_ns,
    )


def _sha256(file: Listed, on_block: Callable[[int], None]) -> str:
    paths = data_files(file.path, file.name)
    with opening(file.name):
        before = stat_of(paths)
        sha256 = sha256_of_files(paths, on_progress=on_block)
        after = stat_of(paths)
    if before != after:
        raise SourceError(
            f"{file.name} changed while it was fingerprinted, {before[0]} bytes before and {after[0]} after; expected "
            "a file that nothing writes to; wait for its writer and start again",
            reason="changed_file",
        )
    return sha256


def _kind(file: Listed, path: Path) -> Kind:
    """The kind of a file; of JSON by what it holds."""
    if file.kind != "jsonl":
        return file.kind
    with path.open("rb") as stream:
        start = stream.read(4)
        character = first_character(stream)[1]
    for magic, (found, way_out) in _MISTAKEN.items():
        if start.startswith(magic):
            raise SourceError(f"{file.name} is {found}, expected JSON; {way_out}", reason="unknown_kind")
    if not character:
        raise SourceError(
            f"{file.name} is empty, expected at least one record; check how the file was written", reason="empty_file"
        )
    return "json_array" if file.may_be_array and character == b"[" else "jsonl"
