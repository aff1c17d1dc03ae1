"""What happens to a document that is longer than a row: the four policies, each exact about its price.

A *piece* is what is placed: a document, the head of a truncated document, or a fragment. Policies ``error``,
``truncate`` and ``drop`` place documents (piece ``d`` is document ``d``); ``split`` places fragments. An empty
document is counted and not placed, under every policy: no row has a place for a document without tokens.

- ``error``: nothing is lost, for nothing is planned.
- ``truncate``: the first ``capacity`` tokens stay, the rest is lost and counted.
- ``split``: nothing is lost; the tail no longer sees the head, for a fragment is a document of its own.
- ``drop``: the whole document is lost and counted.
"""

from typing import Final

import numpy as np

from hermetic.constants import INT32_MAX
from hermetic.errors import DocumentTooLongError, PlanError
from hermetic.plan.arguments import exact_sum
from hermetic.plan.arrays import IntArray
from hermetic.plan.fragments import Fragments

OPTION: Final = "on_overflow (--on-overflow on the command line)"
"""How messages name the policy, to whoever calls a function and to whoever gives a command."""


def refuse_long_documents(lengths: IntArray, capacity: int) -> None:
    """Raise ``DocumentTooLongError`` if a document does not fit into a row, with the ways out."""
    too_long = lengths > capacity
    if not too_long.any():
        return
    document = int(np.argmax(too_long))
    raise DocumentTooLongError(
        f"document {document} has {lengths[document]} tokens and a row holds {capacity} "
        f"({lengths[document]} > {capacity}); too long: {int(too_long.sum())} of {len(lengths)} documents. "
        f"Raise the capacity, or choose what happens to them, by {OPTION}: 'truncate' keeps the first {capacity} "
        f"tokens, 'split' cuts fragments of at most {capacity} tokens, 'drop' leaves them out"
    )


def refuse_too_many_fragments(lengths: IntArray, capacity: int) -> None:
    """Raise ``PlanError`` before a cut that would make more fragments than a plan can index."""
    most = len(lengths) + exact_sum(lengths) // capacity
    if most > INT32_MAX:
        raise PlanError(
            f"cutting {len(lengths)} documents at {capacity} tokens makes about {most} fragments; "
            f"expected at most {INT32_MAX}. Raise the capacity or plan in several parts"
        )


def dropped_documents(lengths: IntArray, capacity: int, on_overflow: str) -> IntArray:
    """Return the documents that policy ``drop`` leaves out, in increasing order."""
    if on_overflow != "drop":
        return np.empty(0, np.int64)
    return np.flatnonzero(lengths > capacity)


def piece_lengths(lengths: IntArray, fragments: Fragments | None, capacity: int, on_overflow: str) -> IntArray:
    """Return the tokens of each piece that are placed, ``[num_pieces]``; 0 if it is empty or dropped."""
    if fragments is not None:
        return fragments.length
    if on_overflow == "truncate":
        return np.minimum(lengths, capacity).astype(np.int32, copy=False)
    if on_overflow == "drop":
        return np.where(lengths > capacity, 0, lengths).astype(np.int32, copy=False)
    return lengths


def piece_sizes(tokens: IntArray, align: int) -> IntArray:
    """Return the share of the row that each piece takes, in units of ``align`` tokens."""
    return tokens if align == 1 else -(-tokens // align)
