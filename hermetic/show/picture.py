"""A row of tokens and what each backend lets its tokens read: plain data, and the ways to look at it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from hermetic.constants import IGNORE_INDEX
from hermetic.show.pattern import Ints

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Kind = Literal["own", "leak", "lost", "beyond", "idle"]

KINDS: Final[tuple[Kind, ...]] = ("own", "leak", "lost", "beyond", "idle")
"""``own``: seen, as it should be. ``leak``: seen, but of another document or padding. ``lost``: not seen, but should
be. ``beyond``: of the own document, but past the window or chunk, or later. ``idle``: what padding sees, which nobody
learns from."""

WORST_FIRST: Final[tuple[Kind, ...]] = ("leak", "lost", "beyond", "own", "idle")
"""Which kind names a block that holds several."""

MAX_CELLS: Final = 64
"""Longer rows are drawn as at most so many blocks a side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentOfRow:
    """One document of the row; an empty one has no slot."""

    number: int
    """From 0 in this row, or what the subject calls it."""
    start: int
    length: int
    supervised: int | None
    """Tokens with a label; ``None`` where the subject has no labels."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskPicture:
    """What tokens may read, by one reader of the boundaries, in blocks of ``block`` tokens."""

    name: str
    """``boundaries``, ``causal``, ``flex``, or the helper of a library."""
    title: str
    says: str
    """What it is, in a sentence for somebody who has never seen a mask."""
    block: int
    """Tokens of a side of a block; 1: the picture is cell by cell."""
    num_slots: int
    cells: Mapping[Kind, Ints]
    """``[N, N]`` of each kind: cells of the mask in that block, queries down, keys across."""
    tiles: "Tiles | None" = None
    """What FlexAttention makes of it; ``None`` for other readers."""

    @property
    def blocks(self) -> int:
        """N, blocks of a side."""
        return -(-self.num_slots // self.block)

    @property
    def seen(self) -> Ints:
        """``[N, N]`` cells that are seen."""
        return self.cells["own"] + self.cells["leak"] + self.cells["beyond"] + self.cells["idle"]

    @property
    def is_right(self) -> bool:
        """Whether every token of a document sees what it should and nothing else."""
        return not any(self.total(kind) for kind in ("leak", "lost", "beyond"))

    def total(self, kind: Kind) -> int:
        """Cells of a kind in the whole row."""
        return int(self.cells[kind].sum())

    def size(self, block: int) -> int:
        """Tokens of the block with this number: those at the end may be fewer."""
        return min(self.block, self.num_slots - block * self.block)

    def kind_of(self, query: int, key: int) -> tuple[Kind, float] | None:
        """The worst kind in a block and the share of its cells that are of it; ``None`` where there is none."""
        for kind in WORST_FIRST:
            if count := int(self.cells[kind][query, key]):
                return kind, count / (self.size(query) * self.size(key))
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        tiles = None if self.tiles is None else self.tiles.to_dict()
        return {
            "name": self.name,
            "title": self.title,
            "says": self.says,
            "block": self.block,
            "seen": int(self.seen.sum()),
            "right": self.is_right,
            "totals": {kind: self.total(kind) for kind in KINDS},
            "cells": {kind: self.cells[kind].tolist() for kind in KINDS if self.total(kind)},
            "tiles": tiles,
        }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tiles:
    """The blocks of FlexAttention's ``BlockMask``."""

    size: int
    """Tokens of a side of the tiles that are drawn."""
    states: Ints
    """``[M, M]``: 0 skipped, 1 computed cell by cell, 2 computed whole."""
    kernel_size: int
    """Tokens of a side of a kernel's own tiles."""
    kernel_counts: tuple[int, int, int]
    """Of the kernel's tiles: skipped, cell by cell, whole."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        skipped, partial, full = self.kernel_counts
        kernel = {"size": self.kernel_size, "skipped": skipped, "partial": partial, "full": full}
        return {"size": self.size, "states": self.states.tolist(), "kernel": kernel}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowPicture:
    """One row: its documents, what stands in each slot, and what each reader lets its tokens see.

    Shows itself in a terminal through rich, in a notebook, as SVG, PNG, text and JSON.

    Example:
        >>> import hermetic
        >>> picture = hermetic.show([2, 3])
        >>> picture.mask("boundaries").seen.tolist()[4]
        [0, 0, 1, 1, 1]
    """

    subject: str
    """What was shown, in words."""
    row: int
    num_rows: int
    causal: bool
    window: int | None
    chunk: int | None
    documents: tuple[DocumentOfRow, ...]
    document_ids: Ints
    """``[T]``: which of ``documents`` each slot belongs to, -1 for padding."""
    positions: Ints
    """``[A, T]``: the positions that the model gets; several planes for images and video."""
    ids: Ints | None
    """``[T]`` token ids."""
    texts: tuple[str, ...] | None
    """``T`` texts, for a row that is drawn cell by cell and a tokenizer that was named."""
    labels: Ints | None
    """``[T]``, unshifted."""
    masks: tuple[MaskPicture, ...]
    """The boundaries' own first."""
    notes: tuple[str, ...]
    """What has to be known to read the picture."""

    @property
    def num_slots(self) -> int:
        """T, padding included."""
        return len(self.document_ids)

    @property
    def num_tokens(self) -> int:
        """Slots that belong to a document."""
        return int((self.document_ids >= 0).sum())

    @property
    def is_cell_by_cell(self) -> bool:
        """Whether every slot and every cell is drawn."""
        return self.num_slots <= MAX_CELLS

    def mask(self, name: str) -> MaskPicture:
        """The picture of one reader.

        Raises:
            KeyError: it was not drawn.
        """
        return {mask.name: mask for mask in self.masks}[name]

    def firsts_with_label(self) -> tuple[int, ...]:
        """Slots where a document starts, behind another slot, with a label: it would be predicted across the seam."""
        if self.labels is None:
            return ()
        starts = (document.start for document in self.documents if document.length and document.start)
        return tuple(start for start in starts if self.labels[start] != IGNORE_INDEX)

    def moved_positions(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """``[T]``: tokens whose position is not their place in their document; none where there are several planes."""
        moved = np.zeros(self.num_slots, dtype=np.bool_)
        if len(self.positions) == 1:
            for document in self.documents:
                slots = slice(document.start, document.start + document.length)
                moved[slots] = self.positions[0, slots] != np.arange(document.length)
        return moved

    def document_of(self, block: int, query: int, key: int) -> int | None:
        """Which of ``document_ids`` the cells of a block belong to where they stay in one; ``None`` for several.

        A document that holds tokens of two different blocks holds all in between, so that there is one at most.
        """
        first, last = query * block, min(self.num_slots, (query + 1) * block) - 1
        if query != key:
            first, last = sorted((min(query, key) * block + block - 1, max(query, key) * block))
        ids = self.document_ids[first : last + 1]
        return int(ids[0]) if (ids == ids[0]).all() else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "subject": self.subject,
            "row": self.row,
            "rows": self.num_rows,
            "slots": self.num_slots,
            "tokens": self.num_tokens,
            "rule": {"causal": self.causal, "window": self.window, "chunk": self.chunk},
            "documents": [
                {"number": one.number, "start": one.start, "length": one.length, "supervised": one.supervised}
                for one in self.documents
            ],
            "document_ids": self.document_ids.tolist(),
            "position_ids": self.positions.tolist(),
            "input_ids": None if self.ids is None else self.ids.tolist(),
            "texts": None if self.texts is None else list(self.texts),
            "labels": None if self.labels is None else self.labels.tolist(),
            "masks": [mask.to_dict() for mask in self.masks],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False) + "\n"

    def text(self, *, width: int = 100) -> str:
        """The picture in plain ASCII, but for the texts of tokens.

        Args:
            width: columns that a line may take.
        """
        from hermetic.show.terminal import plain

        return plain(self, width=width)

    def to_svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """The picture as one SVG file that needs nothing else and follows the reader's light or dark theme.

        Args:
            path: where to write it, too.

        Returns:
            Its text.
        """
        from hermetic.files import write_text
        from hermetic.show.svg import drawing

        text = drawing(self)
        if path is not None:
            write_text(Path(path), text)
        return text

    def to_png(self, path: str | os.PathLike[str]) -> None:
        """The picture as a PNG file, by matplotlib.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        from hermetic.show.png import write_png

        write_png(self, Path(path))

    def __repr__(self) -> str:
        from hermetic.show.words import headline

        return f"RowPicture({headline(self)})"

    def _repr_html_(self) -> str:
        from hermetic.show.fragment import figure

        return figure(self)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from hermetic.show.terminal import lines

        yield from lines(self, width=options.max_width, ascii_only=options.ascii_only)
