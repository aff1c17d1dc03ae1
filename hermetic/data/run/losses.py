"""The account, line by line, of what is not whole in the rows: ``losses.jsonl`` in the packed folder.

Each line names the source, the 1-based record, what happened to it (``skipped``, ``dropped``, ``truncated``), and the
tokens that are not in the rows. What weights leave out is counted in the manifest and not listed. Price: one pass.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hermetic.data.run.corpus import Corpus, Draw
from hermetic.data.run.part_files import open_part
from hermetic.files import replacing
from hermetic.plan import Plan

__all__ = ["LOSSES_NAME", "write_losses"]

LOSSES_NAME = "losses.jsonl"


def write_losses(folder: Path, corpus: Corpus, draw: Draw, plan: Plan, names: Sequence[str]) -> None:
    """Write the account; ``names`` are those of the source files."""
    with replacing(folder / LOSSES_NAME) as file:
        for line in (*_skipped(corpus, names), *_cut(corpus, draw, plan, names)):
            file.write(json.dumps(line).encode() + b"\n")


def _skipped(corpus: Corpus, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for receipt, file in zip(corpus.receipts, corpus.file_of_part, strict=True):
        for one in receipt.skipped:
            yield {
                "source": names[file],
                "record": one.number,
                "what": "skipped",
                "reason": one.reason,
                "tokens": 0,
                "message": one.message,
            }


def _cut(corpus: Corpus, draw: Draw, plan: Plan, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    what = "truncated" if plan.on_overflow == "truncate" else "dropped"
    lost = plan.lost_tokens_by_document
    units = draw.of(np.fromiter(lost, dtype=np.int64, count=len(lost)))
    documents, counts = corpus.documents_of_units(units)
    tokens = np.repeat(np.fromiter(lost.values(), dtype=np.int64, count=len(lost)), counts)
    if what == "dropped":
        tokens = corpus.offsets[documents + 1] - corpus.offsets[documents]
    parts, places = corpus.places_of(documents)
    for part in np.unique(parts).tolist():
        numbers = open_part(corpus.folder, corpus.receipts[part]).numbers
        for index in np.flatnonzero(parts == part).tolist():
            yield {
                "source": names[corpus.file_of_part[part]],
                "record": int(numbers[places[index]]),
                "what": what,
                "reason": "longer than a row",
                "tokens": int(tokens[index]),
            }
