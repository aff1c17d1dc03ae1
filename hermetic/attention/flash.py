"""The flash-attn packages: one kernel call for all documents, by the newest generation that serves the call.

Algorithm: ``flash_attn_varlen_func`` of flash-attn 4, 3 or 2 over ``cu_seqlens``. All three compute the same; a
newer one is faster on the GPUs that it is made for, and none can do everything, so each is asked in turn.
Guarantee: forward and backward, grouped-query heads, windows, chunks, soft cap, value heads of another width,
sinks (with a window or a soft cap by flash-attn 4 only), dropout (by flash-attn 2 only); no document's numbers
depend on another document. Under ``torch.use_deterministic_algorithms`` the backward pass is the kernels'
deterministic one.
Price: what is said in ``varlen``; a GPU and half precision. No package is imported before its first use.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata
from typing import Any

import torch

from hermetic.attention import varlen
from hermetic.attention.backend import AttentionCall, Backend, call_of
from hermetic.attention.edges import Edges
from hermetic.attention.options import AttentionOptions
from hermetic.errors import BackendError


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One generation of flash-attn."""

    name: str
    module: str
    """Where its ``flash_attn_varlen_func`` is."""
    install: str
    """How it comes onto a machine."""
    first: tuple[str, tuple[int, ...]] | None
    """Distribution and first release that has all that is asked of it; ``None``: there is one release only."""
    capabilities: tuple[int, int | None]
    """First and last major compute capability that it runs on; ``None``: all from the first."""
    sink_tokens: bool
    """The kernel knows no sinks, so that they have to be tokens."""
    arguments: Callable[[AttentionOptions], dict[str, Any]]
    """What is said differently from the other generations."""
    lacks: Callable[[AttentionCall], str | None]
    """What it alone cannot do, as the rest of a sentence; or None."""


def attend(
    q_NHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend inside each of ``lengths`` consecutive documents; returns ``[N, H, V]``."""
    call = call_of(q_NHK, k_NGK, v_NGV, options)
    found = serving(call)
    if found is None:
        raise BackendError(f"backend 'flash' {_objection(call)}")
    generation, function = found
    kernel = _kernel(generation, function, options)
    return varlen.attend(kernel, (q_NHK, k_NGK, v_NGV), lengths, options, sink_tokens=generation.sink_tokens)


def serving(call: AttentionCall) -> tuple[Generation, Callable[..., Any]] | None:
    """The newest generation on this machine that can serve this call, and its kernel; ``None`` if none can."""
    if varlen.kind_objection(call) is not None:
        return None
    for generation in GENERATIONS:
        function = _function(generation)
        if not isinstance(function, str) and _shortcoming(generation, call) is None:
            return generation, function
    return None


def _kernel(generation: Generation, function: Callable[..., Any], options: AttentionOptions) -> varlen.Kernel:
    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, edges: Edges) -> torch.Tensor:
        out: torch.Tensor | tuple[torch.Tensor, ...] = function(
            q,
            k,
            v,
            cu_seqlens_q=edges.cu_seqlens,
            cu_seqlens_k=edges.cu_seqlens,
            max_seqlen_q=edges.max_seqlen,
            max_seqlen_k=edges.max_seqlen,
            softmax_scale=options.scale,
            causal=options.causal,
            softcap=options.softcap or 0.0,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            **generation.arguments(options),
        )
        return out[0] if isinstance(out, tuple) else out  # some releases add the softmax statistics unasked

    return kernel


def _objection(call: AttentionCall) -> str | None:
    reason = varlen.kind_objection(call)
    if reason is not None or serving(call) is not None:
        return reason
    reasons = "; ".join(f"{generation.name} {_why_not(generation, call)}" for generation in GENERATIONS)
    return f"has no kernel for this call: {reasons}"


def _why_not(generation: Generation, call: AttentionCall) -> str | None:
    function = _function(generation)
    return function if isinstance(function, str) else _shortcoming(generation, call)


def _shortcoming(generation: Generation, call: AttentionCall) -> str | None:
    return (
        varlen.device_objection(*generation.capabilities)
        or generation.lacks(call)
        or varlen.size_objection(call, sink_tokens=generation.sink_tokens)
    )


@lru_cache(maxsize=3)
def _function(generation: Generation) -> Callable[..., Any] | str:
    """The kernel, or why it cannot be had, as the rest of a sentence."""
    try:
        function: Callable[..., Any] = import_module(generation.module).flash_attn_varlen_func
        return _too_old(generation) or function
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and f"{generation.module}.".startswith(f"{error.name}."):
            return f"is not installed ({generation.install})"
        return f"is installed and cannot be imported ({error})"


def _too_old(generation: Generation) -> str | None:
    if generation.first is None:
        return None
    distribution, first = generation.first
    found = metadata.version(distribution)
    numbers = tuple(float(number) for number in re.findall(r"\d+", found))
    if (numbers if "b" in found else (*numbers, float("inf"))) >= first:  # a release comes after its betas
        return None
    return f"{found} is too old ({generation.install})"


def _arguments_of_2(options: AttentionOptions) -> dict[str, Any]:
    return {"window_size": _window(options), "dropout_p": options.dropout}


def _arguments_of_3(options: AttentionOptions) -> dict[str, Any]:
    # More splits are decided by the whole batch, and a document's last bits with them.
    return {"window_size": _window(options), "num_splits": 1}


def _arguments_of_4(options: AttentionOptions) -> dict[str, Any]:
    sinks = None if options.sinks is None else options.sinks.float()
    return {
        "window_size": (None, None) if options.window is None else _window(options),
        "num_splits": 1,
        "learnable_sink": sinks,
    }


def _window(options: AttentionOptions) -> tuple[int, int]:
    """Keys before and after a query that it sees; -1 is no limit."""
    return (-1, -1) if options.window is None else (options.window - 1, 0)


def _lacks_2(call: AttentionCall) -> str | None:
    if call.options.dropout > 0.0 and call.options.softcap is not None:
        return "has no dropout together with a softcap"
    return None


def _lacks_3(call: AttentionCall) -> str | None:
    return "has no dropout" if call.options.dropout > 0.0 else None


def _lacks_4(call: AttentionCall) -> str | None:
    width = varlen.width_of(call, sink_tokens=False)
    capability = varlen.compute_capability()
    if capability is not None and capability[0] >= 10 and width > 128:
        return f"takes heads of at most 128 features on this device, and these have {width}"
    return _lacks_3(call)


GENERATIONS = (
    Generation(
        name="flash-attn 4",
        module="flash_attn.cute",
        install="pip install --pre flash-attn-4",
        first=("flash-attn-4", (4, 0, 0, 26)),  # the first with the gradient of the sinks
        capabilities=(9, 11),
        sink_tokens=False,
        arguments=_arguments_of_4,
        lacks=_lacks_4,
    ),
    Generation(
        name="flash-attn 3",
        module="flash_attn_interface",
        install="build it from the folder hopper of flash-attention",
        first=None,
        capabilities=(9, 9),
        sink_tokens=True,
        arguments=_arguments_of_3,
        lacks=_lacks_3,
    ),
    Generation(
        name="flash-attn 2",
        module="flash_attn.flash_attn_interface",
        install="pip install flash-attn --no-build-isolation",
        first=("flash-attn", (2, 6)),  # the first with a soft cap
        capabilities=(8, None),
        sink_tokens=True,
        arguments=_arguments_of_2,
        lacks=_lacks_2,
    ),
)
"""Newest first."""

BACKEND = Backend(attend=attend, objection=_objection)
