"""Tokens of documents to tokens of rows, following a plan.

Algorithm: for a block of rows, the plan's pieces become one index into the flat tokens, which are gathered at
once. Guarantee: the first token of each piece is unsupervised, also where a policy cut a document in two.
Price: the tokens of one block of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.constants import IGNORE_INDEX
from hermetic.data.documents import TokenizedDocuments
from hermetic.plan import Plan

__all__ = ["RowBlock", "row_blocks"]

TokenArray: TypeAlias = npt.NDArray[np.int32]
IndexArray: TypeAlias = npt.NDArray[np.int64]

_ROWS_AT_ONCE: Final = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlock:
    """B rows that hold D documents (or fragments) of T tokens in all."""

    input_ids: TokenArray
    """``[T]``."""

    labels: TokenArray
    """``[T]``, unshifted, -100 on the first token of each document."""

    document_ids: IndexArray
    """``[D]``: which document of the source each one is, or is cut from."""

    lengths: TokenArray
    """``[D]`` tokens of each document."""

    documents_per_row: IndexArray
    """``[B]``."""

    @property
    def starts(self) -> IndexArray:
        """``[D]``: where each document begins in the flat tokens of the block."""
        return _edges(self.lengths)[:-1]

    @property
    def document_edges(self) -> IndexArray:
        """``[B + 1]``: row ``i`` holds the documents from edge ``i`` up to edge ``i + 1``."""
        return _edges(self.documents_per_row)

    @property
    def token_edges(self) -> IndexArray:
        """``[B + 1]``: row ``i`` holds the tokens from edge ``i`` up to edge ``i + 1``."""
        return _edges(self.lengths)[self.document_edges]

    @property
    def supervised_per_document(self) -> IndexArray:
        """``[D]`` supervised tokens of each document."""
        return np.add.reduceat(self.labels != IGNORE_INDEX, self.starts, dtype=np.int64)


def _edges(lengths: npt.NDArray[np.integer]) -> IndexArray:
    """Example: lengths ``[3, 5]`` have the edges ``[0, 3, 8]``."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def row_blocks(documents: TokenizedDocuments, plan: Plan) -> Iterator[RowBlock]:
    """The rows of a plan in its order, about a thousand at a time."""
    for first in range(0, plan.num_rows, _ROWS_AT_ONCE):
        rows = range(first, min(first + _ROWS_AT_ONCE, plan.num_rows))
        pieces = [plan.row_pieces(row) for row in rows]
        ids, starts, lengths = (np.concatenate(column) for column in zip(*pieces, strict=True))
        yield _gather(documents, ids, starts, lengths, np.array([len(piece[0]) for piece in pieces]))


def _gather(
    documents: TokenizedDocuments,
    ids: IndexArray,
    starts: IndexArray,
    lengths: IndexArray,
    documents_per_row: IndexArray,
) -> RowBlock:
    """The tokens of pieces: ``lengths[p]`` tokens of document ``ids[p]`` from its token ``starts[p]`` on.

    Example:
        Documents at offsets ``[0, 3, 5]``, pieces (1, 0, 2) and (0, 1, 2): tokens 3, 4, 1, 2 are gathered.
    """
    edges = _edges(lengths)
    index = np.arange(edges[-1]) + np.repeat(documents.offsets[ids] + starts - edges[:-1], lengths)
    labels = documents.labels[index]
    labels[edges[:-1]] = IGNORE_INDEX
    return RowBlock(
        input_ids=documents.tokens[index],
        labels=labels,
        document_ids=ids.astype(np.int64),
        lengths=lengths.astype(np.int32),
        documents_per_row=documents_per_row,
    )
