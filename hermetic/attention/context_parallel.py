"""Zigzag shards: every document spread over the ranks of a context-parallel group with equal causal work.

Algorithm: each document is padded at its end to a multiple of ``2 * ranks`` slots and cut into ``2 * ranks``
equal pieces. Rank ``r`` holds piece ``r`` and piece ``2 * ranks - 1 - r`` of every document, in document
order: an early piece, whose tokens see few keys, beside a late one, whose tokens see many. This is the
partition that Megatron-Core and Transformer Engine expect of rows in their THD format. A document of 3
tokens (A) and one of 5 (B) on 2 ranks, ``.`` for a padding slot::

    pieces   A0 | A1 | A2 | .      B0 B1 | B2 B3 | B4 . | . .
    rank 0   A0 .  B0 B1 . .
    rank 1   A1 A2 B2 B3 B4 .

Guarantee: every token is on exactly one rank, all shards have the same number of slots, and the causal work
(visible keys, summed over slots, padding included) of each document is the same on all ranks; under a window
or in chunks it need not be. Padding stands behind its document, so under a causal mask no token sees any.
Price: up to ``2 * ranks - 1`` padding slots per document; O(tokens) integers on the host.

The edges of a shard are not boundaries. What a shard holds of a document is two pieces that belong far
apart, and the tokens between and before them are on other ranks: ``packed_attention`` on a shard alone
would be wrong without any error. The shards are for a ring kernel, which passes keys and values round the
ranks and joins the partial results by position. What runs here on several ranks is ``ulysses_attention``,
on contiguous shards.

A token's successor may be on another rank. Shift labels before sharding (``shift_labels`` in
``hermetic.batch.dialects``), never after.
"""

from collections.abc import Sequence

import torch

from hermetic.batch import Boundaries, views
from hermetic.errors import AttentionError


def padded_lengths(boundaries: Boundaries, *, ranks: int) -> tuple[int, ...]:
    """Slots of each document over all ranks: its length rounded up to a multiple of ``2 * ranks``.

    Args:
        boundaries: The documents.
        ranks: Ranks of the context-parallel group.

    Returns:
        D slot counts; an empty document has none.

    Raises:
        AttentionError: If ``ranks`` is not a positive whole number or ``boundaries`` are no ``Boundaries``.

    Example:
        >>> padded_lengths(Boundaries.from_lengths([3, 5]), ranks=2)
        (4, 8)
    """
    _check(boundaries, ranks=ranks)
    return tuple(-(-length // (2 * ranks)) * 2 * ranks for length in boundaries.document_lengths)


def shard_cu_seqlens(boundaries: Boundaries, *, ranks: int) -> torch.Tensor:
    """Edges of the documents' slots in a shard, the same for all ranks: the padded edges divided by ``ranks``.

    Args:
        boundaries: The documents.
        ranks: Ranks of the context-parallel group.

    Returns:
        [E] int32 on the CPU, from 0 strictly up to the slots of a shard; empty documents have no edge.

    Raises:
        AttentionError: As in ``padded_lengths``.

    Example:
        >>> shard_cu_seqlens(Boundaries.from_lengths([3, 5]), ranks=2)
        tensor([0, 2, 6], dtype=torch.int32)
    """
    return views.cu_seqlens_from_lengths([slots // ranks for slots in padded_lengths(boundaries, ranks=ranks)])


def shard_position_ids(boundaries: Boundaries, *, ranks: int, rank: int) -> torch.Tensor:
    """Where each slot of a shard stands in its document; padding counts on behind the document's tokens.

    Args:
        boundaries: The documents.
        ranks: Ranks of the context-parallel group.
        rank: Whose shard, from 0.

    Returns:
        [S] int64 on the CPU.

    Raises:
        AttentionError: As in ``padded_lengths``, or if ``rank`` is not below ``ranks``.

    Example:
        >>> shard_position_ids(Boundaries.from_lengths([3, 5]), ranks=2, rank=0)
        tensor([0, 3, 0, 1, 6, 7])
    """
    _check(boundaries, ranks=ranks, rank=rank)
    held = torch.tensor(padded_lengths(boundaries, ranks=ranks), dtype=torch.int64) // ranks
    piece = (held // 2).repeat_interleave(held)
    within = views.position_ids_from_lengths(held.tolist())
    early = rank * piece + within
    late = (2 * ranks - 1 - rank) * piece + within - piece
    return torch.where(within < piece, early, late)


def shard_indices(boundaries: Boundaries, *, ranks: int, rank: int) -> torch.Tensor:
    """The flat token in each slot of a shard.

    One tensor rather than indices and a mask, which could disagree: ``indices >= 0`` is the mask.

    Args:
        boundaries: The documents.
        ranks: Ranks of the context-parallel group.
        rank: Whose shard, from 0.

    Returns:
        [S] int64 on the CPU, -1 in padding slots.

    Raises:
        AttentionError: As in ``shard_position_ids``.

    Example:
        >>> boundaries = Boundaries.from_lengths([3, 5])
        >>> shard_indices(boundaries, ranks=2, rank=0)
        tensor([ 0, -1,  3,  4, -1, -1])
        >>> shard_indices(boundaries, ranks=2, rank=1)
        tensor([ 1,  2,  5,  6,  7, -1])
    """
    positions = shard_position_ids(boundaries, ranks=ranks, rank=rank)
    held = torch.tensor(padded_lengths(boundaries, ranks=ranks), dtype=torch.int64) // ranks
    lengths = boundaries.lengths
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(held)
    return torch.where(positions < lengths.repeat_interleave(held), starts + positions, -1)


def unshard_indices(boundaries: Boundaries, *, ranks: int) -> torch.Tensor:
    """The slot of each flat token in the shards of all ranks, laid one after the other in rank order.

    Args:
        boundaries: The documents.
        ranks: Ranks of the context-parallel group.

    Returns:
        [T] int64 on the CPU.

    Raises:
        AttentionError: As in ``padded_lengths``.

    Example:
        >>> unshard_indices(Boundaries.from_lengths([3, 5]), ranks=2)
        tensor([ 0,  6,  7,  2,  3,  8,  9, 10])
    """
    _check(boundaries, ranks=ranks)
    tokens = torch.cat([shard_indices(boundaries, ranks=ranks, rank=rank) for rank in range(ranks)])
    slots = (tokens >= 0).nonzero()[:, 0]
    return torch.empty_like(slots).index_copy(0, tokens[slots], slots)


def shard(x: torch.Tensor, boundaries: Boundaries, *, ranks: int, rank: int, fill: float = 0) -> torch.Tensor:
    """One rank's part of a per-token tensor.

    Args:
        x: [T, ...] with a value per token of the flat stream; a padded tail behind the documents is left out.
        boundaries: The documents.
        ranks: Ranks of the context-parallel group.
        rank: Whose part, from 0.
        fill: What padding slots hold: a pad token's id, -100 for labels that have been shifted.

    Returns:
        [S, ...] on the device of ``x``; differentiable, and padding slots give no gradient.

    Raises:
        AttentionError: As in ``shard_position_ids``, or if ``x`` has fewer tokens than the boundaries.

    Example:
        >>> shard(torch.tensor([10, 11, 12, 20, 21]), Boundaries.from_lengths([3, 2]), ranks=2, rank=1, fill=-100)
        tensor([  11,   12,   21, -100])
    """
    _check(boundaries, ranks=ranks, rank=rank)
    if x.ndim == 0 or x.shape[0] < boundaries.num_tokens:
        raise AttentionError(
            f"x has shape {list(x.shape)} and the boundaries describe {boundaries.num_tokens} tokens; expected "
            f"[{boundaries.num_tokens}, ...] or more: shard the whole stream, with its first axis the tokens"
        )
    tokens = shard_indices(boundaries, ranks=ranks, rank=rank).to(x.device)
    slots = (tokens >= 0).nonzero()[:, 0]
    blank = x.new_full((len(tokens), *x.shape[1:]), fill)
    return blank.index_copy(0, slots, x.index_select(0, tokens[slots]))


def unshard(shards: Sequence[torch.Tensor], boundaries: Boundaries) -> torch.Tensor:
    """Put the shards of all ranks back into flat order, without their padding.

    Args:
        shards: For each rank, in rank order, its [S, ...].
        boundaries: The documents.

    Returns:
        [T, ...], differentiable.

    Raises:
        AttentionError: If there is no shard, or one has other than S slots.

    Example:
        >>> unshard([torch.tensor([10, 0, 20, 0]), torch.tensor([11, 12, 21, 0])], Boundaries.from_lengths([3, 2]))
        tensor([10, 11, 12, 20, 21])
    """
    ranks = len(shards)
    expected = sum(padded_lengths(boundaries, ranks=ranks)) // ranks
    for rank, part in enumerate(shards):
        if part.shape[:1] != (expected,):
            raise AttentionError(
                f"shards[{rank}] has shape {list(part.shape)}, expected [{expected}, ...] for {ranks} ranks; pass "
                "what each rank holds, all ranks in order, with the boundaries they were sharded by"
            )
    return torch.cat(list(shards)).index_select(0, unshard_indices(boundaries, ranks=ranks).to(shards[0].device))


def _check(boundaries: Boundaries, *, ranks: int, rank: int = 0) -> None:
    if not isinstance(boundaries, Boundaries):
        raise AttentionError(
            f"boundaries is a {type(boundaries).__name__}; expected Boundaries, as Boundaries.from_lengths makes them"
        )
    if type(ranks) is not int or ranks < 1:
        raise AttentionError(f"ranks is {ranks!r}; expected the size of the context-parallel group, 1 or more")
    if type(rank) is not int or not 0 <= rank < ranks:
        raise AttentionError(f"rank is {rank!r}; expected 0 to {ranks - 1}, this process's place in its group")
