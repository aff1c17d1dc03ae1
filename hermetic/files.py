"""Whole files or none: what is written appears under its name complete, or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """Open a sibling of ``target`` that takes its place at the end, or vanishes if anything fails."""
    sibling = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with sibling.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sibling.replace(target)
    finally:
        sibling.unlink(missing_ok=True)


def is_plain_name(name: str) -> bool:
    """Whether ``name`` is that of a file in a folder, and no path that leads elsewhere, on any system."""
    return name == Path(name).name and "\\" not in name and name not in {"", ".", ".."}


def remove_unfinished(folder: Path) -> None:
    """Remove from ``folder`` what a process that was killed had not finished to write."""
    for sibling in folder.glob(".*.tmp"):
        sibling.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))
