"""Where documents touch in a row: the last tokens of one, the first of the next, and its label there."""

from typing import Any, Final

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.data import PackedData
from hermetic.data.blocks import PackedBlock, block_of_row
from hermetic.data.show import location_of, texts_of
from hermetic.data.show_render import printable
from hermetic.markup import Section, cell, counted, row, section, soft, table

MAX_SEAMS: Final = 12
"""Of one row, that are shown."""

_TOKENS: Final = 5
"""Shown at each side."""


def seams(packed: PackedData, tokenizer: Any) -> Section | None:
    """How many seams there are, and those of the first row that has one; ``None`` where no row has."""
    several = np.flatnonzero(packed.documents_per_row > 1)
    count = len(packed.document_lengths) - len(packed)
    if not count:
        return None
    said = (
        f"{counted(count, 'seam')} in {counted(len(packed), 'row')}. At every one the first token of the document has "
        f"the label {IGNORE_INDEX}, so that no token is trained to predict another document: read in all rows."
    )
    index = int(several[0])
    block = block_of_row(packed, index)
    documents = len(block.lengths)
    rows = (_seam(packed, block, at, tokenizer) for at in range(1, min(documents, MAX_SEAMS + 1)))
    more = f", the first {MAX_SEAMS} of {documents - 1}" if documents - 1 > MAX_SEAMS else ""
    what = "tokens" if tokenizer is not None else "token ids"
    head = ("seam", f"last {what} before it", f"first {what} after it", "label of the first")
    shown = table(head, rows, name=f"Seams of row {index}", numbers={3})
    return section("Seams", soft(said), f"<h3>Row {index:,}{more}</h3>", shown)


def _seam(packed: PackedData, block: PackedBlock, at: int, tokenizer: Any) -> str:
    """Between documents ``at - 1`` and ``at`` of the block."""
    start, before, after = (int(one) for one in (block.starts[at], block.lengths[at - 1], block.lengths[at]))
    last = block.input_ids[start - min(before, _TOKENS) : start].tolist()
    first = block.input_ids[start : start + min(after, _TOKENS)].tolist()
    label = int(block.labels[start])
    where = f"{location_of(packed, block, at - 1)} to {location_of(packed, block, at)}"
    return row(
        where,
        cell(_said(last, tokenizer), "token"),
        cell(_said(first, tokenizer), "token"),
        cell(f"{label}", "number ok" if label == IGNORE_INDEX else "number beyond"),
        kind="name",
    )


def _said(ids: list[int], tokenizer: Any) -> str:
    if tokenizer is None:
        return " ".join(map(str, ids))
    return printable("".join(text for text, _ in texts_of(tokenizer, ids)))
