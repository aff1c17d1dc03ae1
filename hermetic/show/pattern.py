"""Which keys each query sees, kept so that any rectangle of the mask is counted without making it.

Algorithm: under every rule drawn here a token sees one interval of keys, from ``first`` up to ``stop``, and neither end
falls from one token to the next. The cells of a rectangle are then differences of sums of ``min(end, edge)``, and such
a sum over sorted numbers is one look-up in their running sum. Masks that somebody else made cell by cell are kept as
they are and added up.
Guarantee: counts are exact, equal to those of the dense mask. Price: ``O(T + N * N)`` for ``N`` blocks a side, times
the logarithm of ``T`` for the edges; no ``[T, T]`` unless one came in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hermetic.attention.block_mask import visible_interval

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Intervals:
    """Query ``q`` sees the keys ``first[q]`` to ``stop[q] - 1`` that are not hidden."""

    first: Ints
    """``[T]``, never falling."""
    stop: Ints
    """``[T]``, never falling, at least ``first``."""
    hidden: Bools | None = None
    """``[T]``: keys that no query sees, such as those that an ``attention_mask`` calls padding."""

    def meet(self, other: "Pattern") -> "Pattern":
        """What both see."""
        if isinstance(other, Cells):
            return other.meet(self)
        first = np.maximum(self.first, other.first)
        stop = np.maximum(first, np.minimum(self.stop, other.stop))
        hidden = [one for one in (self.hidden, other.hidden) if one is not None]
        return Intervals(first=first, stop=stop, hidden=np.logical_or.reduce(hidden) if hidden else None)

    def counts(self, edges: Ints, queries: Bools) -> Ints:
        """``[N, N]``: cells seen between the edges of blocks, of the chosen queries alone."""
        rank = _ranks(np.ones(len(self.first), dtype=np.bool_) if self.hidden is None else ~self.hidden)
        lines = _ranks(queries)[edges]
        below = (_sums_of_least(rank[end[queries]], lines, rank[edges]) for end in (self.stop, self.first))
        seen: Ints = np.subtract(*below)
        return np.diff(np.diff(seen, axis=0), axis=1)

    def dense(self) -> Bools:
        """``[T, T]``, for rows that are drawn cell by cell."""
        key = np.arange(len(self.first))
        seen: Bools = (key >= self.first[:, None]) & (key < self.stop[:, None])
        return seen if self.hidden is None else seen & ~self.hidden


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cells:
    """A mask that came cell by cell."""

    seen: Bools
    """``[T, T]``, queries down, keys across."""

    def meet(self, other: "Pattern") -> "Cells":
        """What both see."""
        return Cells(seen=self.seen & other.dense())

    def counts(self, edges: Ints, queries: Bools) -> Ints:
        """As :meth:`Intervals.counts`."""
        chosen = (self.seen & queries[:, None]).astype(np.int64)
        counted: Ints = np.add.reduceat(np.add.reduceat(chosen, edges[:-1], axis=0), edges[:-1], axis=1)
        return counted

    def dense(self) -> Bools:
        """The mask."""
        return self.seen


Pattern: TypeAlias = Intervals | Cells


def pattern_of(
    lengths: Sequence[int], *, causal: bool, window: int | None, chunk: int | None, hidden: Bools | None = None
) -> Intervals:
    """What tokens see whose row is cut into documents of these lengths.

    Args:
        lengths: tokens of each document; they sum to the slots of the row.
        causal: a token sees no later token.
        window: a token sees itself and the ``window - 1`` tokens before it.
        chunk: a token sees its own chunk only, counted from its document's start.
        hidden: ``[T]`` keys that nobody sees.

    Example:
        >>> pattern_of((2, 3), causal=True, window=None, chunk=None).first.tolist()
        [0, 0, 2, 2, 2]
    """
    first, last = visible_interval(tuple(lengths), causal=causal, window=window, chunk=chunk, device="cpu")
    return Intervals(first=first.numpy().astype(np.int64), stop=last.numpy().astype(np.int64) + 1, hidden=hidden)


def _ranks(chosen: Bools) -> Ints:
    """``[T + 1]``: how many are chosen before each place."""
    return np.concatenate([[0], np.cumsum(chosen)])


def _sums_of_least(values: Ints, lines: Ints, caps: Ints) -> Ints:
    """``[N + 1, N + 1]``: the sum of ``min(value, cap)`` over the first ``line`` values, which never fall.

    Values 1, 2, 4 and cap 3, over all of them: 1 + 2 + 3.
    """
    total = _ranks(np.zeros(0, dtype=np.bool_)) if len(values) == 0 else np.concatenate([[0], np.cumsum(values)])
    below = np.minimum(np.searchsorted(values, caps, side="right")[None, :], lines[:, None])
    sums: Ints = total[below] + (lines[:, None] - below) * caps[None, :]
    return sums
