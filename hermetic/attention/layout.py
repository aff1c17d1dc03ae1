"""Which documents share a kernel call, and where their tokens lie in it.

Three ways are open. A *loop* has one call per document and needs no copy, for a document is a slice of the row.
Documents of equal length can share a call as a batch; where they are neighbours that is a slice too. Documents of
similar length can share one if the shorter are padded on the right. What is cheapest is a matter of prices: of a
call, of a token, of a pair of tokens, and of moving a token to where its batch lies.

Algorithm: two candidates are priced and the cheaper is taken. *In row order*: neighbours of equal length share a
call and nothing moves. *Sorted by length*: every token moves once, and the sorted lengths are cut where one more
call is cheaper than the padding that it saves, by dynamic programming over the distinct lengths.
Guarantee: of all ways to cut the sorted lengths into batches with at most a quarter of padding each, the cheapest
at these prices; so the whole holds at most a quarter more slots than tokens.
Price: ``M`` distinct lengths cost ``M`` short NumPy steps; in a row of ``N`` tokens ``M`` is below ``sqrt(2 * N)``.
Everything here is arithmetic on the host: no tensor, no device.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_MAX_SLOTS_PER_TOKEN = 1.25
"""Padding costs memory too, however dear a call is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """What attention costs forward and backward, in microseconds."""

    call: float
    """One kernel call, whatever is in it. This is the host's time, and hardly depends on the channels."""
    token: float
    """One slot in a call."""
    pair: float
    """One slot in a call, for each slot of its document."""
    move: float
    """Bringing one token to its slot, and its output and gradients back."""


_ON_A_CORE = Prices(call=60.0, token=0.010, pair=0.00014, move=0.003)
"""Float32 causal attention on one core of an AMD EPYC; all but the call are per channel.

Measured by ``python benchmarks/attention_layout.py``, with 4 heads over 2 of width 64.
"""

_ON_AN_ACCELERATOR = Prices(call=150.0, token=1e-5, pair=2e-8, move=5e-6)
"""Reckoned, not measured: 30 launches of 5 microseconds; 3 TB/s and 350 TFLOP/s once it runs.

``python benchmarks/attention_layout.py --device cuda`` measures them.
"""


def prices_on(device_type: str, channels: int) -> Prices:
    """Prices of attention with so many channels, which are query heads times their width."""
    each = _ON_A_CORE if device_type == "cpu" else _ON_AN_ACCELERATOR
    return Prices(call=each.call, token=each.token * channels, pair=each.pair * channels, move=each.move * channels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Documents that one kernel call serves, as a right-padded ``[rows, width]`` batch."""

    width: int
    """Slots of each row: the longest of these documents."""
    lengths: tuple[int, ...]
    """The document of each row has so many tokens."""

    @property
    def rows(self) -> int:
        """One for each document."""
        return len(self.lengths)

    @property
    def num_slots(self) -> int:
        """Tokens and pads."""
        return self.rows * self.width

    @property
    def is_padded(self) -> bool:
        """Whether some document is shorter than the width."""
        return min(self.lengths) < self.width


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """All groups of a batch, their slots one after another, and the way there and back."""

    groups: tuple[Group, ...]
    tokens: NDArray[np.int64] | None
    """``[S]``: the packed token in each slot; a pad repeats the last token of its own document.

    ``None`` when the slots are the packed tokens as they lie.
    """
    slots: NDArray[np.int64] | None
    """``[N]``: the slot of each packed token; ``None`` likewise."""


def layout_from_lengths(lengths: tuple[int, ...], prices: Prices) -> Layout:
    """Lay the non-empty documents of ``lengths`` out in the cheapest way.

    Lengths 2, 5, 2 with dear calls and cheap moves: a group of both documents of 2 and a group of the document of
    5. The slots hold the tokens ``[0, 1, 7, 8, 2, 3, 4, 5, 6]``, and the tokens lie in the slots
    ``[0, 1, 4, 5, 6, 7, 8, 2, 3]``.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    starts, sizes = starts[sizes > 0], sizes[sizes > 0]
    if sizes.size == 0:
        return Layout(groups=(), tokens=None, slots=None)
    neighbours = np.concatenate([[0], np.flatnonzero(np.diff(sizes)) + 1, [sizes.size]])
    by_length = np.argsort(sizes, kind="stable")
    edges = _cheapest_edges(sizes[by_length], prices)
    if _cost(sizes, neighbours, prices) <= _cost(sizes[by_length], edges, prices) + prices.move * sizes.sum():
        return Layout(groups=_groups(sizes, neighbours), tokens=None, slots=None)
    return _moved(sizes[by_length], starts[by_length], edges)


def _cheapest_edges(sizes: NDArray[np.int64], prices: Prices) -> NDArray[np.int64]:
    """Where the groups of ascending sizes begin, and their number at the end: ``[groups + 1]``.

    ``best[j]`` is the least cost of all documents up to the ``j``-th distinct width. The last group in it begins
    after the ``i``-th, for the best ``i < j``.
    """
    widths, counts = np.unique(sizes, return_counts=True)
    documents = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.concatenate([[0], np.cumsum(counts * widths)])
    best = np.zeros(widths.size + 1)
    previous = np.zeros(widths.size + 1, dtype=np.int64)
    for j, (width, row) in enumerate(zip(widths, _row_costs(widths, prices), strict=True), start=1):
        rows = documents[j] - documents[:j]
        costs = best[:j] + rows * row
        costs[rows * width > _MAX_SLOTS_PER_TOKEN * (tokens[j] - tokens[:j])] = np.inf
        previous[j] = costs.argmin()
        best[j] = costs[previous[j]] + prices.call
    j = widths.size
    edges = [documents[j]]
    while j > 0:
        j = int(previous[j])
        edges.append(documents[j])
    return np.array(edges[::-1])


def _row_costs(widths: NDArray[np.int64], prices: Prices) -> NDArray[np.float64]:
    return widths * (prices.token + prices.pair * widths)


def _cost(sizes: NDArray[np.int64], edges: NDArray[np.int64], prices: Prices) -> float:
    widths = sizes[edges[1:] - 1]  # sizes do not fall within a group
    return float((prices.call + np.diff(edges) * _row_costs(widths, prices)).sum())


def _groups(sizes: NDArray[np.int64], edges: NDArray[np.int64]) -> tuple[Group, ...]:
    documents = sizes.tolist()
    return tuple(
        Group(width=documents[end - 1], lengths=tuple(documents[begin:end])) for begin, end in pairwise(edges.tolist())
    )


def _moved(sizes: NDArray[np.int64], starts: NDArray[np.int64], edges: NDArray[np.int64]) -> Layout:
    """Give every token a slot, for documents of these sizes that start at these tokens of the row."""
    widths = np.repeat(sizes[edges[1:] - 1], np.diff(edges))  # of each document's group
    within = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
    last = np.repeat(sizes - 1, widths)
    tokens = np.repeat(starts, widths) + np.minimum(within, last)
    real = np.flatnonzero(within <= last)
    slots = np.empty_like(real)
    slots[tokens[real]] = real
    return Layout(groups=_groups(sizes, edges), tokens=tokens, slots=slots)
