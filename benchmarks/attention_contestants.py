"""Who attends over a flat row in ``benchmarks/attention.py``, and how."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses

from hermetic.attention import packed_attention
from hermetic.attention.api import objection_of
from hermetic.attention.backend import call_of
from hermetic.attention.options import AttentionOptions
from hermetic.batch import Boundaries

SHAPES = {"cpu": (4, 2, 64), "cuda": (32, 8, 128)}
"""Query heads, key and value heads, and their width."""

OPTIONS = AttentionOptions(causal=True, window=None, chunk=None, scale=0.125, softcap=None, sinks=None, dropout=0.0)

Lengths = tuple[int, ...]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """Someone who attends over a flat row."""

    make: Callable[[Lengths, torch.device], Attend]
    lacks: Callable[[torch.device, torch.dtype], str | None] = lambda _device, _dtype: None
    """What it lacks for a step on this device in this dtype."""
    is_peer: bool = True


def contestants(device: torch.device) -> dict[str, Contestant]:
    """Everyone who may run on this kind of device, hermetic's default first."""
    backends = ("sdpa",) if device.type == "cpu" else ("sdpa", "flex", "flash", "torch_varlen")
    everyone = {f"hermetic {backend}": ours(backend) for backend in backends}
    everyone |= {
        "padded": Contestant(make=padded_attention),
        "dense mask": Contestant(make=dense_attention),
        "leaky causal": Contestant(make=leaky_attention),
    }
    if device.type == "cpu":
        return everyone
    return everyone | {
        "flash_attn_varlen_func": Contestant(make=flash_attention, lacks=lack_of("flash_attn")),
        "compiled flex": Contestant(make=flex_attention),
        "varlen_attn": Contestant(make=varlen_attention, lacks=lack_of("torch.nn.attention.varlen")),
    }


def ours(backend: str) -> Contestant:
    """``packed_attention`` with one of its backends."""

    def make(lengths: Lengths, _device: torch.device) -> Attend:
        boundaries = Boundaries(document_lengths=lengths)
        return lambda q, k, v: packed_attention(q, k, v, boundaries, backend=backend)

    def lacks(device: torch.device, dtype: torch.dtype) -> str | None:
        heads, key_heads, width = SHAPES[device.type]
        q, k = (torch.empty(1, each, width, device=device, dtype=dtype).requires_grad_() for each in (heads, key_heads))
        return objection_of(backend, call_of(q, k, k, OPTIONS))

    return Contestant(make=make, lacks=lacks, is_peer=False)


def lack_of(module: str) -> Callable[[torch.device, torch.dtype], str | None]:
    """Say what a half-precision kernel in this module lacks."""

    def lacks(_device: torch.device, dtype: torch.dtype) -> str | None:
        if find_spec(module) is None:
            return "not installed"
        return None if dtype in {torch.float16, torch.bfloat16} else "half precision only"

    return lacks


def dense_attention(lengths: Lengths, device: torch.device) -> Attend:
    """Attend over the whole row under a block-diagonal mask, keys and values repeated for it as transformers does."""
    ids = Boundaries(document_lengths=lengths).document_ids.to(device)
    mask = (ids[:, None] == ids[None, :]).tril()[None, None]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1)[None] for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)

    return attend


def causal_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's fused kernel over ``[rows, H, width, K]``.

    On CUDA the one for float32 does not know that heads share keys; ``enable_gqa`` would make all scores there.
    """
    shared = q.device.type == "cpu" or q.dtype != torch.float32
    if not shared:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)


def leaky_attention(_lengths: Lengths, _device: torch.device) -> Attend:
    """Attend over the whole row as if it were one document."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return causal_kernel(q, k, v)[0].transpose(0, 1)

    return attend


def padded_attention(lengths: Lengths, device: torch.device) -> Attend:
    """Attend in right-padded rows; laying them out and taking them back is timed too, as it is for hermetic."""
    width = max(lengths)
    real = (torch.arange(width) < torch.tensor(lengths)[:, None]).flatten().to(device)
    slots = torch.nonzero(real).squeeze(1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            x.new_zeros(real.numel(), *x.shape[1:]).index_copy(0, slots, x).unflatten(0, (-1, width)).transpose(1, 2)
            for x in (q, k, v)
        )
        out = causal_kernel(q, k, v)
        return out.transpose(1, 2).flatten(0, 1).index_select(0, slots)

    return attend


def flash_attention(lengths: Lengths, device: torch.device) -> Attend:
    """flash-attn 2 as its users call it."""
    from flash_attn import flash_attn_varlen_func

    edges, longest = edges_of(lengths, device)
    return lambda q, k, v: flash_attn_varlen_func(q, k, v, edges, edges, longest, longest, causal=True)


def varlen_attention(lengths: Lengths, device: torch.device) -> Attend:
    """PyTorch's variable-length attention as its users call it."""
    from torch.nn.attention.varlen import varlen_attn

    edges, longest = edges_of(lengths, device)
    causal: dict[str, Any] = {"window_size": (-1, 0), "enable_gqa": True}
    return lambda q, k, v: varlen_attn(q, k, v, edges, edges, longest, longest, **causal)


def edges_of(lengths: Lengths, device: torch.device) -> tuple[torch.Tensor, int]:
    """Return cu_seqlens and the longest document."""
    boundaries = Boundaries(document_lengths=lengths)
    return boundaries.cu_seqlens.to(device), boundaries.max_seqlen


def flex_attention(lengths: Lengths, device: torch.device) -> Attend:
    """FlexAttention, compiled, with a causal document mask as its users write it."""
    from torch.nn.attention import flex_attention as flex

    ids = Boundaries(document_lengths=lengths).document_ids.to(device)

    def document(_batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query >= key) & (ids[query] == ids[key])

    mask = flex.create_block_mask(document, None, None, len(ids), len(ids), device=device)
    compiled = torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        # All compilations of one function count together, and beyond 8 it would run uncompiled, with all scores.
        with torch._dynamo.config.patch(recompile_limit=256):  # noqa: SLF001 - the documented way to set it
            return compiled(q, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)

    return attend
