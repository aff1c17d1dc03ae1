"""The account, line by line, of what is not whole in the rows: ``losses.jsonl`` in the packed folder.

Each line names the source, the 1-based record, what happened to it (``skipped``, ``dropped``, ``truncated`` or
``split``), why, and the tokens that are not in the rows; of what was split, also its pieces. What weights leave out is
counted in the manifest and not listed. Price: one pass, and a line in memory at a time.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.data.run.corpus import Corpus, Draw, records_of
from hermetic.files import replacing
from hermetic.plan import Plan

__all__ = ["LOSSES_NAME", "write_losses"]

IndexArray: TypeAlias = npt.NDArray[np.int64]

LOSSES_NAME: Final = "losses.jsonl"
_TOO_LONG: Final = "longer than a row"
_AT_A_BORDER: Final = "at the end of a row"


def write_losses(folder: Path, corpus: Corpus, draw: Draw, plan: Plan, names: Sequence[str]) -> None:
    """Write the account; ``names`` are those of the source files."""
    with replacing(folder / LOSSES_NAME) as file:
        for line in chain(_skipped(corpus, names), _lost(corpus, draw, plan, names), _split(corpus, draw, plan, names)):
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


def _lost(corpus: Corpus, draw: Draw, plan: Plan, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A preference pair is one unit of the plan and two lines here."""
    what = "truncated" if plan.on_overflow == "truncate" else "dropped"
    lost = plan.lost_tokens_by_document
    units = draw.of(np.fromiter(lost, dtype=np.int64, count=len(lost)))
    documents, counts = corpus.documents_of_units(units)
    tokens = np.repeat(np.fromiter(lost.values(), dtype=np.int64, count=len(lost)), counts)
    if what == "dropped":
        tokens = corpus.offsets[documents + 1] - corpus.offsets[documents]
    for origin, count in zip(_origins(corpus, documents, names), tokens.tolist(), strict=True):
        yield origin | {"what": what, "reason": _TOO_LONG, "tokens": count}


def _split(corpus: Corpus, draw: Draw, plan: Plan, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    if plan.fragments is None:
        return
    pieces = np.bincount(plan.fragments.document, minlength=plan.num_documents)
    cut = np.flatnonzero(pieces > 1)
    reason = _AT_A_BORDER if plan.strategy == "concat_then_split" else _TOO_LONG
    documents, _ = corpus.documents_of_units(draw.of(cut))  # one each: no pair is ever cut
    for origin, count in zip(_origins(corpus, documents, names), pieces[cut].tolist(), strict=True):
        yield origin | {"what": "split", "reason": reason, "tokens": 0, "pieces": count}


def _origins(corpus: Corpus, documents: IndexArray, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    files, numbers = records_of(corpus, documents)
    for file, number in zip(files.tolist(), numbers.tolist(), strict=True):
        yield {"source": names[file], "record": number}
