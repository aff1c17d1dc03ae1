"""All tokenized parts as one: where each document is, and how often the mix takes it.

Guarantee: document ``i`` is the i-th that the sources gave, whatever the parts; a preference pair is one unit, which is
planned and drawn as one. Price: 8 bytes a document, and 8 more where pairs or weights are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.run.part_files import PartReceipt, open_part

__all__ = ["Corpus", "Draw", "draw_units", "read_corpus", "records_of"]

IndexArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """D documents of P parts.

    Example:
        Parts with documents of ``[3, 2]`` and ``[4]`` tokens: offsets ``[0, 3, 5, 9]``, part_edges ``[0, 2, 3]``.
    """

    folder: Path
    receipts: tuple[PartReceipt, ...]
    file_of_part: tuple[int, ...]
    offsets: IndexArray
    """``[D + 1]``: where each document starts in the tokens of all parts, end to end."""

    part_edges: IndexArray
    """``[P + 1]``: the first document of each part."""

    unit_edges: IndexArray | None
    """``[U + 1]``: the first document of each unit; None: every document is a unit."""

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.offsets) - 1

    @property
    def num_units(self) -> int:
        """U."""
        return self.num_documents if self.unit_edges is None else len(self.unit_edges) - 1

    @property
    def lengths(self) -> IndexArray:
        """``[D]`` tokens of each document."""
        return np.diff(self.offsets)

    @property
    def unit_lengths(self) -> IndexArray:
        """``[U]`` tokens of each unit."""
        return np.diff(self.offsets if self.unit_edges is None else self.offsets[self.unit_edges])

    def documents_of_units(self, units: IndexArray) -> tuple[IndexArray, IndexArray]:
        """The documents of units, one after the other, and how many each unit has.

        Example:
            Units of documents ``[0]``, ``[1, 2]`` and ``[3]``: units ``[1, 0]`` give ``[1, 2, 0]`` and ``[2, 1]``.
        """
        if self.unit_edges is None:
            return units, np.ones(len(units), dtype=np.int64)
        first = self.unit_edges[units]
        counts = self.unit_edges[units + 1] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(first, counts) + within, counts

    def places_of(self, documents: IndexArray) -> tuple[IndexArray, IndexArray]:
        """For each document the part that it is in, and which of its documents it is."""
        parts = np.searchsorted(self.part_edges, documents, side="right") - 1
        return parts, documents - self.part_edges[parts]


def read_corpus(folder: Path, receipts: Sequence[PartReceipt], file_of_part: Sequence[int]) -> Corpus:
    """Put the lengths of all parts together."""
    lengths = np.empty(sum(receipt.documents for receipt in receipts), dtype=np.int64)
    starts = [np.zeros(1, dtype=np.int64)]
    pairs = any(receipt.pairs for receipt in receipts)
    part_edges = np.cumsum([0, *(receipt.documents for receipt in receipts)], dtype=np.int64)
    for first, receipt in zip(part_edges[:-1].tolist(), receipts, strict=True):
        data = open_part(folder, receipt)
        lengths[first : first + receipt.documents] = data.lengths
        if pairs:
            starts.append(np.flatnonzero(data.roles != 2) + first)
        data.release()
    edges = np.concatenate([*starts[1:], [len(lengths)]]) if pairs else None
    return Corpus(
        folder=folder,
        receipts=tuple(receipts),
        file_of_part=tuple(file_of_part),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        part_edges=part_edges,
        unit_edges=edges,
    )


def records_of(corpus: Corpus, documents: IndexArray) -> tuple[IndexArray, IndexArray]:
    """For each document the file that it comes from, and the 1-based record of it."""
    parts, places = corpus.places_of(documents)
    numbers = np.empty(len(documents), dtype=np.int64)
    order = np.argsort(parts, kind="stable")
    used, firsts = np.unique(parts[order], return_index=True)
    for part, chosen in zip(used.tolist(), np.split(order, firsts)[1:], strict=True):
        numbers[chosen] = open_part(corpus.folder, corpus.receipts[part]).numbers[places[chosen]]
    return np.array(corpus.file_of_part, dtype=np.int64)[parts], numbers


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draw:
    """Which units are packed, in the order of the sources; a unit may come more than once."""

    units: IndexArray | None
    """None: every unit once."""

    left_out: IndexArray
    """Units that the weights leave out."""

    def of(self, numbers: IndexArray) -> IndexArray:
        """The units behind numbers of the draw."""
        return numbers if self.units is None else self.units[numbers]


def draw_units(corpus: Corpus, source_of_file: Sequence[int], weights: Sequence[float], *, seed: int | None) -> Draw:
    """Take the units of each source as often as its weight says.

    A weight of 1 takes each unit once, 2 twice, 0.25 a quarter of them, 2.5 each twice and half of them once more.
    Which ones a fraction takes depends on the seed and the number of the source.

    Example:
        A source of 4 units at weight 1.5: 0 0 1 2 2 3, if the seed takes units 0 and 2 once more.
    """
    none = np.zeros(0, dtype=np.int64)
    if all(weight == 1 for weight in weights):
        return Draw(units=None, left_out=none)
    source_of_part = np.array([source_of_file[file] for file in corpus.file_of_part], dtype=np.int64)
    first = np.arange(corpus.num_units) if corpus.unit_edges is None else corpus.unit_edges[:-1]
    source_of_unit = source_of_part[corpus.places_of(first)[0]]
    times = np.zeros(corpus.num_units, dtype=np.int64)
    for source, weight in enumerate(weights):
        own = np.flatnonzero(source_of_unit == source)
        whole = math.floor(weight)
        times[own] = whole
        more = round((weight - whole) * len(own))
        generator = np.random.default_rng([0 if seed is None else seed, source])
        times[generator.permutation(own)[:more]] += 1
    return Draw(units=np.repeat(np.arange(corpus.num_units), times), left_out=np.flatnonzero(times == 0))
