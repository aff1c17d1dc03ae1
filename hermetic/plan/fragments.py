"""Fragments: the table of a plan whose documents were cut."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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


def fragment_lengths(lengths: IntArray, capacity: int) -> npt.NDArray[np.int32]:
    """Return the tokens of each fragment if each document is cut on its own: ``capacity``, and what remains.

    Example:
        Lengths ``[5, 2, 0]`` at capacity 4 give ``[4, 1, 2]``.
    """
    number = int((-(-lengths // capacity)).sum(dtype=np.int64))
    length = np.empty(number, np.int32)  # Numba's own arrays belong to it, and a plan would copy them
    _cut(lengths, capacity, length)
    return length


def fragments_from_lengths(lengths: IntArray, length: npt.NDArray[np.int32]) -> Fragments:
    """Return the table of fragments that have ``length [F]`` tokens each and tile documents of ``lengths``.

    Example:
        Lengths ``[5, 2, 0]`` cut into ``[4, 1, 2]`` tokens: documents ``[0, 0, 1]``, starts ``[0, 4, 0]``.
    """
    start = np.empty(len(length), lengths.dtype)  # a start is below the length of its document
    document = np.empty(len(length), np.int32)
    _tile(lengths, length, document, start)
    return Fragments(document=frozen(document), start=frozen(start), length=frozen(length))


@compiled
def _cut(lengths: IntArray, capacity: int, length: IntArray) -> None:
    """Fill the column of lengths."""
    fragment = 0
    for tokens in lengths:
        for first in range(0, tokens, capacity):
            length[fragment] = min(capacity, tokens - first)
            fragment += 1


@compiled
def _tile(lengths: IntArray, length: IntArray, document: IntArray, start: IntArray) -> None:
    """Fill the two other columns of the table."""
    fragment = 0
    for owner in range(len(lengths)):
        reached = 0
        while reached < lengths[owner]:
            document[fragment] = owner
            start[fragment] = reached
            reached += length[fragment]
            fragment += 1
