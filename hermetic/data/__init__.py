"""Documents in, packed rows out, and back (floor 5).

``pack_file`` reads, tokenizes, labels, plans and writes; ``open_packed`` verifies and reads what it wrote;
``inspect_packed`` counts it. Only NumPy and Arrow are imported here; transformers and datasets are imported
by the functions that use them.
"""

from hermetic.data.documents import TokenizedDocuments, tokenize_file
from hermetic.data.manifest import PackManifest
from hermetic.data.pack import pack_file
from hermetic.data.packed import PackedData, open_packed
from hermetic.data.render import render
from hermetic.data.summary import PackedSummary, inspect_packed
from hermetic.data.tokenizer import load_tokenizer, tokenizer_fingerprint

__all__ = [
    "PackManifest",
    "PackedData",
    "PackedSummary",
    "TokenizedDocuments",
    "inspect_packed",
    "load_tokenizer",
    "open_packed",
    "pack_file",
    "render",
    "tokenize_file",
    "tokenizer_fingerprint",
]
