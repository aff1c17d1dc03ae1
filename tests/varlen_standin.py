"""Stand-ins for the variable-length kernels, which need a GPU: the same signatures, on the CPU, one segment at a time.

They are as strict as the kernels, and as careless: slots beyond the last edge are not written, forward or backward.
"""
# ruff: noqa: FBT002, PLR0917 - the signatures are the kernels'

import importlib.metadata
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType

import pytest
import torch
import torch.nn.attention.varlen

from hermetic.attention import flash, torch_varlen, varlen

KERNELS = {"flash-attn 2": "flash", "flash-attn 3": "flash", "flash-attn 4": "flash", "varlen_attn": "torch_varlen"}
"""Every stand-in and the backend that calls it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the signatures have in common; ``left`` and ``right`` are the keys that a query sees, or None for all."""

    edges: tuple[int, ...]
    scale: float
    left: int | None
    right: int | None
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    swaps_heads: bool = False
    """The kernel takes its decoding path, whose softmax statistics the backward pass misreads."""


@dataclass(frozen=True)
class Calls:
    """The arguments of every call so far, by parameter name."""

    arguments: list[dict] = field(default_factory=list)


def _segment(q, k, v, sinks, settings, segment):
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("ihk,jhk->hij", q, k) * settings.scale
    if settings.softcap > 0.0:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if settings.left is not None:
        seen &= distance <= settings.left
    if settings.right is not None:
        seen &= -distance <= settings.right
    scores = scores.masked_fill(~seen, -math.inf)
    total = scores.logsumexp(-1, keepdim=True)
    if sinks is not None:
        total = torch.logaddexp(total, sinks[:, None, None])
    weights = (scores - total).exp()
    if settings.dropout > 0.0:
        generator = torch.Generator().manual_seed(settings.seed + segment)
        kept = torch.rand(weights.shape, generator=generator) >= settings.dropout
        weights = weights * kept / (1.0 - settings.dropout)
    return torch.einsum("hij,jhv->ihv", weights, v)


def _all_segments(q, k, v, sinks, settings):
    pairs = enumerate(zip(settings.edges, settings.edges[1:], strict=False))
    return torch.cat([_segment(q[b:e], k[b:e], v[b:e], sinks, settings, segment) for segment, (b, e) in pairs])


def _unwritten(shape, dtype):
    return torch.full(shape, math.nan, dtype=dtype)


class _Attention(torch.autograd.Function):
    """Float32 inside, the inputs' dtype outside."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, settings):
        ctx.save_for_backward(q, k, v, sinks)
        ctx.settings = settings
        out = _unwritten(q.shape, q.dtype)
        floats = [None if x is None else x.float() for x in (q, k, v, sinks)]
        out[: settings.edges[-1]] = _all_segments(*floats, settings).to(q.dtype)
        return out

    @staticmethod
    def backward(ctx, upstream):
        assert not ctx.settings.swaps_heads, "the backward pass misreads what the decoding path leaves behind"
        end = ctx.settings.edges[-1]
        leaves = [None if x is None else x.detach().float().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = _all_segments(*leaves, ctx.settings)
        wanted = [x for x in leaves if x is not None]
        found = iter(torch.autograd.grad(out, wanted, upstream[:end].float()))
        gradients = [None if x is None else next(found).to(x.dtype) for x in ctx.saved_tensors]
        for gradient in gradients[:3]:
            gradient[end:] = math.nan
        return (*gradients, None)


def _check(q, k, v, cu_q, cu_k, max_q, max_k):
    for x in (q, k, v):
        assert x.ndim == 3, "[total, heads, width]"
        assert x.dtype in {torch.float16, torch.bfloat16}, "half precision only"
        assert x.dtype == q.dtype, "one dtype"
        assert x.shape[2] == q.shape[2], "one head width"
        assert x.shape[2] % 8 == 0, "widths are multiples of 8"
        assert x.shape[2] <= 256, "widths are at most 256"
        assert x.stride(-1) == 1, "features lie next to each other"
    assert k.shape == v.shape
    assert q.shape[1] % k.shape[1] == 0, "query heads are a multiple of key heads"
    for cu, longest, x in ((cu_q, max_q, q), (cu_k, max_k, k)):
        assert cu.dtype == torch.int32, "cu_seqlens are int32"
        assert type(longest) is int, "max_seqlen is a Python int"
        lengths = cu.diff()
        assert cu[0] == 0, "cu_seqlens start at 0"
        assert cu[-1] <= len(x), "cu_seqlens end within the tensor"
        assert bool((lengths > 0).all()), "no segment is empty"
        assert longest >= int(lengths.max()), "max_seqlen is the longest segment at least"
    assert torch.equal(cu_q, cu_k)


def _attend(calls, arguments, q, k, v, edges, sinks=None, **settings):
    """``edges`` are cu_seqlens and max_seqlen of queries, then of keys."""
    cu_q, max_q, cu_k, max_k = edges
    _check(q, k, v, cu_q, cu_k, max_q, max_k)
    calls.arguments.append(arguments)
    whole = settings["left"] is None and settings["right"] in {None, 0}
    decoding = max_q == 1 and q.shape[1] > k.shape[1] and whole and not settings.get("dropout")
    asked = Settings(edges=tuple(cu_q.tolist()), swaps_heads=decoding, **settings)
    return _Attention.apply(q, k, v, sinks, asked)


def _limits(causal, window_size):
    left, right = (None if side is None or side < 0 else side for side in window_size)
    return {"left": left, "right": 0 if causal else right}


def _flash_2(calls):
    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        arguments = dict(locals())
        assert (alibi_slopes, return_attn_probs, block_table) == (None, False, None)
        assert not (dropout_p and softcap), "soft cap does not support dropout"
        edges = (cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k)
        seed = int(torch.randint(2**31, ())) if dropout_p else 0
        settings = {"scale": softmax_scale, "softcap": softcap, "dropout": dropout_p, "seed": seed}
        return _attend(calls, arguments, q, k, v, edges, **settings, **_limits(causal, window_size))

    return flash_attn_varlen_func


def _flash_3(calls):
    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        seqused_q=None,
        seqused_k=None,
        softmax_scale=None,
        causal=False,
        qv=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        sm_margin=0,
        return_attn_probs=False,
    ):
        arguments = dict(locals())
        assert (seqused_q, seqused_k, qv, q_descale, k_descale, v_descale, pack_gqa) == (None,) * 7
        assert (attention_chunk, sm_margin, return_attn_probs) == (0, 0, False)
        edges = (cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k)
        settings = {"scale": softmax_scale, "softcap": softcap}
        return _attend(calls, arguments, q, k, v, edges, **settings, **_limits(causal, window_size))

    return flash_attn_varlen_func


def _flash_4(calls):
    def flash_attn_varlen_func(
        q,
        k,
        v,
        qv=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        min_seqlen_k=None,
        seqused_q=None,
        seqused_k=None,
        gather_kv_indices=None,
        page_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        score_mod=None,
        score_mod_bwd=None,
        mask_mod=None,
        block_sparse_tensors=None,
        aux_tensors=None,
        aux_scalars=None,
        return_lse=False,
        scheduler_metadata=None,
        seqlen_k_per_split=None,
        disable_scheduler_metadata=False,
        gather_bwd_recompute_p=False,
        gather_bwd_token_chunk=None,
    ):
        arguments = dict(locals())
        assert (qv, min_seqlen_k, seqused_q, seqused_k, page_table, pack_gqa, mask_mod) == (None,) * 7
        if learnable_sink is not None:
            assert learnable_sink.shape == (q.shape[1],)
            assert learnable_sink.dtype in {torch.float16, torch.bfloat16, torch.float32}
        edges = (cu_seqlens_q, max_seqlen_q, cu_seqlens_k, max_seqlen_k)
        settings = {"scale": softmax_scale, "softcap": softcap}
        limits = _limits(causal, window_size)
        return _attend(calls, arguments, q, k, v, edges, learnable_sink, **settings, **limits), None

    return flash_attn_varlen_func


def _varlen_attn(calls):
    def varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        *,
        return_aux=None,
        scale=None,
        window_size=(-1, -1),
        enable_gqa=False,
        seqused_k=None,
        block_table=None,
        num_splits=None,
    ):
        arguments = dict(locals())
        assert (return_aux, seqused_k, block_table) == (None, None, None)
        assert num_splits is None, "the kernel that comes with PyTorch may refuse to be asked"
        assert type(window_size) is tuple, "it is compared with (-1, 0)"
        assert enable_gqa or query.shape[1] == key.shape[1]
        edges = (cu_seq_q, max_q, cu_seq_k, max_k)
        return _attend(calls, arguments, query, key, value, edges, scale=scale, **_limits(False, window_size))

    return varlen_attn


_FLASH = {
    "flash-attn 2": ("flash_attn.flash_attn_interface", _flash_2, "2.8.3", (8, 0)),
    "flash-attn 3": ("flash_attn_interface", _flash_3, "3.0.0", (9, 0)),
    "flash-attn 4": ("flash_attn.cute", _flash_4, "4.0.0b36", (10, 0)),
}


@contextmanager
def installed(*names: str, capability: tuple[int, int] | None = None) -> Iterator[Calls]:
    """The named kernels are installed, nothing else is, and the CPU counts as a GPU of this compute capability."""
    calls, versions = Calls(), {}
    with pytest.MonkeyPatch.context() as patch:
        for name, (module, make, version, own_capability) in _FLASH.items():
            versions[name.replace(" 2", "").replace(" ", "-")] = version
            patch.setitem(sys.modules, module, _module(make(calls)) if name in names else None)
            if name in names:
                capability = capability or own_capability
        patch.setattr(importlib.metadata, "version", versions.__getitem__)
        if "varlen_attn" in names:
            patch.setattr(torch.nn.attention.varlen, "varlen_attn", _varlen_attn(calls))
        patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: "varlen_attn" in names)
        patch.setattr(varlen, "DEVICE_TYPES", ("cpu",))
        patch.setattr(varlen, "compute_capability", lambda: capability or (8, 0))
        _forget_what_was_found()
        try:
            yield calls
        finally:
            _forget_what_was_found()


def _module(function) -> ModuleType:
    module = ModuleType("stand-in")
    module.flash_attn_varlen_func = function
    return module


def _forget_what_was_found() -> None:
    flash._function.cache_clear()
    torch_varlen._function.cache_clear()
