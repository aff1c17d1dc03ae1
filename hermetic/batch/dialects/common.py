"""What the dialects share: the tail put on, the tail taken off, and edges read from int32 tensors.

Guarantee: the tail is at most one segment, at the end, and never becomes a document unasked. Price:
O(documents).
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.constants import INT32_MAX
from hermetic.errors import BatchError, BoundariesError


def all_lengths(boundaries: Boundaries, num_slots: int) -> tuple[int, ...]:
    """The lengths of all segments of a batch: its documents and, if there is one, its tail.

    Args:
        boundaries: The documents.
        num_slots: Tokens of the batch with its padded tail.

    Returns:
        The lengths; they sum to ``num_slots``.

    Raises:
        BatchError: If there are fewer slots than tokens, or more than int32 can index.

    Example:
        >>> all_lengths(Boundaries.from_lengths([3, 0, 5]), 12)
        (3, 0, 5, 4)
    """
    if not boundaries.num_tokens <= num_slots <= INT32_MAX:
        raise BatchError(
            f"num_slots is {num_slots}, expected {boundaries.num_tokens} (the documents' tokens) to "
            f"{INT32_MAX}; pass the length of the very tensor that the boundaries describe"
        )
    return views.lengths_with_tail(boundaries.document_lengths, num_slots)


def without_tail(segments: Boundaries, num_tokens: int | None, *, name: str) -> Boundaries:
    """The documents among the segments that a dialect describes.

    Args:
        segments: All segments, the tail read as one more document.
        num_tokens: Real tokens; what lies beyond them is the tail. Default: all are real.
        name: The argument that described the segments, for the message.

    Returns:
        The segments that end within the real tokens.

    Raises:
        BatchError: If no segment ends at ``num_tokens``, or more than one lies beyond.

    Example:
        >>> without_tail(Boundaries.from_lengths([3, 5, 4]), 8, name="x").document_lengths
        (3, 5)
    """
    if num_tokens is None:
        return segments
    if not isinstance(num_tokens, int | np.integer):
        raise BatchError(f"num_tokens is {num_tokens!r}, expected the whole number of real tokens, or None for all")
    lengths = segments.document_lengths
    count = bisect_right(list(accumulate(lengths)), num_tokens)
    documents = Boundaries(document_lengths=lengths[:count])
    if documents.num_tokens != num_tokens:
        raise BatchError(
            f"num_tokens is {num_tokens}, where no segment of {name} ends (the last one before ends at "
            f"{documents.num_tokens} of {segments.num_tokens} tokens); expected the end of the last document"
        )
    beyond = [length for length in lengths[count:] if length]
    if len(beyond) > 1:
        raise BatchError(
            f"{name} has {len(beyond)} segments beyond the {num_tokens} real tokens, the first of {beyond[0]}, "
            f"expected one tail at most; pad with a single segment, or leave num_tokens out to read each as a document"
        )
    return documents


def int32_tensor(value: object, *, name: str) -> torch.Tensor:
    """The same tensor, if it is what a kernel can read.

    Args:
        value: Anything.
        name: The argument it came as, for the message.

    Returns:
        ``value``.

    Raises:
        BatchError: If it is not a tensor of int32.

    Example:
        >>> int32_tensor(torch.tensor([0, 3], dtype=torch.int32), name="edges")
        tensor([0, 3], dtype=torch.int32)
    """
    if isinstance(value, torch.Tensor) and value.dtype == torch.int32:
        return value
    kind = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else f"of type {type(value).__name__}"
    raise BatchError(
        f"{name} is {kind}, expected a tensor of torch.int32, which is how kernels read it; convert it with "
        f"torch.as_tensor({name}, dtype=torch.int32)"
    )


def segments_from_edges(value: object, *, name: str) -> Boundaries:
    """Read int32 edges under the name that a dialect has for them.

    Args:
        value: [E] int32, as ``Boundaries.from_cu_seqlens`` reads it.
        name: The argument it came as, for the message.

    Returns:
        One document for each segment, the tail included; a repeated edge is an empty one.

    Raises:
        BatchError: If the value is not a tensor of int32, or not edges.

    Example:
        >>> segments_from_edges(torch.tensor([0, 3, 8], dtype=torch.int32), name="edges").document_lengths
        (3, 5)
    """
    edges = int32_tensor(value, name=name)
    try:
        return Boundaries.from_cu_seqlens(edges)
    except BoundariesError as problem:
        raise BatchError(f"{name} does not hold edges: {problem}") from problem


def check_equal(queries: Boundaries, keys: Boundaries, *, names: tuple[str, str]) -> None:
    """Documents of packed training attend to themselves, so queries and keys have the same edges.

    Args:
        queries: The segments of the queries.
        keys: The segments of the keys.
        names: The arguments they came as, for the message.

    Raises:
        BatchError: If they differ.

    Example:
        >>> check_equal(Boundaries.from_lengths([3]), Boundaries.from_lengths([3]), names=("q", "k"))
    """
    if queries == keys:
        return
    ours, theirs = ([0, *accumulate(part.document_lengths)] for part in (queries, keys))
    differing = [index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    where = f"at edge {differing[0]}" if differing else f"in their number, {len(ours)} and {len(theirs)}"
    raise BatchError(
        f"{names[0]} and {names[1]} differ {where}, expected the same edges, for documents attend to "
        f"themselves; a batch with other keys than queries is no packed batch"
    )


def check_rows(rows: Sequence[Boundaries]) -> None:
    """One ``Boundaries`` is not a list of them.

    Args:
        rows: What was given as the documents of each row.

    Raises:
        BatchError: If it is one ``Boundaries``.

    Example:
        >>> check_rows([Boundaries.from_lengths([3])])
    """
    if isinstance(rows, Boundaries):
        raise BatchError("rows is one Boundaries, expected one for each row; pass [boundaries] for a single row")


def check_longest(value: object, longest: int, *, name: str) -> None:
    """A kernel that is told too small a length leaves out what is beyond it; too large a one only costs time.

    Args:
        value: The longest segment as the dialect states it.
        longest: The longest segment that there is.
        name: The argument it came as, for the message.

    Raises:
        BatchError: If ``value`` is not a Python int or less than ``longest``.

    Example:
        >>> check_longest(8, 5, name="max_length_q")
    """
    if type(value) is not int:
        raise BatchError(
            f"{name} is of type {type(value).__name__}, expected a Python int, for which no layer waits for the "
            f"device; compute int({name}) once, where the batch is made"
        )
    if value < longest:
        raise BatchError(
            f"{name} is {value}, expected {longest} or more, the longest segment: a kernel leaves out what lies "
            f"beyond; compute it from the edges"
        )
