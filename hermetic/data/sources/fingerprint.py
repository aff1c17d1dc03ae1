"""What identifies a file: its bytes, and cheaply its size and time of modification.

Guarantee: a file of another size or time than the fingerprinted one is not read. Price: one pass over the bytes once,
a call of ``stat`` each time.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from hermetic.data.sources.parts import SourceFile, opening
from hermetic.errors import SourceError
from hermetic.files import is_plain_name

__all__ = ["data_files", "refuse_change", "sha256_of_file", "sha256_of_files", "stat_of"]

_BLOCK_BYTES: Final = 1 << 20
_STATE: Final = "state.json"


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal, read block by block."""
    return sha256_of_files([path])


def sha256_of_files(paths: Iterable[Path], *, on_progress: Callable[[int], None] | None = None) -> str:
    """The SHA-256 of all files one after the other; ``on_progress`` is called with the bytes of each block."""
    digest = hashlib.sha256()
    block = bytearray(_BLOCK_BYTES)
    view = memoryview(block)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(block):
                digest.update(view[:size])
                if on_progress is not None:
                    on_progress(size)
    return digest.hexdigest()


def stat_of(paths: Iterable[Path]) -> tuple[int, int]:
    """Bytes of all files together, and the time of the youngest in nanoseconds."""
    states = [path.stat() for path in paths]
    return sum(state.st_size for state in states), max(state.st_mtime_ns for state in states)


def data_files(path: str, name: str) -> list[Path]:
    """Return the files that hold the records of ``path``: itself, or the Arrow files of a folder of ``datasets``.

    Raises:
        SourceError: If the folder has no list of its files.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    try:
        state = json.loads((folder / _STATE).read_text("utf-8"))
        names = [entry["filename"] for entry in state["_data_files"]]
        outside = next((name for name in names if not is_plain_name(name)), None)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{name}: its {_STATE} does not list data files ({error!r}), expected a folder that save_to_disk of "
            "datasets wrote; save it anew",
            reason="corrupt_file",
        ) from error
    if outside is not None:
        raise SourceError(
            f"{name}: its {_STATE} names the data file {outside!r}, expected names of files in the folder itself; "
            "save it anew",
            reason="corrupt_file",
        )
    if not names:
        raise SourceError(f"{name} has no data files, expected at least one record; save it anew", reason="empty_file")
    return [folder / file for file in names]


def refuse_change(file: SourceFile) -> None:
    """Stop if ``file`` is no longer the one that was fingerprinted.

    Raises:
        SourceError: If its size or its time of modification differ, or it is gone.
    """
    with opening(file.name):
        found = stat_of(data_files(file.path, file.name))
    if found != (file.size, file.mtime_ns):
        raise SourceError(
            f"{file.name} changed after it was fingerprinted: {file.size} bytes then, {found[0]} now; expected a file "
            "that nothing writes to; wait for its writer and start again",
            reason="changed_file",
        )
