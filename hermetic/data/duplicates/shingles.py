"""Documents as sets of shingles, three tokens each, and how alike two such sets are.

Algorithm: three ids of at most 21 bits make one 64-bit number, which a bijection scatters over all 64 bits. Guarantee:
different shingles have different numbers, so the Jaccard similarity of two documents is exact and not that of hashes.
Price: 8 bytes a token of the documents at hand, and for the similarity one sort of each.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.errors import DataError
from hermetic.plan.arrays import compiled

__all__ = ["LARGEST_TOKEN", "SHINGLE_TOKENS", "candidate_pairs", "join", "overlaps", "require_small_ids", "shingles"]

IndexArray: TypeAlias = npt.NDArray[np.int64]
HashArray: TypeAlias = npt.NDArray[np.uint64]

SHINGLE_TOKENS: Final = 3
LARGEST_TOKEN: Final = 2**21 - 2
"""Its successor still has 21 bits; no tokenizer in use comes near."""


def require_small_ids(tokens: npt.NDArray[np.int32], where: str) -> None:
    """Refuse ids of which three do not fit a 64-bit number.

    Raises:
        DataError: If an id is negative or above ``LARGEST_TOKEN``.
    """
    wrong = tokens[(tokens < 0) | (tokens > LARGEST_TOKEN)]
    if len(wrong):
        raise DataError(
            f"{where} has the token {wrong[0]}, expected 0 to {LARGEST_TOKEN}, so that three make one 64-bit number; "
            "documents of such tokens cannot be compared exactly"
        )


@compiled
def shingles(tokens: npt.NDArray[np.int32], edges: IndexArray) -> tuple[HashArray, IndexArray]:
    """The shingles of documents, repetitions kept.

    Args:
        tokens: ``[T]`` of D documents.
        edges: ``[D + 1]``, strictly increasing: where each begins and the last one ends.

    Returns:
        Their numbers, document after document, and the ``[D + 1]`` edges of these. A document of n tokens has
        ``max(1, n - 2)``: one that is shorter than a shingle is one by itself.

    Example:
        Lengths ``[5, 2]`` give edges ``[0, 3, 4]``.
    """
    value_edges = np.zeros(len(edges), dtype=np.int64)
    for document in range(len(edges) - 1):
        count = max(1, edges[document + 1] - edges[document] - 2)
        value_edges[document + 1] = value_edges[document] + count
    values = np.empty(value_edges[-1], dtype=np.uint64)
    for document in range(len(edges) - 1):
        stop = edges[document + 1]
        for place in range(value_edges[document], value_edges[document + 1]):
            start = edges[document] + place - value_edges[document]
            value = np.uint64(0)
            for position in range(start, start + 3):
                present = np.uint64(tokens[position] + 1) if position < stop else np.uint64(0)
                value = (value << np.uint64(21)) | present
            # the finalizer of SplitMix64, a bijection of 64-bit numbers
            value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            values[place] = value ^ (value >> np.uint64(31))
    return values, value_edges


@compiled
def overlaps(
    values: HashArray, edges: IndexArray, first: IndexArray, second: IndexArray
) -> tuple[IndexArray, IndexArray]:
    """The sizes of intersection and union of pairs of shingle sets.

    Args:
        values: of :func:`shingles`.
        edges: their ``[D + 1]`` edges.
        first: ``[P]``, the one document of each pair.
        second: ``[P]``, the other one.

    Returns:
        ``[P]`` shingles in both, ``[P]`` in any; repetitions within a document do not count.

    Example:
        Sets ``{1, 2, 3}`` and ``{2, 3, 4}``: 2 in both, 4 in any.
    """
    sets = np.empty_like(values)
    sizes = np.zeros(len(edges) - 1, dtype=np.int64)
    for document in range(len(edges) - 1):
        ordered = np.sort(values[edges[document] : edges[document + 1]])
        for place in range(len(ordered)):
            if place == 0 or ordered[place] != ordered[place - 1]:
                sets[edges[document] + sizes[document]] = ordered[place]
                sizes[document] += 1
    both = np.zeros(len(first), dtype=np.int64)
    total = np.zeros(len(first), dtype=np.int64)
    for pair in range(len(first)):
        a, b = edges[first[pair]], edges[second[pair]]
        a_stop, b_stop = a + sizes[first[pair]], b + sizes[second[pair]]
        total[pair] = a_stop - a + b_stop - b
        while a < a_stop and b < b_stop:
            if sets[a] == sets[b]:
                both[pair] += 1
                a += 1
                b += 1
            elif sets[a] < sets[b]:
                a += 1
            else:
                b += 1
        total[pair] -= both[pair]
    return both, total


@compiled
def candidate_pairs(
    keys: HashArray, band: int, order: IndexArray, place: tuple[int, int], pairs: IndexArray
) -> tuple[int, tuple[int, int]]:
    """Pairs of documents with the same key in a band and different ones in every band before it.

    Args:
        keys: ``[N, bands]``.
        band: the one to look at.
        order: ``[N]``, the documents by their key of this band.
        place: where in ``order`` to go on, a document and its partner; ``(0, 1)`` at first.
        pairs: ``[P, 2]``, to be filled, the smaller document first.

    Returns:
        How many pairs were found, and the place to go on with, which starts with N when there are no more.
    """
    left, right = place
    found = 0
    while left < len(order):
        if right >= len(order) or keys[order[right], band] != keys[order[left], band]:
            left += 1
            right = left + 1
            continue
        if found == len(pairs):
            return found, (left, right)
        one, other = min(order[left], order[right]), max(order[left], order[right])
        known = False
        for earlier in range(band):
            known = known or keys[one, earlier] == keys[other, earlier]
        if not known:
            pairs[found, 0], pairs[found, 1] = one, other
            found += 1
        right += 1
    return found, (left, right)


@compiled
def join(parents: IndexArray, first: IndexArray, second: IndexArray) -> None:
    """Join the clusters of the two documents of each pair; a cluster is called by its smallest document.

    Args:
        parents: ``[N]``, a forest in which each root is its own parent, changed in place.
        first: ``[P]``.
        second: ``[P]``.
    """
    for pair in range(len(first)):
        one, other = first[pair], second[pair]
        while parents[one] != one:
            parents[one] = parents[parents[one]]
            one = parents[one]
        while parents[other] != other:
            parents[other] = parents[parents[other]]
            other = parents[other]
        parents[max(one, other)] = min(one, other)
