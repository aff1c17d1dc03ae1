"""Datasets of the hub, as the Arrow files that ``datasets`` keeps of them.

Guarantee: the files hold exactly the rows of one split, which is named or the only one. Price: what
``datasets.load_dataset`` costs the first time; its cache afterwards.
"""

import re
from pathlib import Path
from typing import Any, Final

from hermetic.data.dependencies import import_optional
from hermetic.errors import SourceError

__all__ = ["HUB", "files_of_hub"]

HUB: Final = "hub:"
_SPLIT: Final = re.compile(r"(?P<repository>.+?)(:(?P<split>\w+))?")


def files_of_hub(place: str) -> list[tuple[str, str]]:
    """Load ``hub:org/name`` or ``hub:org/name:split``.

    Returns:
        For each Arrow file of the split, its path and the name it goes by.

    Raises:
        SourceError: If it cannot be loaded, has several splits and none is named, or none of that name.
        MissingDependencyError: If ``datasets`` is not installed.
    """
    found = _SPLIT.fullmatch(place.removeprefix(HUB))
    if found is None:
        raise SourceError(f"{place} names no dataset, expected hub:org/name or hub:org/name:split", reason="missing")
    splits = _load(place, found["repository"])
    split = found["split"] or next(iter(splits))
    if (found["split"] is None and len(splits) > 1) or split not in splits:
        named = f"has no split {split!r}" if found["split"] else "has several splits"
        raise SourceError(
            f"{place} {named}, expected one of {', '.join(splits)}; name it as {HUB}{found['repository']}:"
            f"{next(iter(splits))}",
            reason="split",
        )
    files = [entry["filename"] for entry in splits[split].cache_files]
    name = f"{HUB}{found['repository']}:{split}"
    return [(path, name if len(files) == 1 else f"{name}/{Path(path).name}") for path in files]


def _load(place: str, repository: str) -> dict[str, Any]:
    datasets = import_optional("datasets")
    try:
        splits: dict[str, Any] = datasets.load_dataset(repository, keep_in_memory=False)
    except Exception as error:  # it raises whatever its readers, the network and the hub raise
        raise SourceError(
            f"{place} cannot be loaded: {type(error).__name__}: {error}; check its name, the network and your access",
            reason="hub",
        ) from error
    return splits
