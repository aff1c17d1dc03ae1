"""Rows as plain NumPy arrays, for a loader of one's own.

Files, each opened with ``numpy.load(path, mmap_mode="r", allow_pickle=False)``, for B rows, D documents and T tokens:

    tokens.npy          int32 [T]      the tokens of all rows, end to end
    labels.npy          int32 [T]      unshifted, -100 on each document's first token and on unsupervised tokens
    seq_start_id.npy    int32 [D]      where each document begins, counted from the start of its row
    roles.npy           int8 [D]       1 chosen, 2 rejected, 0 neither; only where preference pairs were packed
    row_tokens.npy      int64 [B + 1]  row i has the tokens from row_tokens[i] up to row_tokens[i + 1]
    row_documents.npy   int64 [B + 1]  row i has the documents from row_documents[i] up to row_documents[i + 1]

Rows have no padding and no tail: a row ends where the next one begins.

    rows of [5, 6, 7] and [8, 9], and of [4], 6, 7 and 9 supervised:
    tokens [5, 6, 7, 8, 9, 4], labels [-100, 6, 7, -100, 9, -100], seq_start_id [0, 3, 0],
    row_tokens [0, 5, 6], row_documents [0, 2, 3]
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hermetic.data.blocks import blocks_of
from hermetic.data.packed import PackedData

__all__ = ["write"]


def write(packed: PackedData, folder: Path, on_rows: Callable[[int], None]) -> None:
    """Write the rows in this form."""
    edges = np.concatenate([[0], np.cumsum(packed.document_lengths)])
    row_documents = np.concatenate([[0], np.cumsum(packed.documents_per_row)])
    row_tokens = edges[row_documents]
    starts = edges[:-1] - np.repeat(row_tokens[:-1], packed.documents_per_row)
    small = {"seq_start_id": starts.astype(np.int32), "row_tokens": row_tokens, "row_documents": row_documents}
    for name, values in small.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)
    shape = (int(row_tokens[-1]),)
    tokens, labels = (
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.int32, shape=shape)
        for name in ("tokens", "labels")
    )
    roles = []
    for block in blocks_of(packed):
        if block.roles is not None:
            roles.append(block.roles)
        stop = block.first_row + len(block.documents_per_row)
        span = slice(row_tokens[block.first_row], row_tokens[stop])
        tokens[span], labels[span] = block.input_ids, block.labels
        on_rows(stop)
    if roles:
        np.save(folder / "roles.npy", np.concatenate(roles), allow_pickle=False)
    tokens.flush()
    labels.flush()
