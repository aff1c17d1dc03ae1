"""One door to every form of packed rows.

Algorithm: the folder is verified, read a thousand rows at a time, and written in the form that was asked for into a new
folder, which takes its place when all is written. Guarantee: the export holds every row, document and supervised token
of the packed folder, in order; it exists complete or not at all; ``export.json`` in it says from which packed folder it
came and has the SHA-256 of every file. Price: two passes over the rows and the memory of a thousand.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

import hermetic
from hermetic.data.export import arrays, megatron, mosaic, parquet, trl
from hermetic.data.folders import check_free, new_folder
from hermetic.data.manifest import MANIFEST_NAME
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.sources import sha256_of_file
from hermetic.errors import DataError

__all__ = ["EXPORT_NAME", "FORMATS", "ExportSummary", "export_packed"]

EXPORT_NAME: Final = "export.json"

OnRows: TypeAlias = Callable[[int], None]

FORMATS: Final[Mapping[str, Callable[[PackedData, Path, OnRows], None]]] = MappingProxyType(
    {
        "trl": trl.write,
        "parquet": parquet.write,
        "megatron": megatron.write,
        "mosaic": mosaic.write,
        "tokens": arrays.write,
    }
)
"""Each form's writer, by name."""

_WITH_ROLES: Final = frozenset({"parquet", "tokens"})
"""Forms that say of a document whether it was chosen or rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSummary:
    """What was written, as it stands in ``export.json``."""

    format: str
    hermetic_version: str
    manifest_sha256: str
    """Of the ``manifest.json`` of the packed folder."""

    tokenizer_fingerprint: str
    capacity: int
    rows: int
    documents: int
    """In rows; fragments count as documents."""

    tokens: int
    supervised_tokens: int
    files: dict[str, str]
    """SHA-256 of every other file, by name."""

    def to_json(self) -> str:
        """Indented JSON, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def export_packed(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str,
    on_rows: OnRows | None = None,
) -> ExportSummary:
    """Write a packed folder in a form that another trainer reads.

    Args:
        path: the packed folder.
        out: the folder to make; it may exist if it is empty.
        to: ``"trl"``, ``"parquet"``, ``"megatron"``, ``"mosaic"`` or ``"tokens"``; the modules of
            :mod:`hermetic.data.export` describe them.
        on_rows: called with the number of rows written so far.

    Returns:
        What was written.

    Raises:
        DataError: If there is no such form, ``out`` asks for the pickled one, or the folder holds preference pairs
            and the form cannot tell the chosen answer from the rejected one.
        PackedDataError: If ``path`` is no packed folder or is damaged, or ``out`` holds something already.
        MissingDependencyError: If datasets, or for ``"mosaic"`` mosaicml-streaming, is not installed.

    Example:
        ``export_packed("packed", "for-bridge", to="megatron")``
    """
    if to not in FORMATS:
        raise DataError(f"to is {to!r}, expected one of {', '.join(FORMATS)}")
    target = Path(out)
    _refuse_pickle(target)
    check_free(target)
    packed = open_packed(path)
    _require_place_for_roles(packed, to)
    with new_folder(target) as folder:
        FORMATS[to](packed, folder, on_rows or _ignore)
        summary = _summary(packed, folder, to)
        (folder / EXPORT_NAME).write_text(summary.to_json(), encoding="utf-8")
    return summary


def _ignore(_rows: int) -> None:
    """Nobody asked."""


def _refuse_pickle(target: Path) -> None:
    if target.suffix in {".npy", ".npz"}:
        raise DataError(
            f"out is {target}, expected the name of a folder: packed rows in one {target.suffix} file, as NeMo had "
            "them, are pickled objects, which run code when they are opened. Megatron-Bridge reads the Parquet of "
            "'megatron'; plain arrays, opened with allow_pickle=False, are 'tokens'"
        )


def _require_place_for_roles(packed: PackedData, to: str) -> None:
    pairs = packed.manifest.preference_pairs
    if pairs and to not in _WITH_ROLES:
        raise DataError(
            f"{packed.path} holds {pairs} preference pairs, and the form {to!r} does not say which answer was chosen, "
            f"so that rejected ones would be trained on as well; expected one of {', '.join(sorted(_WITH_ROLES))}"
        )


def _summary(packed: PackedData, folder: Path, to: str) -> ExportSummary:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return ExportSummary(
        format=to,
        hermetic_version=hermetic.__version__,
        manifest_sha256=sha256_of_file(packed.path / MANIFEST_NAME),
        tokenizer_fingerprint=packed.manifest.tokenizer_fingerprint,
        capacity=packed.manifest.capacity,
        rows=len(packed),
        documents=len(packed.document_lengths),
        tokens=packed.manifest.tokens_placed,
        supervised_tokens=packed.manifest.supervised_tokens,
        files={file.relative_to(folder).as_posix(): sha256_of_file(file) for file in files},
    )
