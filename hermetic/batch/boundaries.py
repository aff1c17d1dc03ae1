"""Boundaries: the one fact about a packed batch, where each document starts and ends.

Algorithm: the lengths are stored, everything else is derived from them on demand by ``hermetic.batch.views``.
Guarantee: an object that exists is valid (no negative length, no more tokens than int32 can index), is never
changed, and is equal to another exactly when the lengths are. Empty documents stay in the lengths and have
no edge. Price: O(documents) to make, O(tokens) for each per-token view asked for; views are not remembered.

The three constructors ``from_*`` read facts. ``infer_from_position_ids`` guesses, and is the only one that
does.
"""

from dataclasses import dataclass

import numpy as np
import torch

from hermetic.batch import views
from hermetic.batch.inference import lengths_from_position_ids
from hermetic.batch.integers import IntArray, Integers, int64_array
from hermetic.constants import INT32_MAX, TAIL_DOCUMENT_ID
from hermetic.errors import BoundariesError

MAX_DOCUMENT_ID = 2**24
"""Larger ids number a whole data set, not one batch; as a gap they would ask for gigabytes of lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundaries:
    """Where each document of a flat batch of T tokens starts and ends.

    Attributes:
        document_lengths: Tokens of each document in order, empty ones included.

    Example:
        >>> Boundaries.from_lengths([3, 5]).cu_seqlens
        tensor([0, 3, 8], dtype=torch.int32)
    """

    document_lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.document_lengths) is not tuple:
            raise BoundariesError(
                f"document_lengths is a {type(self.document_lengths).__name__}, expected a tuple of whole numbers; use "
                f"Boundaries.from_lengths, which reads lists, arrays and tensors"
            )
        if not set(map(type, self.document_lengths)) <= {int} or min(self.document_lengths, default=0) < 0:
            index = next(i for i, length in enumerate(self.document_lengths) if type(length) is not int or length < 0)
            raise BoundariesError(
                f"lengths[{index}] is {self.document_lengths[index]!r}, expected a whole number of tokens, 0 or more; "
                f"an empty document has length 0"
            )
        if self.num_tokens > INT32_MAX:
            raise BoundariesError(
                f"lengths sum to {self.num_tokens} tokens, expected at most {INT32_MAX}, for kernels index "
                f"tokens with int32; put fewer documents into one batch"
            )

    @classmethod
    def from_lengths(cls, lengths: Integers) -> "Boundaries":
        """Read document lengths.

        Args:
            lengths: [D] tokens of each document; 0 is an empty document.

        Returns:
            The boundaries of these D documents.

        Raises:
            BoundariesError: For a negative length, floats, booleans, other than one dimension, or more than
                2**31 - 1 tokens in all.

        Example:
            >>> Boundaries.from_lengths([3, 0, 2]).document_ids
            tensor([0, 0, 0, 2, 2], dtype=torch.int32)
        """
        array = int64_array(lengths, name="lengths", ndims=(1,), error=BoundariesError)
        return cls(document_lengths=tuple(array.tolist()))

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Integers, *, num_tokens: int | None = None) -> "Boundaries":
        """Read cumulative edges; a repeated value is an empty document.

        Args:
            cu_seqlens: [E] edges from 0, never falling.
            num_tokens: Tokens of the tensor that the edges describe. The last edge may lie before it (the
                rest is a padded tail), not beyond it.

        Returns:
            The boundaries of E - 1 documents.

        Raises:
            BoundariesError: If there is no edge, the first is not 0, one falls, one lies beyond
                ``num_tokens`` or int32, or the values are not whole numbers of one dimension.

        Example:
            >>> Boundaries.from_cu_seqlens([0, 3, 3, 5]).lengths
            tensor([3, 0, 2])
        """
        edges = int64_array(cu_seqlens, name="cu_seqlens", ndims=(1,), error=BoundariesError)
        _check_edges(edges, num_tokens)
        return cls(document_lengths=tuple(np.diff(edges).tolist()))

    @classmethod
    def from_document_ids(cls, document_ids: Integers) -> "Boundaries":
        """Read the document of each token.

        Args:
            document_ids: [T] or [1, T], 0-based and never falling, with -1 only on the padded tail. A gap in
                the ids is an empty document; empty documents after the last id cannot be seen in ids.

        Returns:
            The boundaries of the documents 0 to the largest id.

        Raises:
            BoundariesError: If an id comes back to an earlier document, is below -1 or absurdly large, if a
                real token follows the tail, or the values are not whole numbers of one flat batch.

        Example:
            >>> Boundaries.from_document_ids([0, 0, 0, 2, 2, -1]).lengths
            tensor([3, 0, 2])
        """
        ids = int64_array(document_ids, name="document_ids", ndims=(1, 2), error=BoundariesError)
        if ids.ndim > 1 and ids.shape[0] != 1:
            raise BoundariesError(
                f"document_ids has shape {list(ids.shape)}, expected [T] or [1, T]; number the documents of "
                f"all rows in one stream and flatten it"
            )
        return cls(document_lengths=tuple(np.bincount(_real_ids(ids.reshape(-1))).tolist()))

    @classmethod
    def infer_from_position_ids(cls, position_ids: Integers, *, num_tokens: int | None = None) -> "Boundaries":
        """Guess documents from position ids: one starts at each row's start and where the step is not +1.

        Args:
            position_ids: [S], [B, S] (read as one stream of B * S tokens) or [A, B, S] with A planes of
                multi-axis positions.
            num_tokens: Leading tokens of the stream that are real; the rest is a padded tail. Default: all.

        Returns:
            The boundaries that the positions suggest. Documents whose positions run on are not told apart.

        Raises:
            BoundariesError: For floats, booleans, negative positions, other dimensions, or too large
                ``num_tokens``.

        Example:
            >>> Boundaries.infer_from_position_ids([2, 3, 4, 2, 3, 1, 1], num_tokens=5).cu_seqlens
            tensor([0, 3, 5], dtype=torch.int32)
        """
        found = lengths_from_position_ids(position_ids, num_tokens=num_tokens)
        return cls(document_lengths=tuple(found.tolist()))

    @property
    def num_documents(self) -> int:
        """D, empty documents included."""
        return len(self.document_lengths)

    @property
    def num_tokens(self) -> int:
        """T, real tokens only."""
        return sum(self.document_lengths)

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest document; 0 when there are no tokens."""
        return max(self.document_lengths, default=0)

    @property
    def lengths(self) -> torch.Tensor:
        """[D] int64 on the CPU, empty documents included."""
        return torch.tensor(self.document_lengths, dtype=torch.int64)

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """[E] int32 on the CPU, from 0 strictly up to T; empty documents have no edge."""
        return views.cu_seqlens_from_lengths(self.document_lengths)

    @property
    def position_ids(self) -> torch.Tensor:
        """[T] int64 on the CPU, 0 .. length - 1 in each document."""
        return views.position_ids_from_lengths(self.document_lengths)

    @property
    def document_ids(self) -> torch.Tensor:
        """[T] int32 on the CPU, 0-based."""
        return views.document_ids_from_lengths(self.document_lengths)


def _check_edges(edges: IntArray, num_tokens: int | None) -> None:
    if edges.size == 0:
        raise BoundariesError("cu_seqlens is empty, expected at least the edge 0; no documents at all are [0]")
    if edges[0] != 0:
        raise BoundariesError(
            f"cu_seqlens[0] is {int(edges[0])}, expected 0; the first document starts at the first token, "
            f"so put the missing 0 in front"
        )
    falling = np.flatnonzero(edges[1:] < edges[:-1])
    if falling.size:
        index = int(falling[0]) + 1
        raise BoundariesError(
            f"cu_seqlens[{index}] is {int(edges[index])}, below the edge {int(edges[index - 1])} before it; "
            f"expected edges that never fall (use from_lengths if these are lengths)"
        )
    if num_tokens is not None and (not isinstance(num_tokens, int | np.integer) or num_tokens < 0):
        raise BoundariesError(
            f"num_tokens is {num_tokens!r}, expected a whole number of tokens, 0 or more, or None for no limit"
        )
    limit = INT32_MAX if num_tokens is None else num_tokens
    beyond = np.flatnonzero(edges > limit)
    if beyond.size:
        index = int(beyond[0])
        raise BoundariesError(
            f"cu_seqlens[{index}] is {int(edges[index])}, beyond the {limit} tokens that "
            f"{'int32 can index' if num_tokens is None else 'the tensor has'}; pass the edges of this very "
            f"batch"
        )


def _real_ids(ids: IntArray) -> IntArray:
    """The ids without the tail, each checked."""
    bad = np.flatnonzero((ids < TAIL_DOCUMENT_ID) | (ids > MAX_DOCUMENT_ID))
    if bad.size:
        index = int(bad[0])
        raise BoundariesError(
            f"document_ids[{index}] is {int(ids[index])}, expected 0 to {MAX_DOCUMENT_ID}, or "
            f"{TAIL_DOCUMENT_ID} on the tail; number the documents of this batch from 0"
        )
    tail = np.flatnonzero(ids == TAIL_DOCUMENT_ID)
    real = ids[: tail[0]] if tail.size else ids
    after = np.flatnonzero(ids[real.size :] != TAIL_DOCUMENT_ID)
    if after.size:
        index = real.size + int(after[0])
        raise BoundariesError(
            f"document_ids[{index}] is {int(ids[index])} after the tail began at token {real.size}; expected "
            f"{TAIL_DOCUMENT_ID} only at the end, so move the padding there"
        )
    falling = np.flatnonzero(real[1:] < real[:-1])
    if falling.size:
        index = int(falling[0]) + 1
        raise BoundariesError(
            f"document_ids[{index}] is {int(real[index])} after document {int(real[index - 1])}; expected a "
            f"document's tokens to stand together and ids never to fall, so sort the documents or renumber "
            f"them"
        )
    return real
