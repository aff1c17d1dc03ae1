"""Which documents share a kernel call, and where their tokens lie in it.

Documents of equal or similar length are laid out as one right-padded batch, so that hundreds of short
documents cost a handful of kernel calls. At most a quarter of the real tokens is added as padding.
Everything here is integer arithmetic on the host: no tensor, no device.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MAX_PADDED_RATIO = 1.25
"""Slots of a group per real token. Beyond it a second kernel call is cheaper than the padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Documents that one kernel call serves, as a right-padded ``[rows, width]`` batch."""

    rows: int
    width: int
    tokens: NDArray[np.int64]
    """The flat token behind each real slot, in slot order."""
    slots: NDArray[np.int64] | None
    """The slot of each real token in the flattened batch; ``None`` when there is no padding."""
    lengths: tuple[int, ...]
    """The document of each row has so many tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """All groups of a batch and the way back to packed order."""

    groups: tuple[Group, ...]
    back: NDArray[np.int64]
    """For each packed token, its place in the concatenation of the groups' real tokens."""


def layout_from_lengths(lengths: tuple[int, ...]) -> Layout:
    """Group the non-empty documents of ``lengths`` by similar length.

    ``(2, 5, 2)`` gives two groups: the document of 5 alone, then both documents of 2 as a ``[2, 2]``
    batch of the tokens ``[0, 1, 7, 8]``.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    longest_first = np.argsort(-sizes, kind="stable")
    longest_first = longest_first[sizes[longest_first] > 0]
    groups = tuple(_group(sizes[part], starts[part]) for part in _split_similar(sizes, longest_first))
    order = np.concatenate([g.tokens for g in groups]) if groups else np.empty(0, dtype=np.int64)
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return Layout(groups=groups, back=back)


def _split_similar(sizes: NDArray[np.int64], longest_first: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut the documents, longest first, wherever one more would exceed the padding allowance."""
    parts = []
    begin, real = 0, 0
    for end, document in enumerate(longest_first):
        size = int(sizes[document])
        width = int(sizes[longest_first[begin]])
        if (end - begin + 1) * width > _MAX_PADDED_RATIO * (real + size):
            parts.append(longest_first[begin:end])
            begin, real = end, 0
        real += size
    if longest_first.size:
        parts.append(longest_first[begin:])
    return parts


def _group(sizes: NDArray[np.int64], starts: NDArray[np.int64]) -> Group:
    width = int(sizes.max())
    within = np.arange(width)
    real = within[None, :] < sizes[:, None]
    tokens = (starts[:, None] + within[None, :])[real]
    slots = None if real.all() else np.flatnonzero(real)
    return Group(rows=sizes.size, width=width, tokens=tokens, slots=slots, lengths=tuple(int(size) for size in sizes))
