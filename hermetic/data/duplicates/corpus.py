"""Documents in the form in which alike ones are looked for: signed, cut into bands, copies standing as one.

Price: 16 bytes of digest, 32 of origin and 8 a band for each document; their tokens stay in the mapped files.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.blocks import PackedBlock, blocks_of
from hermetic.data.duplicates.shingles import require_small_ids, shingles
from hermetic.data.packed import PackedData

__all__ = ["SIGNATURE", "Corpus"]

IndexArray: TypeAlias = npt.NDArray[np.int64]
HashArray: TypeAlias = npt.NDArray[np.uint64]

SIGNATURE: Final = 128
"""Entries of a MinHash signature."""

_SIGNED_AT_ONCE: Final = 512
"""Signatures come as Python integers; a few at a time are several times faster than many."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Corpus:
    """D documents, of which N are different: ``kinds``, numbered by their first documents."""

    packed: PackedData
    chunks: tuple[npt.NDArray[np.int32], ...]
    """The tokens of all rows as they lie in the mapped files."""

    chunk_edges: IndexArray
    edges: IndexArray
    """``[D + 1]`` in the tokens of all rows."""

    rows: IndexArray
    """``[D]``."""

    sources: IndexArray
    """``[D]``."""

    numbers: IndexArray
    """``[D]``."""

    records: IndexArray
    """``[D]``: equal for documents of one record, and for no others."""

    members: IndexArray
    """``[D]``: the documents, kind after kind, each kind's in order."""

    kind_edges: IndexArray
    """``[N + 1]`` in ``members``."""

    keys: HashArray
    """``[N, bands]``."""

    @classmethod
    def read(cls, packed: PackedData, rensa: Any, *, width: int, seed: int, say: Callable[[str], None]) -> "Corpus":
        """One pass over the rows."""
        blocks: list[tuple[Any, ...]] = []
        done = 0
        for block in blocks_of(packed):
            require_small_ids(block.input_ids, f"{packed.path}, rows {block.first_row} and later")
            edges = np.concatenate([block.starts, [len(block.input_ids)]])
            rows = block.first_row + np.repeat(np.arange(len(block.documents_per_row)), block.documents_per_row)
            keys = _band_keys(rensa, block, edges, width=width, seed=seed)
            blocks.append((_digests(block, edges), keys, rows, block.source_ids, block.record_numbers))
            done += len(block.lengths)
            say(f"{done:,} documents signed")
        digests, keys, rows, sources, numbers = (np.concatenate(column) for column in zip(*blocks, strict=True))
        del blocks
        firsts, members, kind_edges = _kinds(digests)
        chunks = _token_chunks(packed)
        _, records = np.unique(np.stack([sources, numbers], axis=1), axis=0, return_inverse=True)
        return cls(
            packed=packed,
            chunks=chunks,
            chunk_edges=np.cumsum([0, *map(len, chunks)]),
            edges=np.concatenate([[0], np.cumsum(packed.document_lengths)]),
            rows=rows,
            sources=sources,
            numbers=numbers,
            records=records.reshape(-1),
            members=members,
            kind_edges=kind_edges,
            keys=keys[firsts],
        )

    def of_kind(self, kind: int) -> IndexArray:
        """The documents of a kind, in order."""
        return self.members[self.kind_edges[kind] : self.kind_edges[kind + 1]]

    def tokens(self, document: int) -> npt.NDArray[np.int32]:
        """The tokens of a document, which lies in one chunk, for no row lies in two."""
        start, stop = self.edges[document], self.edges[document + 1]
        chunk = int(np.searchsorted(self.chunk_edges, start, side="right")) - 1
        return self.chunks[chunk][start - self.chunk_edges[chunk] : stop - self.chunk_edges[chunk]]


def _token_chunks(packed: PackedData) -> tuple[npt.NDArray[np.int32], ...]:
    column = packed.dataset.data.column("input_ids")
    return tuple(chunk.flatten().to_numpy(zero_copy_only=True) for chunk in column.chunks if len(chunk))


def _digests(block: PackedBlock, edges: IndexArray) -> npt.NDArray[np.void]:
    """128 bits that are equal for equal documents, and as good as never otherwise."""
    spans = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    tokens = np.ascontiguousarray(block.input_ids).view(np.uint8).data
    digests = b"".join(hashlib.blake2b(tokens[4 * start : 4 * stop], digest_size=16).digest() for start, stop in spans)
    return np.frombuffer(digests, dtype="V16")


def _band_keys(rensa: Any, block: PackedBlock, edges: IndexArray, *, width: int, seed: int) -> HashArray:
    """``[D, bands]``, a 64-bit number for each band of a document's signature."""
    firsts = range(0, len(edges) - 1, _SIGNED_AT_ONCE)
    spans = (edges[first : first + _SIGNED_AT_ONCE + 1] for first in firsts)
    return np.concatenate([_signed(rensa, block.input_ids, span, width=width, seed=seed) for span in spans])


def _signed(rensa: Any, tokens: npt.NDArray[np.int32], edges: IndexArray, *, width: int, seed: int) -> HashArray:
    values, value_edges = shingles(tokens[edges[0] : edges[-1]], edges - edges[0])
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(values, value_edges.astype(np.uint64), SIGNATURE, seed)
    signatures = np.array(matrix.to_rows(), dtype=np.uint64)
    bands = signatures[:, : SIGNATURE // width * width].reshape(len(signatures), -1, width)
    keys = np.zeros(bands.shape[:2], dtype=np.uint64)
    for entry in range(width):
        keys = (keys ^ bands[:, :, entry]) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(32)
    return keys


def _kinds(digests: npt.NDArray[np.void]) -> tuple[IndexArray, IndexArray, IndexArray]:
    """The first document of each kind, all documents by kind, and the edges of the kinds."""
    halves = digests.view(np.uint64).reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    new = np.concatenate([[True], (halves[order][1:] != halves[order][:-1]).any(axis=1)])
    firsts = np.minimum.reduceat(order, np.flatnonzero(new))
    kind_by_first = np.argsort(np.argsort(firsts))
    kinds = np.empty(len(order), dtype=np.int64)
    kinds[order] = kind_by_first[np.cumsum(new) - 1]
    members = np.argsort(kinds, kind="stable")
    return np.sort(firsts), members, np.concatenate([[0], np.cumsum(np.bincount(kinds))])
