"""What packing saves and what packing naively would spoil, from document lengths alone.

Guarantee: the share of contaminated tokens is counted, not estimated; the rule of thumb stands beside it to
show how far off it is. Price: one pass over the lengths.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "HistogramBar",
    "contaminated_share",
    "contamination_rule_of_thumb",
    "length_histogram",
    "padding_waste",
]

Lengths = npt.NDArray[np.integer[Any]]
_FIRST_BAR_ENDS_AT: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class HistogramBar:
    """``count`` documents have ``low`` to ``high`` tokens, both counted in."""

    low: int
    high: int
    count: int


def padding_waste(lengths: Lengths) -> float:
    """Share of slots that are padding if every document is padded to the longest: ``1 - mean / max``.

    Args:
        lengths: ``[D]`` tokens of each document, D of at least 1.

    Example:
        Lengths ``[3, 5]``: 8 tokens in 2 x 5 slots, so 0.2.
    """
    return 1.0 - float(lengths.mean()) / float(lengths.max())


def contaminated_share(lengths: Lengths, documents_per_row: Lengths) -> float:
    """Share of tokens that would see a stranger if these rows were trained with a plain causal mask.

    Under such a mask a token sees everything before it in its row, so each token of a row's second and later
    documents sees at least one other document, and no token of its first one does.

    Args:
        lengths: ``[D]`` tokens of each document, row after row.
        documents_per_row: ``[B]``, at least 1 each, D in all.

    Example:
        Rows of ``[3, 5]`` and ``[4]`` tokens: 5 of 12 tokens.
    """
    firsts = np.cumsum(documents_per_row) - documents_per_row
    return 1.0 - float(lengths[firsts].sum()) / float(lengths.sum())


def contamination_rule_of_thumb(lengths: Lengths, capacity: int) -> float:
    """The usual estimate of that share, ``1 - median / capacity``, not below 0.

    Example:
        Lengths ``[2, 4, 9]`` at capacity 16: 0.75.
    """
    return max(0.0, 1.0 - float(np.median(lengths)) / capacity)


def length_histogram(lengths: Lengths, numbers: Lengths | None = None) -> tuple[HistogramBar, ...]:
    """Bars that double in width, so that a long tail stays readable: 1-16, 17-32, 33-64 and so on.

    Args:
        lengths: ``[D]`` tokens of each document, at least 1 each.
        numbers: ``[D]``, how many documents have each of these lengths; by default one.

    Returns:
        Bars up to the longest document, those that count nothing included; their counts sum to the documents.

    Example:
        Lengths ``[3, 5, 40]``: 1-16 holds 2, 17-32 holds 0, 33-64 holds 1.
    """
    edges = [1, _FIRST_BAR_ENDS_AT + 1]
    while edges[-1] <= lengths.max():
        edges.append(2 * edges[-1] - 1)
    counts = np.histogram(lengths, bins=edges, weights=numbers)[0]
    # NumPy's last bin holds its right edge too; no length reaches it, for the loop went past the longest.
    bars = zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    return tuple(HistogramBar(low=low, high=high - 1, count=count) for low, high, count in bars)
