"""Documents in, packed rows out, and back (floor 5).

``pack_sources`` reads, tokenizes, labels, plans and writes; ``open_packed`` verifies and reads what it wrote;
``inspect_packed`` counts it; ``plan_lengths`` says beforehand, from lengths alone, what a capacity costs. Only NumPy
and Arrow are imported here; transformers and datasets are imported by the functions that use them, and torch with the
first name of :mod:`hermetic.data.feed`, which gives packed rows to training.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hermetic.data.documents import TokenizedDocuments, tokenize_file
from hermetic.data.lengths import DocumentLengths, lengths_from_path
from hermetic.data.manifest import PackManifest
from hermetic.data.pack import PackProgress, pack_sources
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.plan_render import render_plan
from hermetic.data.planning import Alternative, PlanSummary, plan_lengths
from hermetic.data.render import render
from hermetic.data.sources import SourceSpec, parse_source
from hermetic.data.summary import PackedSummary, inspect_packed
from hermetic.data.tokenizer import load_tokenizer, tokenizer_fingerprint

if TYPE_CHECKING:
    from hermetic.data.feed import (
        DocumentList,
        FileDocuments,
        PackedDataset,
        PackedStream,
        RowBatchSampler,
        RowPosition,
        RowSampler,
        StreamLedger,
        StreamPosition,
        ledger_from_loader,
        row_position_from_loaders,
        stream_position_from_loaders,
    )

__all__ = [
    "Alternative",
    "DocumentLengths",
    "DocumentList",
    "FileDocuments",
    "PackManifest",
    "PackProgress",
    "PackedData",
    "PackedDataset",
    "PackedStream",
    "PackedSummary",
    "PlanSummary",
    "RowBatchSampler",
    "RowPosition",
    "RowSampler",
    "SourceSpec",
    "StreamLedger",
    "StreamPosition",
    "TokenizedDocuments",
    "inspect_packed",
    "ledger_from_loader",
    "lengths_from_path",
    "load_tokenizer",
    "open_packed",
    "pack_sources",
    "parse_source",
    "plan_lengths",
    "render",
    "render_plan",
    "row_position_from_loaders",
    "stream_position_from_loaders",
    "tokenize_file",
    "tokenizer_fingerprint",
]


def __getattr__(name: str) -> Any:
    """The names of the feed, resolved when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hermetic.data.feed"), name)
