"""Lengths for xformers' block-diagonal masks, and the documents of such a mask.

Algorithm: the lengths of the non-empty segments as plain ints, which is what ``from_seqlens`` takes; back
from the edges that the mask keeps as plain ints. xformers itself is not imported. Guarantee: every slot is in
a segment. Empty documents are dropped. Price: O(documents).
"""

from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import all_lengths, check_equal, without_tail
from hermetic.errors import BatchError, BoundariesError


def xformers_seqlens(boundaries: Boundaries, *, num_slots: int) -> list[int]:
    """The argument of ``BlockDiagonalCausalMask.from_seqlens``.

    Args:
        boundaries: The documents.
        num_slots: Tokens of the batch with its padded tail.

    Returns:
        The length of each document that has tokens, and of the tail if there is one.

    Raises:
        BatchError: If there are fewer slots than tokens, or more than int32 can index.

    Example:
        >>> xformers_seqlens(Boundaries.from_lengths([3, 0, 5]), num_slots=12)
        [3, 5, 4]
    """
    return [length for length in all_lengths(boundaries, num_slots) if length]


def boundaries_from_xformers(mask: object, *, num_tokens: int | None = None) -> Boundaries:
    """Read the documents from a block-diagonal mask of xformers.

    Args:
        mask: An object with ``q_seqinfo.seqstart_py`` and ``k_seqinfo.seqstart_py``, lists of edges.
        num_tokens: Real tokens; the one segment beyond them is the tail. Default: every segment is a
            document.

    Returns:
        The documents. A repeated edge is an empty one.

    Raises:
        BatchError: If the mask has no such edges, they are malformed, those of queries and keys differ, or
            the tail is not one segment.

    Example:
        >>> from types import SimpleNamespace
        >>> edges = SimpleNamespace(seqstart_py=[0, 3, 8, 12])
        >>> boundaries_from_xformers(SimpleNamespace(q_seqinfo=edges, k_seqinfo=edges), num_tokens=8)
        Boundaries(document_lengths=(3, 5))
    """
    queries, keys = _segments(mask, "q_seqinfo"), _segments(mask, "k_seqinfo")
    check_equal(queries, keys, names=("q_seqinfo.seqstart_py", "k_seqinfo.seqstart_py"))
    return without_tail(queries, num_tokens, name="q_seqinfo.seqstart_py")


def _segments(mask: object, part: str) -> Boundaries:
    edges = getattr(getattr(mask, part, None), "seqstart_py", None)
    if edges is None:
        raise BatchError(
            f"mask of type {type(mask).__name__} has no {part}.seqstart_py, expected a block-diagonal mask of "
            f"xformers; read a tensor with boundaries_from_mask"
        )
    try:
        return Boundaries.from_cu_seqlens(edges)
    except BoundariesError as problem:
        raise BatchError(f"{part}.seqstart_py does not hold edges: {problem}") from problem
