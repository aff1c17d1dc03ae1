"""PyTorch's FlexAttention over the whole row, under a BlockMask made from the boundaries.

Algorithm: one call for the row, whatever its documents; blocks of 128 tokens in which no token sees another are
skipped (see ``block_mask``). The soft cap is a ``score_mod``; a sink takes its weight afterwards, from the
log-sum-exp of the scores: ``out * sigmoid(lse - sink)``. The row is padded with zeros to whole blocks, a long one
up to an eighth further, for kernels are compiled per length; the padded tail is a document of its own.
Guarantee: whatever the caller's tail holds is replaced before the kernel sees it. A document's numbers depend on
nothing in other documents as long as those are finite: the kernel multiplies foreign values by weights of exactly
zero, and zero times infinity is NaN.
Price: on CUDA one compilation per padded length, dtype, head layout and set of options, each of several seconds; to
have one, pad rows to a fixed capacity.
On the CPU PyTorch has no backward pass and its compiled kernel is wrong for narrow heads, so the call there runs
uncompiled, forward only, and makes ``[H, T, T]`` scores: it is for checking, and limited in length.
Does not do: dropout (use ``sdpa``).
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses

from hermetic.attention.backend import AttentionCall, Backend
from hermetic.attention.block_mask import BLOCK_SIZE, block_mask_from_boundaries
from hermetic.attention.options import AttentionOptions
from hermetic.batch import Boundaries

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_MAX_CPU_SLOTS = 4096
"""Uncompiled, a row of 4,096 slots makes 64 MiB of float32 scores per head, several times over."""

_MIN_CUDA_WIDTH = 16
"""The matrix units' smallest product; FlexAttention refuses narrower heads on CUDA."""

_MAX_COMPILATIONS = 256
"""Lengths times dtypes, head layouts and options; beyond it torch.compile raises, where its default is 8."""


def attend(
    q_SHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_SGK: torch.Tensor,  # noqa: N803
    v_SGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend inside each of ``lengths`` consecutive documents; returns ``[S, H, V]``, zeros behind them."""
    num_tokens, num_slots, value_width = sum(lengths), q_SHK.shape[0], v_SGV.shape[2]
    padded = _padded(num_slots)
    mask = _mask(lengths, padded, q_SHK.device, causal=options.causal, window=options.window, chunk=options.chunk)
    q, k, v = (_lay_out(x, num_tokens, padded) for x in (q_SHK, k_SGK, v_SGV))
    out = _flex(q, k, v, mask, options)[0].transpose(0, 1)
    return _zeros_behind(out[:num_tokens, :, :value_width], num_slots, value_width)


def _padded(num_slots: int) -> int:
    """The next of few lengths: whole blocks, and no more than eight lengths between a power of two and the next.

    ``1 -> 128``, ``1000 -> 1024``, ``4096 -> 4096``, ``5000 -> 5120``.
    """
    step = max(BLOCK_SIZE, (1 << (num_slots - 1).bit_length()) // 16)
    return -(-num_slots // step) * step


@lru_cache(maxsize=4)
def _mask(
    lengths: tuple[int, ...],
    num_slots: int,
    device: torch.device,
    *,
    causal: bool,
    window: int | None,
    chunk: int | None,
) -> "BlockMask":
    """The mask of a batch, made once for all layers of one kind, in the forward pass and in a recomputation.

    A pure function of its value, so remembering it cannot go stale; the tensors are never written to.
    """
    with torch.inference_mode(mode=False):  # autograd may save them for a later backward
        return block_mask_from_boundaries(
            Boundaries(document_lengths=lengths),
            num_slots=num_slots,
            causal=causal,
            window=window,
            chunk=chunk,
            device=device,
        )


def _lay_out(x: torch.Tensor, num_tokens: int, num_slots: int) -> torch.Tensor:
    """``[S, H, K]`` to ``[1, H, num_slots, K]``, as wide as the kernel needs; zeros add nothing to a dot product."""
    width = x.shape[2] if x.device.type == "cpu" else max(x.shape[2], _MIN_CUDA_WIDTH)
    return _zeros_behind(x[:num_tokens], num_slots, width).transpose(0, 1)[None]


def _zeros_behind(x: torch.Tensor, num_slots: int, width: int) -> torch.Tensor:
    """``[N, H, K]`` to ``[num_slots, H, width]``."""
    padding = (0, width - x.shape[2], 0, 0, 0, num_slots - x.shape[0])
    return F.pad(x, padding) if any(padding) else x


def _flex(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: "BlockMask", options: AttentionOptions
) -> torch.Tensor:
    """``[1, H, S, K]`` in, ``[1, H, S, V]`` out."""
    arguments: dict[str, Any] = {
        "score_mod": None if options.softcap is None else _soft_cap(options.softcap),
        "block_mask": mask,
        "scale": options.scale,
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    run: Callable[..., Any] = _compiled if q.device.type == "cuda" else _uncompiled
    if options.sinks is None:
        return run(q, k, v, **arguments)  # type: ignore[no-any-return]
    from torch.nn.attention.flex_attention import AuxRequest

    out, aux = run(q, k, v, **arguments, return_aux=AuxRequest(lse=True))
    weight = torch.sigmoid(aux.lse - options.sinks.to(aux.lse.dtype)[:, None])
    return (out.to(weight.dtype) * weight[..., None]).to(out.dtype)  # type: ignore[no-any-return]


def _soft_cap(cap: float) -> Callable[..., torch.Tensor]:
    def score_mod(
        score: torch.Tensor, _batch: torch.Tensor, _head: torch.Tensor, _query: torch.Tensor, _key: torch.Tensor
    ) -> torch.Tensor:
        return cap * torch.tanh(score / cap)

    return score_mod


def _compiled(*inputs: torch.Tensor, **arguments: Any) -> Any:
    # fullgraph: at the limit torch.compile would otherwise fall back to [H, T, T] scores without a word.
    with torch._dynamo.config.patch(recompile_limit=_MAX_COMPILATIONS):  # noqa: SLF001 - the documented way to set it
        return _compiled_flex()(*inputs, **arguments)


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # Static shapes: the kernel for whole blocks has no border checks, and is the one that everybody uses.
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _uncompiled(*inputs: torch.Tensor, **arguments: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    with warnings.catch_warnings():  # it advises to compile, which on the CPU gives wrong numbers
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        return flex_attention(*inputs, **arguments)  # type: ignore[call-overload]


def _objection(call: AttentionCall) -> str | None:
    if call.options.dropout > 0.0:
        return "has no dropout: flex_attention does not know it"
    if call.options.sinks is not None and not _returns_log_sum_exp():
        return f"needs a newer PyTorch than {torch.__version__} for sinks: its flex_attention has no return_aux"
    if call.device_type == "cpu":
        return _objection_on_the_cpu(call)
    if call.device_type != "cuda":
        return f"runs on cpu and cuda, and the inputs are on {call.device_type}"
    if call.dtype == torch.float64:
        return "has no float64 on CUDA: flex_attention's kernel sums in float32"
    return None


def _returns_log_sum_exp() -> bool:
    from torch.nn.attention import flex_attention

    return hasattr(flex_attention, "AuxRequest")


def _objection_on_the_cpu(call: AttentionCall) -> str | None:
    if call.with_gradient:
        return "has no backward pass on the CPU: there flex_attention is forward only; call it under torch.no_grad()"
    if call.num_slots > _MAX_CPU_SLOTS:
        return (
            f"takes at most {_MAX_CPU_SLOTS:,} slots on the CPU, where it makes [H, T, T] scores, and the row has "
            f"{call.num_slots:,}"
        )
    return None


BACKEND = Backend(attend=attend, objection=_objection, takes_tail=True)
