"""What a packed folder says about itself.

Guarantee: a manifest adds up (documents read are placed or dropped, tokens read are placed or lost), when it
is made and when it is read, and it names the SHA-256 of every data file. It holds no path of the machine that
made it. Price: a few hundred bytes of JSON.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermetic.errors import PackedDataError

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "PackManifest"]

FORMAT_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackManifest:
    """The facts of one pack. Documents after an overflow policy ``"split"`` are its fragments."""

    format_version: int
    hermetic_version: str
    source_name: str
    """File name, without its folder."""

    source_sha256: str
    tokenizer_fingerprint: str
    capacity: int
    strategy: str
    on_overflow: str
    seed: int | None
    documents_read: int
    documents_placed: int
    """Documents of the source with at least one token in a row."""

    documents_dropped: int
    documents_truncated: int
    fragments: int
    """Pieces in rows that are not a whole document of the source, truncated ones not counted."""

    documents_without_supervision: int
    """Documents or fragments in rows without any supervised token: they cost compute and teach nothing."""

    tokens_read: int
    tokens_placed: int
    tokens_lost: int
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

    files: dict[str, str]
    """SHA-256 of each data file, by name."""

    def __post_init__(self) -> None:
        for what in ("documents", "tokens"):
            gone = self.documents_dropped if what == "documents" else self.tokens_lost
            read, placed = getattr(self, f"{what}_read"), getattr(self, f"{what}_placed")
            if read != placed + gone:
                raise PackedDataError(
                    f"the manifest does not add up: {read} {what} read, but {placed} placed and {gone} lost; "
                    "pack the source again"
                )

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
        expected = {field.name for field in dataclasses.fields(cls)}
        if set(values) != expected:
            raise PackedDataError(
                f"{where} lacks the keys {sorted(expected - set(values))} and has the unknown keys "
                f"{sorted(set(values) - expected)}, expected exactly those of format {FORMAT_VERSION}; "
                "pack the source again"
            )
        return cls(**values)

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
        return cls.from_json(path.read_text(encoding="utf-8"), where=str(path))


def _check_version(values: Any, where: str) -> None:
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise PackedDataError(
            f"{where} has the format version {version!r}, expected {FORMAT_VERSION}; pack the source again "
            "with this version of hermetic"
        )
