"""What a packed folder holds, as plain data; :mod:`hermetic.data.render` draws it.

Guarantee: every number is counted from rows whose checksums were verified just before. Price: that of
:func:`hermetic.data.open_packed`.
"""

import dataclasses
import json
import os
from dataclasses import dataclass

import numpy as np

from hermetic.data.manifest import PackManifest
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.statistics import (
    HistogramBar,
    contaminated_share,
    contamination_rule_of_thumb,
    length_histogram,
    padding_waste,
)

__all__ = ["PackedSummary", "inspect_packed", "summarize"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedSummary:
    """A verified packed folder in numbers; fragments count as documents."""

    path: str
    manifest: PackManifest
    documents: int
    shortest: int
    median: float
    mean: float
    longest: int
    histogram: tuple[HistogramBar, ...]
    padding_waste: float
    """Share of padding if every document were padded to the longest."""

    contaminated_share: float
    """Share of tokens that would see a stranger in these rows under a plain causal mask; exact."""

    contamination_rule_of_thumb: float
    """The usual estimate of it, ``1 - median / capacity``."""

    documents_per_row: float
    files_verified: int

    def to_json(self) -> str:
        """Indented JSON, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def inspect_packed(path: str | os.PathLike[str]) -> PackedSummary:
    """Verify a packed folder and count what it holds.

    Raises:
        PackedDataError: If it is not such a folder, or a file is missing or damaged.
    """
    return summarize(open_packed(path))


def summarize(packed: PackedData) -> PackedSummary:
    """Count what an opened folder holds."""
    lengths = packed.document_lengths
    return PackedSummary(
        path=os.fspath(packed.path),
        manifest=packed.manifest,
        documents=len(lengths),
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        longest=int(lengths.max()),
        histogram=length_histogram(lengths),
        padding_waste=padding_waste(lengths),
        contaminated_share=contaminated_share(lengths, packed.documents_per_row),
        contamination_rule_of_thumb=contamination_rule_of_thumb(lengths, packed.manifest.capacity),
        documents_per_row=len(lengths) / len(packed),
        files_verified=len(packed.manifest.files),
    )
