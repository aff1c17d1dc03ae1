"""The audit of a packed folder: every law that its rows have to keep, each with what was found.

Algorithm: :func:`hermetic.data.open_packed` reads everything once; what it refuses is traced to the files it is about,
all of them. Then come the laws that it does not know: documents are conserved, and tokens are of the vocabulary of the
tokenizer that made them. Guarantee: a report without a failure vouches for every byte of the folder; a law that was not
looked at is named as such. Price: that of ``open_packed`` and one more pass over the rows; of a damaged folder, its
files are hashed twice.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from hermetic.data.blocks import blocks_of
from hermetic.data.manifest import MANIFEST_NAME, PackManifest
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.show import require_tokenizer_of
from hermetic.data.sources import sha256_of_file
from hermetic.data.tokenizer import load_tokenizer
from hermetic.errors import DataError, HermeticError, PackedDataError

__all__ = ["CheckReport", "PackedCheck", "check_packed"]

Result = Literal["passed", "failed", "not checked"]

_NO_TOKENIZER: Final = "name the tokenizer"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedCheck:
    """One law, and what was found."""

    law: str
    result: Result
    found: str
    """In numbers, if it passed; the error, if it failed; the reason, if it was not checked."""

    code: str | None = None
    """The code of the error, if it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """The audit of one packed folder."""

    path: str
    checks: tuple[PackedCheck, ...]

    @property
    def sound(self) -> bool:
        """Whether no law was found broken."""
        return all(check.result != "failed" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"path": self.path, "sound": self.sound, "checks": [dataclasses.asdict(check) for check in self.checks]}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict()) + "\n"


def check_packed(
    path: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
) -> CheckReport:
    """Audit a packed folder; what is broken stands in the report and is not raised.

    Args:
        path: the folder.
        tokenizer: the one that should have made the rows, a folder or a model id; without one, what needs it is not
            checked, and the report says so.
        trust_remote_code: whether the tokenizer may bring code of its own and run it.

    Raises:
        PackedDataError: If there is no manifest, so that this is no packed folder.
        DataError: If the tokenizer cannot be loaded.
        MissingDependencyError: If datasets, or for a tokenizer transformers, is not installed.

    Example:
        ``check_packed("packed").sound``
    """
    folder = Path(path)
    if not (folder / MANIFEST_NAME).is_file():
        PackManifest.load(folder)  # says what is missing and how such a folder is made
    loaded = None if tokenizer is None else load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    try:
        packed = open_packed(folder)
    except PackedDataError as error:
        return CheckReport(path=os.fspath(path), checks=_damage(folder, error))
    name = None if tokenizer is None else os.fspath(tokenizer)
    checks = (*_kept(packed), _conservation(packed), *_tokenizer_checks(packed, loaded, name))
    return CheckReport(path=os.fspath(path), checks=checks)


def _passed(law: str, found: str) -> PackedCheck:
    return PackedCheck(law=law, result="passed", found=found)


def _failed(law: str, error: HermeticError) -> PackedCheck:
    return PackedCheck(law=law, result="failed", found=str(error), code=error.code)


def _kept(packed: PackedData) -> tuple[PackedCheck, ...]:
    """The laws without which ``open_packed`` would have raised."""
    manifest, lengths = packed.manifest, packed.document_lengths
    tokens = np.add.reduceat(lengths, np.cumsum(packed.documents_per_row) - packed.documents_per_row)
    return (
        _passed(
            "the manifest adds up",
            f"{manifest.records_read:,} records read, {sum(manifest.records_skipped.values()):,} skipped; "
            f"{manifest.documents_read:,} documents, {manifest.documents_placed:,} placed, "
            f"{manifest.documents_dropped:,} dropped; {manifest.tokens_lost:,} tokens lost",
        ),
        _passed("every file is as it was written", f"{len(manifest.files):,} files, each with its SHA-256; no others"),
        _passed(
            "every token belongs to one document",
            f"{len(lengths):,} documents in {len(packed):,} rows, {int(lengths.sum()):,} tokens",
        ),
        _passed("no document is trained to follow another", f"{len(lengths):,} first tokens, none of them supervised"),
        _passed("no row is above its capacity", f"longest row {int(tokens.max()):,} of {manifest.capacity:,} tokens"),
        _passed(
            "the rows hold what the manifest counts",
            f"{manifest.rows:,} rows, {manifest.tokens_placed:,} tokens, {manifest.supervised_tokens:,} supervised",
        ),
    )


def _conservation(packed: PackedData) -> PackedCheck:
    """Every placed document is in the rows: once, unless a weight or a policy asked for more."""
    law, manifest = "every document is where the manifest says", packed.manifest
    ids = np.concatenate([block.document_ids for block in blocks_of(packed)])
    distinct = np.unique(ids)
    if distinct[0] < 0 or distinct[-1] >= manifest.documents_read:
        wrong = int(distinct[0] if distinct[0] < 0 else distinct[-1])
        row = int(np.searchsorted(np.cumsum(packed.documents_per_row), int(np.argmax(ids == wrong)), side="right"))
        message = f"row {row} has the document {wrong}, expected 0 to {manifest.documents_read - 1}"
        return _failed(law, PackedDataError(f"{packed.path}, {message}; pack the source again"))
    most, least = manifest.documents_placed, manifest.documents_placed - manifest.documents_repeated
    if not least <= len(distinct) <= most:
        expected = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        message = f"{packed.path} holds {len(distinct):,} different documents, expected {expected} by its manifest"
        return _failed(law, PackedDataError(f"{message}; pack the source again"))
    return _passed(law, f"{len(distinct):,} different documents in {len(ids):,} pieces")


def _tokenizer_checks(packed: PackedData, tokenizer: Any, name: str | None) -> tuple[PackedCheck, ...]:
    made, known = "the rows were made by this tokenizer", "every token is of its vocabulary"
    if name is None:
        return tuple(PackedCheck(law=law, result="not checked", found=_NO_TOKENIZER) for law in (made, known))
    try:
        require_tokenizer_of(packed, tokenizer, name)
    except DataError as error:
        same = _failed(made, error)
    else:
        same = _passed(made, f"fingerprint {packed.manifest.tokenizer_fingerprint[:12]}")
    return same, _vocabulary(packed, known, len(tokenizer))


def _vocabulary(packed: PackedData, law: str, size: int) -> PackedCheck:
    largest = 0
    for block in blocks_of(packed):
        foreign = (block.input_ids < 0) | (block.input_ids >= size)
        if foreign.any():
            position = int(np.argmax(foreign))
            row = block.first_row + int(np.searchsorted(block.token_edges, position, side="right")) - 1
            message = f"row {row} has the token {block.input_ids[position]}, expected 0 to {size - 1}"
            return _failed(law, PackedDataError(f"{packed.path}, {message}; pack with the tokenizer of the tokens"))
        largest = max(largest, int(block.input_ids.max()))
    return _passed(law, f"largest id {largest:,} of {size:,}")


def _damage(folder: Path, error: PackedDataError) -> tuple[PackedCheck, ...]:
    """What the refusal of a folder is about: its manifest, its files, each one named, or its rows."""
    adds_up, whole, consistent = (
        "the manifest adds up",
        "every file is as it was written",
        "the folder is what its manifest says",
    )
    try:
        manifest = PackManifest.load(folder)
    except PackedDataError:
        return (_failed(adds_up, error),)
    damaged = [
        PackedDataError(f"{folder / name} {why}; copy it again or pack the source again")
        for name, expected in manifest.files.items()
        if (why := _objection(folder / name, expected))
    ]
    if damaged:
        return (_passed(adds_up, "yes"), *(_failed(whole, one) for one in damaged))
    return (_passed(adds_up, "yes"), _failed(consistent, error))


def _objection(path: Path, expected: str) -> str | None:
    if not path.is_file():
        return "is missing"
    found = sha256_of_file(path)
    return None if found == expected else f"is damaged: its SHA-256 is {found}, expected {expected}"
