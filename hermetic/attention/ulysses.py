"""Attention over a stream whose tokens lie on several ranks: tokens are exchanged for heads and back.

Algorithm: each of ``P`` ranks holds a contiguous shard of the flat stream with all heads. An all-to-all gives
each rank the whole stream for ``H / P`` of the heads; there ``packed_attention`` attends with the boundaries
of the whole stream; another all-to-all brings the outputs back to the tokens' ranks (the scheme of
DeepSpeed-Ulysses). Key heads that cannot be dealt out evenly are repeated as often as that takes.
Guarantee: the exchange moves numbers and computes none, so isolation, the zeros of the tail and the choice
of backend are those of ``packed_attention``, forward and backward. Shards may differ in size. Ranks that
disagree about boundaries, shapes or options get an error, all of them, before anything is exchanged.
Price: q, k, v and the output cross the network once forward and once backward, in their dtype; one small
all-gather per call, for which the host waits. Each rank computes over all tokens with its share of the heads.
In half precision the gradients of repeated key heads are rounded once each before they are summed.
Does not do: dropout, whose random numbers would depend on which rank draws them.
"""

import math
import reprlib
import zlib
from typing import Any

import torch
import torch.distributed as dist

from hermetic.attention.api import packed_attention
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError


def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    boundaries: Boundaries,
    *,
    group: dist.ProcessGroup | None = None,
    backend: str = "sdpa",
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Attend inside each document of a flat batch that is spread over the ranks of a group.

    All ranks of the group call this together, and all run the backward pass through what it returns, also one
    whose own shard has nothing to learn from. A parameter's gradient on one rank is the part that comes from
    its tokens (for ``sinks``: from its heads); the sum over the ranks is the gradient of the whole stream.

    Args:
        q: ``[T_r, H, K]`` queries of this rank's shard. The shards of all ranks in rank order are the stream.
        k: ``[T_r, G, K]`` keys; ``G`` divides ``H``.
        v: ``[T_r, G, V]`` values.
        boundaries: where each document of the *whole* stream starts and ends, the same on all ranks. Slots
            behind them are the padded tail.
        group: the ranks that share the stream, by default all; their number ``P`` divides ``H``.
        backend: as in ``packed_attention``, and so are the options from ``causal`` to ``softcap``.
        causal: a token sees itself and earlier tokens of its document; otherwise its whole document.
        window: a token sees itself and the ``window - 1`` tokens before it (causal only).
        chunk: a token sees its own chunk only; chunks are counted from its document's start.
        scale: factor on the dot products, by default ``K ** -0.5``.
        softcap: cap on the logits through ``tanh``.
        sinks: ``[H]`` learned logits of all heads, the same on all ranks; each rank uses those of its heads.
        dropout: 0.0, for ranks cannot draw the weights that one process would drop.

    Returns:
        ``[T_r, H, V]``: this shard's part of what ``packed_attention`` gives for the whole stream.

    Raises:
        AttentionError: there is no process group, it does not divide the heads, the ranks do not ask for the
            same, or shapes and options do not fit each other.
        BackendError: the backend is unknown or lacks what was asked.
    """
    rank, ranks = _place(group)
    refusal = _refusal(q, k, v, boundaries, ranks=ranks, sinks=sinks, dropout=dropout)
    facts = {
        "boundaries": boundaries.document_lengths if isinstance(boundaries, Boundaries) else None,
        "heads and widths": (*q.shape[1:], *k.shape[1:], *v.shape[1:]),
        "dtypes": (q.dtype, k.dtype, v.dtype, _autocast_dtype(q)),
        "options": (backend, causal, window, chunk, scale, softcap, sinks is not None),
        "gradients": tuple(x is not None and x.requires_grad and torch.is_grad_enabled() for x in (q, k, v, sinks)),
    }
    shard_lengths = _agree(q, facts, refusal, rank, group)
    out = packed_attention(
        _all_tokens(q, shard_lengths, group),
        _all_tokens(_divisible(k, ranks), shard_lengths, group),
        _all_tokens(_divisible(v, ranks), shard_lengths, group),
        boundaries,
        backend=backend,
        causal=causal,
        window=window,
        chunk=chunk,
        scale=scale,
        softcap=softcap,
        sinks=None if sinks is None else sinks.chunk(ranks)[rank],
    )
    return _all_heads(out, shard_lengths, rank, group)


def _place(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This process's rank in the group, and how many there are."""
    if not dist.is_available() or not dist.is_initialized():
        raise AttentionError(
            "torch.distributed is not initialised, so there are no ranks to share a stream; start the script with "
            "torchrun and call torch.distributed.init_process_group, or use packed_attention in one process"
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise AttentionError(
            f"rank {dist.get_rank()} is not in the group; expected one of its members, so pass the group that this "
            "process belongs to"
        )
    return rank, dist.get_world_size(group)


def _refusal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries, **options: Any
) -> AttentionError | None:
    """What this rank would raise. The others wait for it in the comparison, so it goes there first."""
    try:
        _validate(q, k, v, boundaries, **options)
    except AttentionError as error:
        return error
    return None


def _validate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    boundaries: Boundaries,
    *,
    ranks: int,
    sinks: torch.Tensor | None,
    dropout: float,
) -> None:
    """What the exchange needs; the rest is left to ``packed_attention``, on whole streams."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3 or x.shape[0] != q.shape[0]:
            raise AttentionError(
                f"{name} has shape {tuple(x.shape)} and q has {tuple(q.shape)}; expected [tokens of this shard, "
                "heads, width] for both, with the same tokens"
            )
    if not isinstance(boundaries, Boundaries):
        raise AttentionError(
            f"boundaries is a {type(boundaries).__name__}; expected Boundaries of the whole stream, as "
            "Boundaries.from_lengths makes them"
        )
    _validate_heads(q.shape[1], k.shape[1], v.shape[1], ranks=ranks)
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise AttentionError(f"sinks have shape {tuple(sinks.shape)}; expected [{q.shape[1]}], one per head of q")
    if dropout != 0:
        raise AttentionError(
            f"dropout is {dropout}; expected 0.0, for ranks cannot draw the weights that one process would drop. "
            "Drop from the attention's output instead"
        )


def _validate_heads(heads: int, key_heads: int, value_heads: int, *, ranks: int) -> None:
    if key_heads != value_heads or key_heads == 0 or heads % key_heads:
        raise AttentionError(
            f"q, k and v have {heads}, {key_heads} and {value_heads} heads; expected as many value heads as key "
            "heads, and a multiple of them in q"
        )
    if heads % ranks:
        raise AttentionError(
            f"q has {heads} heads on {ranks} ranks; expected a multiple of {ranks}, for each rank attends for its "
            f"share of the heads. Make groups of {math.gcd(heads, ranks)} ranks"
        )


def _autocast_dtype(x: torch.Tensor) -> torch.dtype | None:
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else None


def _agree(
    q: torch.Tensor, facts: dict[str, Any], refusal: AttentionError | None, rank: int, group: dist.ProcessGroup | None
) -> list[int]:
    """The tokens of each rank's shard, once it is sure that all ranks are about to do the same.

    Without this, ranks that disagree would wait for each other forever or attend to another batch.
    """
    checksums = [zlib.crc32(repr(fact).encode()) for fact in facts.values()]
    own = torch.tensor([q.shape[0], refusal is not None, *checksums], dtype=torch.int64, device=q.device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    shard_lengths, refusals, *columns = torch.stack(gathered, dim=1).tolist()
    if refusal is not None:
        raise refusal
    if any(refusals):
        refused = [other for other, flag in enumerate(refusals) if flag]
        raise AttentionError(
            f"ranks {refused} ask for what cannot be done, and say what; expected a call that can be served on all "
            "ranks of the group, so none of them goes on"
        )
    for (name, fact), column in zip(facts.items(), columns, strict=True):
        others = [other for other, checksum in enumerate(column) if checksum != column[rank]]
        if others:
            raise AttentionError(
                f"{name} differ between ranks: rank {rank} has {reprlib.repr(fact)}, other than ranks {others}; "
                "expected the same on all ranks of the group, and boundaries of the whole stream, not of a shard"
            )
    return [int(tokens) for tokens in shard_lengths]


def _divisible(x: torch.Tensor, ranks: int) -> torch.Tensor:
    """``[T_r, G, W]`` with each key head repeated until ``ranks`` divides their number.

    That number is a multiple of ``G`` that divides ``H``, so neighbouring query heads still share a key head.
    """
    repeats = math.lcm(x.shape[1], ranks) // x.shape[1]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


def _all_tokens(x: torch.Tensor, shard_lengths: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """``[T_r, A, W]``, this shard's tokens with all heads, to ``[T, A / P, W]``."""
    ranks = len(shard_lengths)
    blocks: torch.Tensor = x.unflatten(1, (ranks, x.shape[1] // ranks)).transpose(0, 1).flatten(0, 1)
    return _exchange(blocks, [x.shape[0]] * ranks, shard_lengths, group)


def _all_heads(x: torch.Tensor, shard_lengths: list[int], rank: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """``[T, A / P, W]``, all tokens with this rank's heads, to ``[T_r, A, W]``."""
    ranks, tokens = len(shard_lengths), shard_lengths[rank]
    blocks = _exchange(x, shard_lengths, [tokens] * ranks, group)
    out: torch.Tensor = blocks.unflatten(0, (ranks, tokens)).transpose(0, 1).flatten(1, 2)
    return out


def _exchange(x: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    out: torch.Tensor = _Exchange.apply(x, sent, received, group)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


class _Exchange(torch.autograd.Function):
    """All-to-all along the first axis: ``sent[s]`` of it go to rank ``s``, ``received[s]`` come from there.

    It permutes numbers between ranks, so its gradient is the way back.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchange(gradient, ctx.received, ctx.sent, ctx.group), None, None, None
