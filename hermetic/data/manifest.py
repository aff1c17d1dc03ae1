"""What a packed folder says about itself.

Guarantee: a manifest adds up, when it is made and when it is read: every record read is a document or skipped, every
document is placed, dropped or left out by a weight, every token is in a row or counted as lost. It names the SHA-256 of
every file, and holds no path of the machine that made it. Price: a few hundred bytes of JSON and a hundred
more for each file.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermetic.errors import PackedDataError
from hermetic.files import is_plain_name

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "PackManifest", "Shard", "SourceEntry"]

FORMAT_VERSION: Final = 2
MANIFEST_NAME: Final = "manifest.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceEntry:
    """One file that was read."""

    name: str
    """File name, with as many of its folders as tell it from the others."""

    weight: float
    """How often each of its documents was taken."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of rows."""

    name: str
    sha256: str
    rows: int
    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PackManifest:
    """The facts of one pack. Documents after an overflow policy ``"split"`` are its fragments."""

    format_version: int
    hermetic_version: str
    source_files: tuple[SourceEntry, ...]
    """In the order that ``source_ids`` count."""

    tokenizer_fingerprint: str
    template_date: str | None
    """The date that the chat template wrote into every conversation; None if it writes none."""

    train_on: str
    capacity: int
    strategy: str
    on_overflow: str
    on_bad_record: str
    seed: int | None
    file_format: str
    """``"arrow"`` or ``"parquet"``."""

    records_read: int
    records_skipped: dict[str, int]
    """Bad records by reason, where they were to be skipped."""

    preference_pairs: int
    """Records of two documents each, chosen and rejected, which lie side by side in one row."""

    documents_read: int
    documents_repeated: int
    """Further copies that weights above 1 asked for."""

    documents_left_out: int
    """Documents that weights below 1 did not take."""

    documents_placed: int
    """Documents, copies counted, with at least one token in a row."""

    documents_dropped: int
    documents_truncated: int
    fragments: int
    """Pieces in rows that are not a whole document of the source, truncated ones not counted."""

    documents_without_supervision: int
    """Documents or fragments in rows without any supervised token: they cost compute and teach nothing."""

    tokens_read: int
    tokens_repeated: int
    tokens_left_out: int
    tokens_placed: int
    tokens_lost: int
    """Cut off or dropped, for being beyond the capacity."""

    supervised_tokens: int
    rows: int
    utilization: float
    """Tokens placed / (rows x capacity)."""

    lower_bound: int
    """No packing of these documents needs fewer rows."""

    longest_document: int
    mean_document: float
    padding_waste: float
    """Share of a padded batch, as wide as its longest document, that would be padding: ``1 - mean / max``."""

    shards: tuple[Shard, ...]
    """The files of rows, in the order of the rows."""

    files: dict[str, str]
    """SHA-256 of every file of the folder but this one, by name."""

    def __post_init__(self) -> None:
        made = self.documents_read - self.preference_pairs
        self._check_sum("records read", self.records_read, made, sum(self.records_skipped.values()), "skipped")
        for what in ("documents", "tokens"):
            gone = self.documents_dropped if what == "documents" else self.tokens_lost
            taken = getattr(self, f"{what}_read") + getattr(self, f"{what}_repeated")
            placed, left_out = getattr(self, f"{what}_placed"), getattr(self, f"{what}_left_out")
            self._check_sum(f"{what} read", taken, placed, gone + left_out, "lost")
        self._check_sum("rows", self.rows, sum(shard.rows for shard in self.shards), 0, "lost")
        for name in (*self.files, *(shard.name for shard in self.shards)):
            _check_name(name)
        self._check_shards()

    def _check_shards(self) -> None:
        unlisted = {shard.name for shard in self.shards} - set(self.files)
        differing = [shard.name for shard in self.shards if self.files.get(shard.name) != shard.sha256]
        if unlisted or differing:
            what = (
                f"{sorted(unlisted)} are none of its files"
                if unlisted
                else f"{differing} have other checksums than its files"
            )
            raise PackedDataError(f"the manifest does not add up: its shards {what}; pack the source again")

    @staticmethod
    def _check_sum(what: str, total: int, placed: int, gone: int, name: str) -> None:
        if total != placed + gone:
            raise PackedDataError(
                f"the manifest does not add up: {total} {what}, but {placed} placed and {gone} {name}; "
                "pack the source again"
            )

    @property
    def source_name(self) -> str:
        """The first source file, and how many there are beside it."""
        more = len(self.source_files) - 1
        return self.source_files[0].name + (f" and {more} more" if more else "")

    def to_json(self) -> str:
        """Indented JSON, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, *, where: str) -> "PackManifest":
        """Read what :meth:`to_json` wrote.

        Args:
            text: the JSON.
            where: what the text is, for messages.

        Raises:
            PackedDataError: If it is not a manifest of this format, or does not add up.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise PackedDataError(f"{where} is not JSON ({error}); pack the source again") from error
        _check_version(values, where)
        checked = _checked(cls, values, where)
        for name, kind in (("source_files", SourceEntry), ("shards", Shard)):
            checked[name] = tuple(kind(**_checked(kind, entry, f"{where}, {name}")) for entry in checked[name])
        return cls(**checked)

    @classmethod
    def load(cls, folder: Path) -> "PackManifest":
        """Read the manifest of a packed folder.

        Raises:
            PackedDataError: If there is no readable manifest in it.
        """
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise PackedDataError(
                f"{folder} has no {MANIFEST_NAME}, expected a folder of packed rows; "
                f"make one with: hermetic pack SOURCE --out {folder}"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise PackedDataError(f"{path} is not UTF-8 ({error}); pack the source again") from error
        return cls.from_json(text, where=str(path))


def _check_version(values: Any, where: str) -> None:
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise PackedDataError(
            f"{where} has the format version {version!r}, expected {FORMAT_VERSION}; pack the source again "
            "with this version of hermetic"
        )


def _check_name(name: str) -> None:
    """A name with a folder in it could point out of the packed folder."""
    if not is_plain_name(name):
        raise PackedDataError(
            f"the manifest names the file {name!r}, expected names without a folder; do not open this folder, "
            "and pack the source again"
        )


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "tuple[SourceEntry, ...]": (list,),
    "tuple[Shard, ...]": (list,),
    "dict[str, int]": (dict,),
    "dict[str, str]": (dict,),
}
"""The JSON types of each kind of field."""

_ENTRIES: Final[Mapping[str, type]] = {"dict[str, int]": int, "dict[str, str]": str}


def _checked(cls: type, values: Any, where: str) -> dict[str, Any]:
    """The values of a dataclass as JSON holds them, all there and of their types."""
    fields = {field.name: _type_name(field.type) for field in dataclasses.fields(cls)}
    if not isinstance(values, dict) or set(values) != set(fields):
        keys = set(values) if isinstance(values, dict) else set()
        raise PackedDataError(
            f"{where} lacks the keys {sorted(set(fields) - keys)} and has the unknown keys "
            f"{sorted(keys - set(fields))}, expected exactly those of format {FORMAT_VERSION}; "
            "pack the source again"
        )
    for name, kind in fields.items():
        value = values[name]
        entries = value.values() if isinstance(value, dict) else ()
        if (
            type(value) not in _KINDS[kind]
            or any(type(entry) is not _ENTRIES[kind] for entry in entries)
            or (type(value) is int and value < 0 and name != "seed")
        ):
            raise PackedDataError(f"{where} has {name} {value!r}, expected {kind}; pack the source again")
    return dict(values)


def _type_name(annotation: Any) -> str:
    """Example: ``dict[str, int]`` is ``"dict[str, int]"``, and ``int`` is ``"int"``."""
    if type(annotation) is type:
        return annotation.__name__
    return str(annotation).replace(f"{__name__}.", "")
