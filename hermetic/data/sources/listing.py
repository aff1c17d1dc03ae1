"""Which files a location stands for, in a fixed order, before any of them is read.

Guarantee: a path that exists is taken literally, whatever characters it has; a glob gives its files in the order of
their names, and nothing that it matches is left out silently; a file that is named twice, under whatever name, is an
error, for its documents would be packed twice. Price: one ``stat`` a file.
"""

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hermetic.data.sources.fingerprint import data_files
from hermetic.data.sources.hub import HUB, files_of_hub
from hermetic.data.sources.parts import Kind, opening
from hermetic.data.sources.spec import SourceSpec
from hermetic.data.sources.spool import ARCHIVES
from hermetic.errors import SourceError

__all__ = ["ENDINGS", "STDIN", "Listed", "list_files", "list_path"]

STDIN: Final = "-"
ENDINGS: Final[dict[str, Kind]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
}
"""What a file holds by the end of its name; ``.json`` may be one array as well."""

_EXPECTED: Final = f"one of {', '.join(ENDINGS)}, perhaps with {' or '.join(ARCHIVES)} behind it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A file that a source names, not yet read."""

    source: int
    path: str
    """Absolute; :data:`STDIN` for standard input."""

    name: str
    kind: Kind
    may_be_array: bool = False
    """JSON of which the first character has to decide whether it is one array."""


def list_files(specs: Sequence[SourceSpec]) -> list[Listed]:
    """List the files of all sources: in the order of ``specs``, each source's in the order of their names.

    Raises:
        SourceError: If a location stands for no file, for something that is none, or a file is named twice.
    """
    listed = [file for index, spec in enumerate(specs) for file in _list_source(index, spec.location)]
    _refuse_twice(listed)
    return listed


def _list_source(source: int, place: str) -> list[Listed]:
    if place == STDIN:
        return [Listed(source=source, path=STDIN, name="<stdin>", kind="jsonl", may_be_array=True)]
    if place.startswith(HUB):
        return [Listed(source=source, path=path, name=name, kind="arrow") for path, name in files_of_hub(place)]
    if not os.path.lexists(place) and glob.has_magic(place):
        return [list_path(path, source=source) for path in _matches(place)]
    return [list_path(place, source=source)]


def _matches(pattern: str) -> list[str]:
    """Files that a pattern matches, and folders none of whose files it matches also."""
    names = set(glob.glob(pattern, recursive=True))  # noqa: PTH207 - pathlib has no pattern with a root, and "." in names
    found = sorted(name.rstrip(os.sep) for name in names)
    above = {str(parent) for path in found for parent in Path(path).parents}
    matches = [path for path in found if not (Path(path).is_dir() and str(Path(path)) in above)]
    if not matches:
        raise SourceError(f"{pattern} matches no file, expected at least one; check the pattern", reason="no_match")
    return matches


def list_path(path: str, *, source: int) -> Listed:
    """Say what kind of file ``path`` is, from its name.

    Raises:
        SourceError: If there is no such file, or it is of no known kind.
    """
    _refuse_name(path)
    with opening(path):
        mode = Path(path).stat().st_mode
    kind = _kind_of_folder(path) if stat.S_ISDIR(mode) else _kind_of_name(path)
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise SourceError(f"{path} is not a regular file; pipe it in and name it '-'", reason="not_a_file")
    array = _inner(path).suffix == ".json"
    return Listed(source=source, path=str(Path(path).absolute()), name=path, kind=kind, may_be_array=array)


def _refuse_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"the name {path!r} is not valid Unicode, so no manifest can hold it; rename the file", reason="name"
        ) from error


def _inner(path: str) -> Path:
    """The name without the ending of an archive."""
    return Path(path).with_suffix("") if Path(path).suffix in ARCHIVES else Path(path)


def _kind_of_name(path: str) -> Kind:
    inner = _inner(path)
    if inner.suffix not in ENDINGS:
        raise SourceError(
            f"{path} ends in {Path(path).suffix!r}, expected {_EXPECTED}; convert it to JSONL (one JSON object a "
            "line) or Parquet",
            reason="unknown_kind",
        )
    return ENDINGS[inner.suffix]


def _kind_of_folder(path: str) -> Literal["dataset"]:
    folder = Path(path)
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(child.name for child in folder.iterdir() if (child / "state.json").is_file())
        raise SourceError(
            f"{path} is a folder of several splits ({', '.join(splits)}), expected one; name it as "
            f"{folder / splits[0] if splits else folder}",
            reason="folder",
        )
    if not (folder / "state.json").is_file():
        raise SourceError(
            f"{path} is a folder, expected a file or a folder that save_to_disk of datasets wrote; "
            f"name its files, as in '{folder / '*.jsonl'}'",
            reason="folder",
        )
    return "dataset"


def _refuse_twice(listed: Sequence[Listed]) -> None:
    seen: dict[object, str] = {}
    for file in listed:
        for identity in _identities(file):
            if identity in seen:
                both = file.name if seen[identity] == file.name else f"{seen[identity]} and {file.name}"
                raise SourceError(
                    f"{both} is one file named twice, so its documents would be packed twice; "
                    "name it once, with the weight @2 if that is meant",
                    reason="duplicate_source",
                )
        seen |= dict.fromkeys(_identities(file), file.name)


def _identities(file: Listed) -> list[object]:
    """What the file system knows the bytes by, the same for all links to them."""
    if file.path == STDIN:
        return [STDIN]
    with opening(file.name):
        states = [path.stat() for path in data_files(file.path, file.name)]
    return [(state.st_dev, state.st_ino) for state in states]
