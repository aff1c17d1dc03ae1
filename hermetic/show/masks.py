"""From readings of a row to pictures of its mask: what is right, what leaks and what is lost, block by block.

Algorithm: the right mask is that of the documents. Any other is cut with it and with the documents' squares, and the
counts of the cuts tell the kinds apart: what is outside of the square leaks, what is outside of the rule is beyond,
what the rule has and the reading has not is lost. Queries of padding are counted apart.
Guarantee: the kinds of a reading are disjoint, and together they are its cells. Price: that of
:mod:`hermetic.show.pattern`, and of two BlockMasks for FlexAttention.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from hermetic.attention.block_mask import BLOCK_SIZE, block_mask_from_boundaries
from hermetic.batch import Boundaries
from hermetic.show.pattern import Bools, Cells, Intervals, Ints, Pattern, pattern_of
from hermetic.show.picture import MAX_CELLS, Kind, MaskPicture, Tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What a token may read inside of its document."""

    causal: bool = True
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReadAs:
    """What one reader makes of a row."""

    name: str
    title: str
    says: str
    pattern: Pattern


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ground:
    """What every reading of a row is held against."""

    lengths: tuple[int, ...]
    """Slots of each run: documents and runs of padding, in order; they sum to ``T``."""
    real: Bools
    """``[T]``: whether a slot belongs to a document."""
    rule: Rule
    block: int
    """Tokens of a side of a block."""

    @property
    def num_slots(self) -> int:
        """T."""
        return len(self.real)

    @property
    def edges(self) -> Ints:
        """``[N + 1]``: where blocks begin, and the end."""
        return np.append(np.arange(0, self.num_slots, self.block), self.num_slots)

    @property
    def right(self) -> Intervals:
        """What should be seen."""
        return self.cut(self.lengths)

    @property
    def squares(self) -> Intervals:
        """Every cell inside of a document."""
        return pattern_of(self.lengths, causal=False, window=None, chunk=None)

    def cut(self, lengths: tuple[int, ...], hidden: Bools | None = None) -> Intervals:
        """What the rule lets tokens see whose row is cut into these lengths."""
        rule = self.rule
        return pattern_of(lengths, causal=rule.causal, window=rule.window, chunk=rule.chunk, hidden=hidden)


def block_for(num_slots: int) -> int:
    """1 up to 64 slots, else the smallest power of two that gives at most 64 blocks.

    Example:
        >>> block_for(64), block_for(65), block_for(32768)
        (1, 2, 512)
    """
    return 1 << max(0, (-(-num_slots // MAX_CELLS) - 1).bit_length())


def picture_of(ground: Ground, reading: ReadAs) -> MaskPicture:
    """Count the kinds of a reading."""
    seen, edges, real = reading.pattern, ground.edges, ground.real
    all_seen = seen.counts(edges, np.ones_like(real))
    by_tokens = seen.counts(edges, real)
    inside = seen.meet(ground.squares).counts(edges, real)
    own = seen.meet(ground.right).counts(edges, real)
    return _picture(
        ground,
        reading,
        {
            "own": own,
            "leak": by_tokens - inside,
            "lost": ground.right.counts(edges, real) - own,
            "beyond": inside - own,
            "idle": all_seen - by_tokens,
        },
    )


def flex_picture(ground: Ground, *, title: str, says: str) -> MaskPicture:
    """What FlexAttention computes, by the library's own BlockMask.

    Up to 64 slots, its rule is asked about every cell. Beyond, a whole tile is taken as seen in all of its cells, a
    skipped one in none, and one that is computed cell by cell as it should be.
    """
    if ground.block == 1:
        seen = Cells(seen=_asked(ground, _block_mask(ground, BLOCK_SIZE)))
        drawn = picture_of(ground, ReadAs(name="flex", title=title, says=says, pattern=seen))
        return _with_tiles(ground, drawn, _states(_block_mask(ground, tile := _tile(ground.num_slots))), tile)
    states = _states(_block_mask(ground, ground.block))
    whole, right = (
        pattern.counts(ground.edges, ground.real)
        for pattern in (pattern_of((ground.num_slots,), causal=False, window=None, chunk=None), ground.right)
    )
    inside = ground.squares.counts(ground.edges, ground.real)
    padding = ground.right.counts(ground.edges, ~ground.real)
    cells: dict[Kind, Ints] = {
        "own": np.where(states == 0, 0, right),
        "leak": np.where(states == 2, whole - inside, 0),
        "lost": np.where(states == 0, right, 0),
        "beyond": np.where(states == 2, inside - right, 0),
        "idle": np.where(states == 0, 0, padding),
    }
    reading = ReadAs(name="flex", title=title, says=says, pattern=ground.right)
    return _with_tiles(ground, _picture(ground, reading, cells), states, ground.block)


def _picture(ground: Ground, reading: ReadAs, cells: Mapping[Kind, Ints]) -> MaskPicture:
    return MaskPicture(
        name=reading.name,
        title=reading.title,
        says=reading.says,
        block=ground.block,
        num_slots=ground.num_slots,
        cells=cells,
    )


def _with_tiles(ground: Ground, drawn: MaskPicture, states: Ints, size: int) -> MaskPicture:
    kernel = np.bincount(_states(_block_mask(ground, BLOCK_SIZE)).ravel(), minlength=3)
    skipped, partial, full = kernel.tolist()
    tiles = Tiles(size=size, states=states, kernel_size=BLOCK_SIZE, kernel_counts=(skipped, partial, full))
    return replace(drawn, tiles=tiles)


def _tile(num_slots: int) -> int:
    """A side of the tiles of a small row, for at most eight of them: a kernel's would cover all of it."""
    return 1 << max(1, (-(-num_slots // 8) - 1).bit_length())


def _block_mask(ground: Ground, block_size: int) -> "torch.nn.attention.flex_attention.BlockMask":
    rule = ground.rule
    return block_mask_from_boundaries(
        Boundaries.from_lengths(ground.lengths),
        causal=rule.causal,
        window=rule.window,
        chunk=rule.chunk,
        block_size=block_size,
    )


def _asked(ground: Ground, mask: "torch.nn.attention.flex_attention.BlockMask") -> Bools:
    slots, zero = torch.arange(ground.num_slots), torch.tensor(0)
    return mask.mask_mod(zero, zero, slots[:, None], slots[None, :]).numpy()


def _states(mask: "torch.nn.attention.flex_attention.BlockMask") -> Ints:
    """``[M, M]``: 0 skipped, 1 cell by cell, 2 whole."""
    states = np.zeros(mask.kv_indices.shape[-2:], dtype=np.int64)
    for state, counts, indices in (
        (1, mask.kv_num_blocks, mask.kv_indices),
        (2, mask.full_kv_num_blocks, mask.full_kv_indices),
    ):
        if counts is None or indices is None:
            continue
        line, place = np.nonzero(np.arange(states.shape[1]) < counts[0, 0].numpy()[:, None])
        states[line, indices[0, 0].numpy()[line, place]] = state
    return states
