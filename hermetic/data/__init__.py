"""Documents in, packed rows out, and back (floor 5).

``pack_sources`` reads, tokenizes, labels, plans and writes; ``open_packed`` verifies and reads what it wrote;
``inspect_packed`` counts it; ``plan_lengths`` says beforehand, from lengths alone, what a capacity costs. Only NumPy
and Arrow are imported here; transformers and datasets are imported by the functions that use them.
"""

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

__all__ = [
    "Alternative",
    "DocumentLengths",
    "PackManifest",
    "PackProgress",
    "PackedData",
    "PackedSummary",
    "PlanSummary",
    "SourceSpec",
    "TokenizedDocuments",
    "inspect_packed",
    "lengths_from_path",
    "load_tokenizer",
    "open_packed",
    "pack_sources",
    "parse_source",
    "plan_lengths",
    "render",
    "render_plan",
    "tokenize_file",
    "tokenizer_fingerprint",
]
