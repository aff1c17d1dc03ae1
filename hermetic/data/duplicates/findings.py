"""What pairs of alike documents add up to.

Guarantee: the counts are over documents, not over kinds: where a document has copies, its pairs are counted with them.
Price: some numbers a document, and none a pair.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.duplicates.corpus import Corpus
from hermetic.data.duplicates.shingles import join

__all__ = ["Example", "Findings"]

IndexArray: TypeAlias = npt.NDArray[np.int64]

_SHOWN_PAIRS: Final = 10

Example: TypeAlias = tuple[bool, float, int, int, int]
"""In one row, similarity, tokens of both, and the two documents."""


class Findings:
    """What the pairs add up to; holds some numbers a document and none a pair."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.parents = np.arange(len(corpus.kind_edges) - 1)
        self.paired = np.zeros(len(self.parents), dtype=bool)
        self.sizes = np.diff(corpus.kind_edges)
        self.places = corpus.rows * len(corpus.records) + corpus.records  # equal for one row and one record
        self.pairs = self.identical = self.in_one_row = self.of_one_record = self.candidates = 0
        self.examples: list[Example] = []

    def add_copies(self) -> None:
        """The pairs within each kind."""
        for kind in np.flatnonzero(self.sizes > 1).tolist():
            documents = self.corpus.of_kind(kind)
            before = self.pairs
            self._count(documents, documents, 1.0)
            self.identical += self.pairs - before
            self.paired[kind] |= self.pairs > before

    def add(self, pairs: IndexArray, similarities: npt.NDArray[np.float64], threshold: float) -> None:
        """Pairs of different kinds."""
        self.candidates += len(pairs)
        similar = similarities >= threshold
        real = np.zeros(len(pairs), dtype=bool)
        # Where nearly every kind is one document, a pair of kinds is a pair of documents; those go at once.
        single = similar & (self.sizes[pairs] == 1).all(axis=1)
        real[single] = self._count_singles(
            self.corpus.members[self.corpus.kind_edges[pairs[single]]], similarities[single]
        )
        for index in np.flatnonzero(similar & ~single).tolist():
            before = self.pairs
            one, other = (self.corpus.of_kind(kind) for kind in pairs[index].tolist())
            self._count(one, other, float(similarities[index]))
            real[index] = self.pairs > before
        self.paired[pairs[real]] = True
        join(self.parents, pairs[real, 0].copy(), pairs[real, 1].copy())

    def _count_singles(self, documents: IndexArray, similarities: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        records, rows = self.corpus.records[documents], self.corpus.rows[documents]
        real: npt.NDArray[np.bool_] = records[:, 0] != records[:, 1]
        together = real & (rows[:, 0] == rows[:, 1])
        self.pairs += int(real.sum())
        self.of_one_record += int((~real).sum())
        self.in_one_row += int(together.sum())
        lengths = (self.corpus.edges[documents + 1] - self.corpus.edges[documents]).sum(axis=1)
        best = np.lexsort((documents[:, 1], documents[:, 0], -lengths, -similarities, ~together, ~real))[:_SHOWN_PAIRS]
        for index in best[real[best]].tolist():
            one, other = documents[index].tolist()
            self._keep(float(similarities[index]), one, other, together=bool(together[index]))
        return real

    def _count(self, one: IndexArray, other: IndexArray, similarity: float) -> None:
        """The pairs of a document of ``one`` and a document of ``other``, of which all are alike."""
        of_one_record = _coincidences(self.corpus.records, one, other)
        pairs = len(one) * (len(one) - 1) // 2 if one is other else len(one) * len(other)
        together = _coincidences(self.corpus.rows, one, other) - _coincidences(self.places, one, other)
        self.of_one_record += of_one_record
        self.pairs += pairs - of_one_record
        self.in_one_row += together
        if pairs > of_one_record:
            first, second = _named(self.corpus, one, other, together=together > 0)
            self._keep(similarity, first, second, together=together > 0)

    def _keep(self, similarity: float, one: int, other: int, *, together: bool) -> None:
        first, second = sorted((one, other))
        tokens = sum(int(self.corpus.packed.document_lengths[document]) for document in (first, second))
        self.examples.append((together, similarity, tokens, first, second))
        self.examples.sort(key=lambda example: (not example[0], -example[1], -example[2], *example[3:]))
        del self.examples[_SHOWN_PAIRS:]

    def counts(self) -> dict[str, int]:
        """The counts of a report."""
        lengths = self.corpus.packed.document_lengths
        documents = np.repeat(self.paired, self.sizes)
        roots = _roots(self.parents)
        clusters = (
            np.bincount(roots[self.paired], weights=self.sizes[self.paired]) if self.paired.any() else np.zeros(1)
        )
        return {
            "documents": len(lengths),
            "tokens": int(lengths.sum()),
            "pairs": self.pairs,
            "identical_pairs": self.identical,
            "pairs_in_one_row": self.in_one_row,
            "pairs_of_one_record": self.of_one_record,
            "documents_in_pairs": int(documents.sum()),
            "tokens_in_pairs": int(lengths[self.corpus.members[documents]].sum()),
            "clusters": int((clusters > 0).sum()),
            "largest_cluster": int(clusters.max()),
            "candidates": self.candidates,
        }


def _roots(parents: IndexArray) -> IndexArray:
    roots = parents
    while (roots[roots] != roots).any():
        roots = roots[roots]
    return roots


def _coincidences(keys: IndexArray, one: IndexArray, other: IndexArray) -> int:
    """How many pairs of a document of ``one`` and a different one of ``other`` have the same key.

    Example:
        Keys ``[7, 7, 8]`` with themselves: 1. Keys ``[7, 7]`` and ``[7, 8]``: 2.
    """
    values, counts = np.unique(keys[one], return_counts=True)
    if one is other:
        return int((counts * (counts - 1) // 2).sum())
    others, other_counts = np.unique(keys[other], return_counts=True)
    _, here, there = np.intersect1d(values, others, assume_unique=True, return_indices=True)
    return int((counts[here] * other_counts[there]).sum())


def _named(corpus: Corpus, one: IndexArray, other: IndexArray, *, together: bool) -> tuple[int, int]:
    """The first two documents of different records, of one row if there are such."""
    if not together:
        return next(_of_different_records(corpus, one, other))
    rows = corpus.rows
    shared, counts = np.unique(rows[one], return_counts=True)
    shared = shared[counts > 1] if one is other else np.intersect1d(shared, rows[other])
    return next(
        pair
        for row in shared.tolist()
        for pair in _of_different_records(corpus, one[rows[one] == row], other[rows[other] == row])
    )


def _of_different_records(corpus: Corpus, one: IndexArray, other: IndexArray) -> Iterator[tuple[int, int]]:
    for first in one.tolist():
        fitting = corpus.records[other] != corpus.records[first]
        if fitting.any():
            yield first, int(other[np.argmax(fitting)])
