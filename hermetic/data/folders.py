"""Folders that appear complete or not at all.

Algorithm: everything is written into a hidden sibling of the target, which one rename puts in its place.
Guarantee: whoever looks at the target sees nothing or the whole; after an error the sibling is gone. Price:
the target has to be on one file system with its parent, so it cannot be the root of one.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermetic.errors import PackedDataError

__all__ = ["check_free", "followed", "new_folder"]


def followed(target: Path) -> Path:
    """The place that a target names: absolute, behind every link, for a rename would replace the link itself."""
    return Path(os.path.realpath(target))


def check_free(target: Path) -> None:
    """Refuse a target that holds something already, or whose place nothing can take.

    Raises:
        PackedDataError: If ``target`` is a file, a folder with anything in it, the root of a file system, or the folder
            that this process works in.
    """
    if target.is_dir() and not any(target.iterdir()):
        _check_replaceable(target)
    elif target.exists():
        kind = "is a folder that is not empty" if target.is_dir() else "is a file"
        raise PackedDataError(
            f"{target} {kind}, expected a new or an empty folder; choose another name or remove it first"
        )


def _check_replaceable(target: Path) -> None:
    """A rename cannot replace the root of a file system, and would pull the working folder from under its users."""
    mounted = os.path.ismount(followed(target))
    if mounted or target.samefile("."):
        kind = "the root of a file system" if mounted else "the working folder"
        raise PackedDataError(
            f"{target} is {kind}, whose place no other folder can take; expected a folder in it, such as "
            f"{target / 'packed'}"
        )


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write into; it becomes ``target`` when the block ends without an error.

    Raises:
        PackedDataError: If ``target`` is not free.
    """
    check_free(target)
    target = followed(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        yield partial
        partial.replace(target)
    finally:
        if partial.exists():
            shutil.rmtree(partial)
