"""Plain copies of what cannot be cut into parts as it lies: compressed files and standard input.

Algorithm: a copy is named by the SHA-256 of the bytes it was made from and put in place whole. Guarantee: a run that is
started again finds the copies of the run before it and makes none twice; an archive that ends too early or is damaged
leaves none. Price: the unpacked bytes on disk, and one more pass over the packed ones.
"""

import gzip
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from hermetic.errors import SourceError
from hermetic.files import replacing

__all__ = ["ARCHIVES", "spool_stdin", "unpack"]

_BLOCK_BYTES: Final = 1 << 20


def _open_gzip(path: Path) -> Any:
    return gzip.open(path, "rb")


def _open_zstandard(path: Path) -> Any:
    return pa.input_stream(str(path), compression="zstd", buffer_size=_BLOCK_BYTES)


ARCHIVES: Final[dict[str, Callable[[Path], Any]]] = {".gz": _open_gzip, ".zst": _open_zstandard}
"""How to open each kind of compressed file, by the end of its name."""


def unpack(path: Path, name: str, *, sha256: str, spool: Path) -> Path:
    """Unpack a compressed file into ``spool``.

    Args:
        path: ends in one of :data:`ARCHIVES`.
        name: for messages.
        sha256: of the compressed bytes.
        spool: the folder of the copies, made if it is missing.

    Returns:
        The copy, or the one that is already there.

    Raises:
        SourceError: If the archive is damaged or ends too early.
    """
    target = spool / f"{sha256}{Path(path.stem).suffix}"
    if not target.exists():
        with _copying(name, spool), replacing(target) as copy:
            for block in _unpacked(path, name):
                copy.write(block)
    return target


def _unpacked(path: Path, name: str) -> Iterator[bytes]:
    try:
        with ARCHIVES[path.suffix](path) as archive:
            while block := archive.read(_BLOCK_BYTES):
                yield block
    except (EOFError, zlib.error, OSError) as error:
        raise SourceError(
            f"{name} cannot be unpacked: {error}; expected a complete archive; copy or compress it anew",
            reason="corrupt_file",
        ) from error


def spool_stdin(spool: Path, *, name: str, on_progress: Callable[[int], None]) -> tuple[Path, str]:
    """Copy standard input into ``spool``.

    Returns:
        The copy and its SHA-256.

    Raises:
        SourceError: If nothing is piped in.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise SourceError(f"{name} is a terminal, expected records; pipe a file in", reason="missing")
    digest, first = hashlib.sha256(), spool / "stdin"
    with _copying(name, spool), replacing(first) as copy:
        while block := sys.stdin.buffer.read(_BLOCK_BYTES):
            digest.update(block)
            copy.write(block)
            on_progress(len(block))
    target = spool / f"{digest.hexdigest()}.stdin"
    if target.exists():
        first.unlink()  # a run that is started again keeps the copy that it knows
    else:
        first.replace(target)
    return target, digest.hexdigest()


@contextmanager
def _copying(name: str, spool: Path) -> Iterator[None]:
    try:
        spool.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise SourceError(
            f"{name} cannot be unpacked into {spool}: {error.strerror or error}; expected room for its plain copy "
            "there; make room, or unpack the file yourself",
            reason="spool",
        ) from error
