"""Rows for Megatron-Bridge and NeMo: packed Parquet, as ``GPTSFTPackedParquetDataset`` reads it.

Columns: ``input_ids``, list<int32>; ``loss_mask``, list<int8>; ``seq_start_id``, list<int32>, where each document of
the row begins. Files ``rows_00000.idx.parquet`` and so on; give their folder, or a pattern of them, as the data set.

The loss mask is shifted here, for Bridge does not: position t says whether token t + 1 of the same document is
supervised, and each document's last position is 0. Bridge then drops the last token of every document from the inputs
and the first one from the targets, so that no document is trained to follow another. A document of n tokens takes n - 1
positions there, and one of a single token none.

    documents [5, 6, 7] and [8, 9], 6, 7 and 9 supervised:
    input_ids [5, 6, 7, 8, 9], loss_mask [1, 1, 0, 1, 0], seq_start_id [0, 3]
    in Bridge: tokens [5, 6, 8], labels [6, 7, 9], loss mask [1, 1, 1], cu_seqlens [0, 2, 3]

Rows have no padding and no tail; Bridge pads with the end-of-text token when it collates. There it also takes the loss
from every position whose input is that token, whatever the mask says: what directly follows an end-of-text token is not
trained on. ``answer_only_loss`` has to be on, as it is by default, or the mask is not used. Context parallelism, which
wants each document padded to a multiple, is not prepared for.

``pack_metadata.json`` is what Bridge needs for ``pad_cu_seqlens``. The older form, one .npy file of pickled objects, is
not written: a pickle runs code when it is opened.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hermetic.constants import IGNORE_INDEX
from hermetic.data.blocks import PackedBlock, blocks_of
from hermetic.data.export.parquet import write_files
from hermetic.data.packed import PackedData

__all__ = ["write"]


def write(packed: PackedData, folder: Path, on_rows: Callable[[int], None]) -> None:
    """Write the rows in this form."""
    write_files(_tables(packed), folder, "rows_{index:05d}.idx.parquet", rows=len(packed), on_rows=on_rows)
    (folder / "pack_metadata.json").write_text(json.dumps([_metadata(packed)]) + "\n", encoding="utf-8")


def _tables(packed: PackedData) -> Iterator[Any]:
    return (_table(block) for block in blocks_of(packed))


def _table(block: PackedBlock) -> Any:
    tokens = pa.array(block.token_edges.astype(np.int32))
    documents = pa.array(block.document_edges.astype(np.int32))
    # The next token of a document's last one is the first of another, which is never supervised.
    mask = np.append(block.labels[1:] != IGNORE_INDEX, False).astype(np.int8)
    starts = block.starts - np.repeat(block.token_edges[:-1], block.documents_per_row)
    columns = {
        "input_ids": pa.ListArray.from_arrays(tokens, pa.array(block.input_ids, pa.int32())),
        "loss_mask": pa.ListArray.from_arrays(tokens, pa.array(mask)),
        "seq_start_id": pa.ListArray.from_arrays(documents, pa.array(starts.astype(np.int32))),
    }
    return pa.table(columns)


def _metadata(packed: PackedData) -> dict[str, float]:
    """What Bridge sizes its arrays of boundaries by, in positions: one less than tokens for each document."""
    per_row, positions = packed.documents_per_row, packed.document_lengths - 1
    filled = np.add.reduceat(positions, np.cumsum(per_row) - per_row)
    return {
        "dataset_max_seqlen": int(positions.max()),
        "max_samples_per_bin": int(per_row.max()),
        "packing_factor": round(len(positions) / len(per_row), 2),
        "packing_efficiency": round(100 * float(filled.mean()) / packed.manifest.capacity, 2),
        "pack_size": packed.manifest.capacity,
        "min_packed_seqlen": int(filled.min()),
    }
