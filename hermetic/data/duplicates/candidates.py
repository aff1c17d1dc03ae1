"""Pairs of kinds of documents that may be alike, and how alike they are.

Guarantee: each pair that agrees in a band comes once; its similarity is exact. Price: the pairs and the tokens of one
batch in memory; a group of n documents that all resemble each other has n (n - 1) / 2 pairs to compare.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.duplicates.corpus import Corpus
from hermetic.data.duplicates.shingles import candidate_pairs, overlaps, shingles

__all__ = ["candidates", "similarities"]

IndexArray: TypeAlias = npt.NDArray[np.int64]
HashArray: TypeAlias = npt.NDArray[np.uint64]

_PAIRS_AT_ONCE: Final = 1 << 16
_TOKENS_AT_ONCE: Final = 1 << 24


def candidates(keys: HashArray, say: Callable[[str], None]) -> Iterator[IndexArray]:
    """``[P, 2]`` pairs of kinds that agree in some band, each pair once, some ten thousand at a time."""
    pairs = np.empty((_PAIRS_AT_ONCE, 2), dtype=np.int64)
    total = 0
    for band in range(keys.shape[1]):
        order = np.argsort(keys[:, band], kind="stable")
        place = (0, 1)
        while place[0] < len(order):
            found, place = candidate_pairs(keys, band, order, place, pairs)
            total += found
            say(f"{total:,} candidates, band {band + 1} of {keys.shape[1]}")
            if found:
                yield pairs[:found].copy()


def similarities(corpus: Corpus, pairs: IndexArray) -> npt.NDArray[np.float64]:
    """``[P]``, exact; as many pairs at a time as have some ten million tokens."""
    documents = corpus.members[corpus.kind_edges[pairs]]
    lengths = (corpus.edges[documents + 1] - corpus.edges[documents]).sum(axis=1)
    batch = np.cumsum(lengths) // _TOKENS_AT_ONCE
    parts = [_batch_similarities(corpus, documents[batch == number]) for number in np.unique(batch)]
    return np.concatenate(parts)


def _batch_similarities(corpus: Corpus, pairs: IndexArray) -> npt.NDArray[np.float64]:
    documents, places = np.unique(pairs, return_inverse=True)
    places = places.reshape(pairs.shape)
    pieces = [corpus.tokens(document) for document in documents.tolist()]
    edges = np.cumsum([0, *map(len, pieces)])
    values, value_edges = shingles(np.concatenate(pieces), edges)
    both, total = overlaps(values, value_edges, places[:, 0].copy(), places[:, 1].copy())
    found: npt.NDArray[np.float64] = both / total
    return found
