"""A plan on disk: one ``.npz`` file with a JSON header and integer arrays, no pickle.

**Guarantee.** Written to a sibling file, flushed, then renamed: a reader sees the old file or the new one,
never a half. The same plan gives the same bytes. Reading executes nothing, and a damaged, foreign or newer
file is a ``PlanFileError``; whether the content is a sound plan is the plan's own check.
**Price.** Uncompressed: 4 bytes for each document, each placed piece and each row, and 12 for each fragment.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from hermetic.errors import PlanFileError
from hermetic.files import replacing
from hermetic.plan.arrays import IntArray, frozen

FORMAT: Final = "hermetic.plan"
VERSION: Final = 2

# What zipfile, NumPy and json raise on bytes that are damaged or never were a plan.
_DAMAGE: Final = (ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile)


def write(path: str | os.PathLike[str], fields: Mapping[str, Any], arrays: Mapping[str, IntArray]) -> None:
    """Write JSON ``fields`` and ``arrays`` to ``path``, all or nothing."""
    header = json.dumps({"format": FORMAT, "version": VERSION, **fields})
    members: dict[str, Any] = {"header": np.array(header), **arrays}
    target = Path(path)
    try:
        with replacing(target) as file:
            np.savez(file, **members)
    except OSError as error:
        raise PlanFileError(
            f"cannot write a plan to {target}: {error.strerror or error}. Nothing was written; "
            "choose a folder that exists and has room"
        ) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields and the arrays that ``write`` was given."""
    target = Path(path)
    try:
        with target.open("rb") as file:
            members = _members(file)
            header = json.loads(str(members.pop("header")))
    except OSError as error:
        raise PlanFileError(f"cannot read a plan from {target}: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise PlanFileError(
            f"{target} is not a plan, or it is damaged ({type(error).__name__}: {error}). "
            "Expected a file that Plan.save wrote"
        ) from error
    return _fields(header, target), members


def _members(file: IO[bytes]) -> dict[str, Any]:
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("one bare array instead of an .npz archive")  # noqa: TRY004 - damage, as all around it
    with archive:
        members = {name: archive[name] for name in archive.files}
    return {name: frozen(array) for name, array in members.items()}


def _fields(header: Any, target: Path) -> dict[str, Any]:
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise PlanFileError(f"{target} is an .npz file but not a plan. Expected a file that Plan.save wrote")
    version = header.pop("version", None)
    if version != VERSION:
        raise PlanFileError(
            f"{target} is a plan of format version {version!r}; "
            f"this release of hermetic reads version {VERSION}. "
            "Make the plan again"
        )
    return header
