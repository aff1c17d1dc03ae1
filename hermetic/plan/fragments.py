"""Fragments: the table of a plan whose documents were cut."""

from dataclasses import dataclass

import numpy as np

from hermetic.errors import PlanError
from hermetic.plan.arrays import IntArray, compiled, frozen, owned


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fragments:
    """Pieces of documents, in the order of ``(document, start)``; each is a document of its own in its row.

    Fragment ``f`` is the tokens ``start[f]`` to ``start[f] + length[f] - 1`` of document ``document[f]``. A
    document that was not cut is one fragment of its whole length; an empty document has none.

    Example:
        Documents of 5 and 2 tokens, cut at 4: ``document [0, 0, 1]``, ``start [0, 4, 0]``, ``length [4, 1,
        2]``.
    """

    document: IntArray
    """``[F]``, the document that each fragment was cut from."""
    start: IntArray
    """``[F]``, its first token, counted from the document's own start."""
    length: IntArray
    """``[F]``, its tokens."""

    def __post_init__(self) -> None:
        for name in ("document", "start", "length"):
            object.__setattr__(self, name, owned(getattr(self, name), f"fragments.{name}"))
        if not len(self.document) == len(self.start) == len(self.length):
            raise PlanError(
                f"fragments has {len(self.document)} documents, {len(self.start)} starts and "
                f"{len(self.length)} lengths; expected one of each for every fragment"
            )

    def __len__(self) -> int:
        """Return the number of fragments."""
        return len(self.document)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fragments):
            return NotImplemented
        pairs = ((self.document, other.document), (self.start, other.start), (self.length, other.length))
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment] # arrays are compared by value and have no hash


def fragments_from_capacity(lengths: IntArray, capacity: int) -> Fragments:
    """Cut each document on its own: fragments of ``capacity`` tokens and one with what remains.

    Example:
        Lengths ``[5, 2, 0]`` at capacity 4 give the lengths ``[4, 1, 2]`` of documents ``[0, 0, 1]``.
    """
    number = int((-(-lengths // capacity)).sum(dtype=np.int64))
    starts = np.empty(number, lengths.dtype)  # a start is below the length of its document
    document, length = np.empty(number, np.int32), np.empty(number, np.int32)
    _cut(lengths, capacity, document, starts, length)
    return Fragments(document=frozen(document), start=frozen(starts), length=frozen(length))


@compiled
def _cut(lengths: IntArray, capacity: int, document: IntArray, start: IntArray, length: IntArray) -> None:
    """Fill the three columns of the table."""
    fragment = 0
    for owner in range(len(lengths)):
        for first in range(0, lengths[owner], capacity):
            document[fragment] = owner
            start[fragment] = first
            length[fragment] = min(capacity, lengths[owner] - first)
            fragment += 1
