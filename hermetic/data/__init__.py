"""Documents in, packed rows out, and back (floor 5).

``pack_sources`` reads, tokenizes, labels, plans and writes; ``open_packed`` verifies and reads what it wrote;
``inspect_packed`` counts it, ``show_packed`` shows it, ``check_packed`` audits it, ``find_duplicates`` looks for
copies, ``export_packed`` writes it in the forms of other trainers; ``plan_lengths`` says beforehand, from lengths
alone, what a capacity costs. Only NumPy and Arrow are imported here; transformers and datasets are imported by the
functions that use them, and torch with the first name of :mod:`hermetic.data.feed`, which gives packed rows to
training.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hermetic.data.check import CheckReport, check_packed
from hermetic.data.documents import TokenizedDocuments, tokenize_file
from hermetic.data.duplicates import DuplicateReport, find_duplicates
from hermetic.data.export import ExportSummary, export_packed
from hermetic.data.lengths import DocumentLengths, lengths_from_path
from hermetic.data.manifest import PackManifest
from hermetic.data.pack import PackProgress, pack_sources
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.plan_render import render_plan
from hermetic.data.planning import Alternative, PlanSummary, plan_lengths
from hermetic.data.render import render, render_check, render_duplicates, render_export
from hermetic.data.show import ShownRows, show_packed
from hermetic.data.show_render import RenderedRows
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
    "CheckReport",
    "DocumentLengths",
    "DocumentList",
    "DuplicateReport",
    "ExportSummary",
    "FileDocuments",
    "PackManifest",
    "PackProgress",
    "PackedData",
    "PackedDataset",
    "PackedStream",
    "PackedSummary",
    "PlanSummary",
    "RenderedRows",
    "RowBatchSampler",
    "RowPosition",
    "RowSampler",
    "ShownRows",
    "SourceSpec",
    "StreamLedger",
    "StreamPosition",
    "TokenizedDocuments",
    "check_packed",
    "export_packed",
    "find_duplicates",
    "inspect_packed",
    "ledger_from_loader",
    "lengths_from_path",
    "load_tokenizer",
    "open_packed",
    "pack_sources",
    "parse_source",
    "plan_lengths",
    "render",
    "render_check",
    "render_duplicates",
    "render_export",
    "render_plan",
    "row_position_from_loaders",
    "show_packed",
    "stream_position_from_loaders",
    "tokenize_file",
    "tokenizer_fingerprint",
]


def __getattr__(name: str) -> Any:
    """The names of the feed, resolved when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hermetic.data.feed"), name)
