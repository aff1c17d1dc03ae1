"""Rows for MosaicML Streaming: MDS shards with their ``index.json``, written by that library's own writer.

Columns of a sample, which is one row: ``input_ids``, ``labels`` and ``seq_lengths``, each ``ndarray:int32``. Labels are
unshifted, -100 on each document's first token and on unsupervised tokens. Rows have no padding and no tail.

    documents [5, 6, 7] and [8, 9], 6, 7 and 9 supervised:
    input_ids [5, 6, 7, 8, 9], labels [-100, 6, 7, -100, 9], seq_lengths [3, 2]

``streaming.StreamingDataset`` gives the arrays back; ``hermetic.collate`` makes a batch of the documents that
``numpy.split(input_ids, numpy.cumsum(seq_lengths)[:-1])`` cuts them into. LLM Foundry's own packing keeps documents
apart in MPT models alone; these rows are for a loader that reads ``seq_lengths``.

mosaicml-streaming 0.13 asks for transformers below 5, which reading and writing shards does not need: install it first
and ``hermetic[hf]`` after it, against pip's complaint. Therefore no extra brings it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from hermetic.data.blocks import blocks_of
from hermetic.data.dependencies import import_optional
from hermetic.data.packed import PackedData

__all__ = ["COLUMNS", "write"]

COLUMNS: Final = {"input_ids": "ndarray:int32", "labels": "ndarray:int32", "seq_lengths": "ndarray:int32"}


def write(packed: PackedData, folder: Path, on_rows: Callable[[int], None]) -> None:
    """Write the rows in this form.

    Raises:
        MissingDependencyError: If mosaicml-streaming is not installed.
    """
    streaming = import_optional("streaming", install="mosaicml-streaming")
    with streaming.MDSWriter(out=os.fspath(folder), columns=dict(COLUMNS)) as writer:
        for block in blocks_of(packed):
            tokens, documents = block.token_edges, block.document_edges
            for row in range(len(block.documents_per_row)):
                span = slice(tokens[row], tokens[row + 1])
                lengths = block.lengths[documents[row] : documents[row + 1]]
                writer.write(
                    {
                        "input_ids": block.input_ids[span],
                        "labels": block.labels[span],
                        "seq_lengths": lengths.astype(np.int32),
                    }
                )
            on_rows(block.first_row + len(block.documents_per_row))
