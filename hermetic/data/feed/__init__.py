"""Packed rows to training, in one order, whoever reads them and whenever (floor 5).

:class:`PackedDataset` reads a packed folder and :class:`RowBatchSampler` deals its rows to ranks;
:class:`PackedStream` packs documents while it reads them. A position of either knows no ranks and no workers, so that a
run goes on with other numbers of both.
"""

from hermetic.data.feed.collate import collate_packed_rows, documents_of_row
from hermetic.data.feed.dataset import PackedDataset
from hermetic.data.feed.files import FileDocuments
from hermetic.data.feed.ledger import StreamLedger
from hermetic.data.feed.order import RowOrder
from hermetic.data.feed.position import RowPosition
from hermetic.data.feed.sampler import RowBatchSampler, RowSampler, row_position_from_loaders
from hermetic.data.feed.source import DocumentList, DocumentPart, DocumentSource
from hermetic.data.feed.stream import (
    PackedStream,
    StreamPosition,
    ledger_from_loader,
    stream_position_from_loaders,
)

__all__ = [
    "DocumentList",
    "DocumentPart",
    "DocumentSource",
    "FileDocuments",
    "PackedDataset",
    "PackedStream",
    "RowBatchSampler",
    "RowOrder",
    "RowPosition",
    "RowSampler",
    "StreamLedger",
    "StreamPosition",
    "collate_packed_rows",
    "documents_of_row",
    "ledger_from_loader",
    "row_position_from_loaders",
    "stream_position_from_loaders",
]
