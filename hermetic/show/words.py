"""What pictures say, in any form: the same words in a terminal, on a page and in a file."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.data.show_render import printable
from hermetic.show.picture import KINDS, Kind, MaskPicture, RowPicture

MEANING: Final[dict[Kind, str]] = {
    "own": "read, of its own document",
    "leak": "leak: read, but of another document",
    "lost": "lost: should be read, and is not",
    "beyond": "beyond: of its own document, but not to be read",
    "idle": "read by padding, from which nobody learns",
}

_CELLS: Final = "Each line of a grid is a token. What is filled in its line are the tokens that it reads."

NO_LABEL: Final = "-"
"""What stands for the label -100."""

_LONGEST_TEXT: Final = 12


def headline(picture: RowPicture) -> str:
    """The row in a line: ``2 documents, 5 tokens``."""
    padding = picture.num_slots - picture.num_tokens
    parts = [counted(len(picture.documents), "document"), counted(picture.num_tokens, "token")]
    return ", ".join([*parts, *([f"{padding:,} of padding"] if padding else [])])


def place(picture: RowPicture) -> str:
    """Where the row is from, and the rule: ``packed, row 3 of 0 to 10; window 4``."""
    rows = f", row {picture.row:,} of 0 to {picture.num_rows - 1:,}" if picture.num_rows > 1 else ""
    rule = [
        *([] if picture.causal else ["tokens see later tokens, too"]),
        *([] if picture.window is None else [f"window {picture.window:,}"]),
        *([] if picture.chunk is None else [f"chunk {picture.chunk:,}"]),
    ]
    return printable("; ".join([f"{picture.subject}{rows}", *rule]))


def how_to_read(picture: RowPicture) -> str:
    """What a grid is, for somebody who has never seen one."""
    if picture.is_cell_by_cell:
        return _CELLS
    block = picture.masks[0].block
    return (
        f"{_CELLS} A square stands for {block:,} tokens that read {block:,} tokens, and is the stronger the more of "
        "its cells are read."
    )


def lengths_in_words(picture: RowPicture) -> str:
    """Of a long row: ``500 documents of 1 to 163 tokens, the middle one of 60``."""
    lengths = sorted(document.length for document in picture.documents)
    if len(lengths) == 1:
        return f"one document of {counted(lengths[0], 'token')}"
    span = (
        f"{lengths[0]:,} to {counted(lengths[-1], 'token')}"
        if lengths[0] < lengths[-1]
        else counted(lengths[0], "token")
    )
    return f"{len(lengths):,} documents of {span}, the middle one of {lengths[len(lengths) // 2]:,}"


def counted(count: int, noun: str) -> str:
    """``1 cell``, ``1,024 cells``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def verdict(mask: MaskPicture) -> str:
    """What a mask gets right and wrong: ``15 cells read: 6 leak``."""
    read = f"{counted(int(mask.seen.sum()), 'cell')} read"
    wrong = [f"{mask.total(kind):,} {word}" for kind, word in _WRONG if mask.total(kind)]
    idle = [f"{mask.total('idle'):,} by padding"] if mask.total("idle") else []
    if wrong or idle:
        return f"{read}: {', '.join([*wrong, *idle])}"
    return read


_WRONG: Final[tuple[tuple[Kind, str], ...]] = (("leak", "leak"), ("lost", "lost"), ("beyond", "beyond"))


def tiles_in_words(mask: MaskPicture) -> str:
    """What FlexAttention's kernels compute; empty for other readers."""
    if mask.tiles is None:
        return ""
    skipped, partial, full = mask.tiles.kernel_counts
    total, kernel = skipped + partial + full, mask.tiles.kernel_size
    if total == 1:
        return f"One tile of its kernels, of {kernel}, covers this row."
    return f"Its kernels have tiles of {kernel} and compute {partial + full:,} of {total:,}, {full:,} of them whole."


def caption(picture: RowPicture) -> str:
    """Every mask's verdict, in sentences."""
    return " ".join(f"{mask.title}: {verdict(mask)}." for mask in picture.masks)


def kinds_of(picture: RowPicture) -> tuple[Kind, ...]:
    """The kinds that some mask has."""
    return tuple(kind for kind in KINDS if any(mask.total(kind) for mask in picture.masks))


def token_names(picture: RowPicture) -> tuple[str, ...]:
    """What stands in each slot, in a few characters: a text, an id, or the number of the slot."""
    if picture.texts is not None:
        return tuple(shortened(text) for text in picture.texts)
    values = np.arange(picture.num_slots) if picture.ids is None else picture.ids
    return tuple(map(str, values.tolist()))


def shortened(text: str) -> str:
    """A text that fits a slot: what would not print is escaped, spaces are shown, the end may be left out."""
    shown = printable(text.replace("\n", "↵")).replace(" ", "␣")
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 1]}…"


def position_names(picture: RowPicture) -> tuple[str, ...]:
    """What each plane of positions is called."""
    planes = len(picture.positions)
    return ("position",) if planes == 1 else tuple(f"position {plane}" for plane in range(planes))


def label_names(picture: RowPicture) -> tuple[str, ...] | None:
    """The label of each slot: the token to be predicted there, or ``-``."""
    if picture.labels is None:
        return None
    if picture.texts is not None and picture.ids is not None:
        names = token_names(picture)
        found = zip(picture.labels.tolist(), picture.ids.tolist(), names, strict=True)
        return tuple(
            NO_LABEL if label == IGNORE_INDEX else name if label == own else str(label) for label, own, name in found
        )
    return tuple(NO_LABEL if label == IGNORE_INDEX else str(label) for label in picture.labels.tolist())


def warnings(picture: RowPicture) -> Iterator[str]:
    """What is wrong in the slots themselves."""
    firsts = picture.firsts_with_label()
    if firsts:
        yield (
            f"{counted(len(firsts), 'label')} on the first token of a document behind another one, at slot "
            f"{firsts[0]:,} first: the end of one document is trained to predict the start of the next."
        )
    moved = np.flatnonzero(picture.moved_positions())
    if len(moved):
        yield (
            f"{counted(len(moved), 'position')} not counted from 0 at the start of the document, at slot "
            f"{int(moved[0]):,} first."
        )


def of_document(picture: RowPicture, slot: int) -> str:
    """``document 1``, or ``padding``."""
    index = int(picture.document_ids[slot])
    return "padding" if index < 0 else f"document {picture.documents[index].number:,}"


def cell_in_words(picture: RowPicture, mask: MaskPicture, query: int, key: int) -> str:
    """One cell or block, for somebody who points at it."""
    found = mask.kind_of(query, key)
    kind, share = found if found is not None else (None, 0.0)
    meaning = "not read" if kind is None else MEANING[kind]
    if mask.block == 1:
        return f"token {query} of {of_document(picture, query)}, token {key} of {of_document(picture, key)}: {meaning}"
    tokens, others = (span_in_words(mask, block, block) for block in (query, key))
    return f"tokens {tokens}, tokens {others}: {meaning}, {share:.1%} of the cells"


def span_in_words(mask: MaskPicture, first: int, last: int) -> str:
    """The tokens of blocks ``first`` to ``last``: ``512 to 1,023``."""
    stop = min(mask.num_slots, (last + 1) * mask.block) - 1
    return f"{first * mask.block:,} to {stop:,}"
