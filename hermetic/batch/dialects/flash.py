"""The keyword arguments by which transformers' flash attention learns of documents, made and read.

Algorithm: cumulative sums of the lengths, and their differences. Guarantee: every slot is in a segment; what
is read back was checked against itself first. Empty documents have no edge, so that a round trip drops them.
Price: O(documents); edges on an accelerator are copied to the CPU to be read.
"""

from collections.abc import Mapping
from typing import TypedDict

import torch

from hermetic.batch import views
from hermetic.batch.boundaries import Boundaries
from hermetic.batch.dialects.common import (
    all_lengths,
    check_equal,
    check_longest,
    segments_from_edges,
    without_tail,
)
from hermetic.errors import BatchError


class FlashKwargs(TypedDict):
    """The keyword arguments by which transformers' flash attention learns of documents."""

    cu_seq_lens_q: torch.Tensor
    cu_seq_lens_k: torch.Tensor
    max_length_q: int
    max_length_k: int


def flash_kwargs(boundaries: Boundaries, *, num_slots: int) -> FlashKwargs:
    """Edges for transformers' variable-length attention.

    Args:
        boundaries: The documents.
        num_slots: Tokens of the batch with its padded tail.

    Returns:
        int32 CPU edges over all slots, the tail as one more segment, and the longest segment as a Python int.

    Raises:
        BatchError: If there are fewer slots than tokens, or more than int32 can index.

    Example:
        >>> kwargs = flash_kwargs(Boundaries.from_lengths([3, 5]), num_slots=9)
        >>> kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
        (tensor([0, 3, 8, 9], dtype=torch.int32), 5)
    """
    lengths = all_lengths(boundaries, num_slots)
    edges = views.cu_seqlens_from_lengths(lengths)
    longest = max(lengths, default=0)
    return FlashKwargs(cu_seq_lens_q=edges, cu_seq_lens_k=edges, max_length_q=longest, max_length_k=longest)


def boundaries_from_flash_kwargs(kwargs: Mapping[str, object], *, num_tokens: int | None = None) -> Boundaries:
    """Read the documents from the keyword arguments of a model that flash attention would serve.

    Args:
        kwargs: ``cu_seq_lens_q`` and ``cu_seq_lens_k`` as int32 tensors, ``max_length_q`` and
            ``max_length_k`` as Python ints. Other keys are not looked at, so a whole batch may be given.
        num_tokens: Real tokens; the one segment beyond them is the tail. Default: every segment is a
            document.

    Returns:
        The documents. A repeated edge is an empty one.

    Raises:
        BatchError: If an argument is missing or of another type, edges do not start at 0 or fall, those of
            queries and keys differ, a longest length is too small, or the tail is not one segment.

    Example:
        >>> kwargs = flash_kwargs(Boundaries.from_lengths([3, 5]), num_slots=12)
        >>> boundaries_from_flash_kwargs(kwargs, num_tokens=8)
        Boundaries(document_lengths=(3, 5))
    """
    missing = [name for name in FlashKwargs.__annotations__ if kwargs.get(name) is None]
    if missing:
        raise BatchError(
            f"the keyword arguments lack {' and '.join(missing)}, expected all four of "
            f"{', '.join(FlashKwargs.__annotations__)}, for a model that lacks one guesses; make them with flash_kwargs"
        )
    queries = segments_from_edges(kwargs["cu_seq_lens_q"], name="cu_seq_lens_q")
    keys = segments_from_edges(kwargs["cu_seq_lens_k"], name="cu_seq_lens_k")
    check_equal(queries, keys, names=("cu_seq_lens_q", "cu_seq_lens_k"))
    for name in ("max_length_q", "max_length_k"):
        check_longest(kwargs[name], queries.max_seqlen, name=name)
    return without_tail(queries, num_tokens, name="cu_seq_lens_q")
