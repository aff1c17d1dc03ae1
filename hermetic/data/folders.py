"""Folders that appear complete or not at all.

Algorithm: everything is written into a hidden sibling of the target, which one rename puts in its place.
Guarantee: whoever looks at the target sees nothing or the whole; after an error the sibling is gone. Price:
the target has to be on one file system with its parent, which it is.
"""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermetic.errors import PackedDataError

__all__ = ["check_free", "new_folder"]


def check_free(target: Path) -> None:
    """Refuse a target that holds something already.

    Raises:
        PackedDataError: If ``target`` is a file or a folder with anything in it.
    """
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        kind = "is a folder that is not empty" if target.is_dir() else "is a file"
        raise PackedDataError(
            f"{target} {kind}, expected a new or an empty folder; choose another name or remove it first"
        )


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write into; it becomes ``target`` when the block ends without an error.

    Raises:
        PackedDataError: If ``target`` holds something already.
    """
    check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        yield partial
        partial.replace(target)
    finally:
        if partial.exists():
            shutil.rmtree(partial)
