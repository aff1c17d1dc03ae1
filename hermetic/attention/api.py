"""One function for attention inside documents; the caller names the backend and gets that one.

Guarantee: a token's output depends on tokens of its own document only, and the padded tail comes out as
zeros in the output and in all gradients. A backend that cannot do what was asked says so; none is ever
replaced silently.
"""

import math

import torch

from hermetic.attention import flash, flex, reference, sdpa, torch_varlen
from hermetic.attention.backend import AttentionCall, Backend, call_of
from hermetic.attention.options import AttentionOptions
from hermetic.batch import Boundaries
from hermetic.errors import AttentionError, BackendError

_BACKENDS: dict[str, Backend] = {
    "reference": reference.BACKEND,
    "sdpa": sdpa.BACKEND,
    "flex": flex.BACKEND,
    "flash": flash.BACKEND,
    "torch_varlen": torch_varlen.BACKEND,
}

BACKENDS: tuple[str, ...] = tuple(_BACKENDS)
"""The backends that ``packed_attention`` and ``seal`` take."""


def packed_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    boundaries: Boundaries,
    *,
    backend: str = "sdpa",
    causal: bool = True,
    window: int | None = None,
    chunk: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Attend inside each document of a flat batch.

    Inside of a ``torch.compile`` the call is a graph break: a graph would hold the boundaries of the batch that it
    was made from, and be made anew for every other.

    Args:
        q: ``[T, H, K]`` queries; ``T`` may exceed ``boundaries.num_tokens`` by a padded tail.
        k: ``[T, G, K]`` keys; ``G`` divides ``H`` (grouped-query heads).
        v: ``[T, G, V]`` values; ``V`` may differ from ``K``.
        boundaries: where each document starts and ends.
        backend: one of ``BACKENDS``; ``"reference"`` is the definition.
        causal: a token sees itself and earlier tokens of its document; otherwise its whole document.
        window: a token sees itself and the ``window - 1`` tokens before it (causal only).
        chunk: a token sees its own chunk only; chunks are counted from its document's start.
        scale: factor on the dot products, by default ``K ** -0.5``.
        softcap: cap on the logits through ``tanh``; not every backend has one.
        sinks: ``[H]`` learned logits that take part in each softmax and carry no value; not every backend has them.
        dropout: probability with which an attention weight is dropped.

    Returns:
        ``[T, H, V]`` in the dtype of ``q``, or in autocast's where that is enabled; zeros on the tail.

    Raises:
        AttentionError: shapes, dtypes or options do not fit each other.
        BackendError: the backend is unknown or lacks what was asked.
    """
    if torch.compiler.is_compiling():  # only then is the compiler loaded, which takes a second
        return torch.compiler.disable(packed_attention)(  # type: ignore[no-any-return]
            q,
            k,
            v,
            boundaries,
            backend=backend,
            causal=causal,
            window=window,
            chunk=chunk,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            dropout=dropout,
        )
    if backend not in _BACKENDS:
        raise BackendError(f"backend is {backend!r}; expected one of {', '.join(map(repr, BACKENDS))}")
    _validate_places(q=q, k=k, v=v, sinks=q if sinks is None else sinks)
    q, k, v = (_as_autocast_has_it(x) for x in (q, k, v))
    _validate_tensors(q, k, v, boundaries)
    _validate_options(q, causal=causal, window=window, chunk=chunk, softcap=softcap, sinks=sinks)
    if scale is not None and not math.isfinite(scale):
        raise AttentionError(f"scale is {scale}; expected a finite number, or None for K ** -0.5")
    if not 0.0 <= dropout < 1.0:
        raise AttentionError(f"dropout is {dropout}; expected a probability in [0, 1)")
    options = AttentionOptions(
        causal=causal,
        window=window,
        chunk=chunk,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
    )
    _refuse_what_it_cannot(backend, call_of(q, k, v, options))
    return _attend(_BACKENDS[backend], (q, k, v), boundaries, options)


def objection_of(name: str, call: AttentionCall) -> str | None:
    """Why the backend of this name cannot serve a call, in its own words; ``None`` if it can."""
    return _BACKENDS[name].objection(call)


def _refuse_what_it_cannot(name: str, call: AttentionCall) -> None:
    objection = objection_of(name, call)
    if objection is None:
        return
    able = [f"backend={other!r}" for other in BACKENDS if objection_of(other, call) is None]
    way_out = f"use {' or '.join(able)}" if able else "no backend on this machine can"
    raise BackendError(f"backend {name!r} {objection}; {way_out}")


def _as_autocast_has_it(x: torch.Tensor) -> torch.Tensor:
    """The dtype that autocast gives to an attention's inputs: q and k often leave rotary in float32, v does not."""
    if not torch.is_autocast_enabled(x.device.type) or x.dtype not in {torch.float32, torch.float16, torch.bfloat16}:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _attend(
    backend: Backend,
    queries_keys_values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    boundaries: Boundaries,
    options: AttentionOptions,
) -> torch.Tensor:
    device = queries_keys_values[0].device.type
    if not torch.is_autocast_enabled(device):
        return _with_tail(backend, queries_keys_values, boundaries, options)
    with torch.autocast(device, enabled=False):  # the cast was made by the caller, once
        return _with_tail(backend, queries_keys_values, boundaries, options)


def _with_tail(
    backend: Backend,
    queries_keys_values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    boundaries: Boundaries,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend over the real tokens; the tail comes out as zeros."""
    q, k, v = queries_keys_values
    num_tokens, num_slots = boundaries.num_tokens, q.shape[0]
    if num_tokens == 0:
        inputs = [q, k, v] if options.sinks is None else [q, k, v, options.sinks]
        nothing = sum(x[:0].sum() for x in inputs)  # 0.0, and holds the graph: gradients are zeros, not missing
        return q.new_zeros(num_slots, q.shape[1], v.shape[2]) + nothing
    if backend.takes_tail:
        return backend.attend(q, k, v, boundaries.document_lengths, options)
    out = backend.attend(q[:num_tokens], k[:num_tokens], v[:num_tokens], boundaries.document_lengths, options)
    if num_tokens == num_slots:
        return out
    return torch.cat([out, out.new_zeros(num_slots - num_tokens, *out.shape[1:])])


def _validate_places(**tensors: torch.Tensor) -> None:
    """All are floating tensors on the device of the first, ``q``, and one on which there is something to compute."""
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise AttentionError(f"{name} is a {type(x).__name__}; expected a tensor")
        if not x.is_floating_point():
            raise AttentionError(f"{name} is {x.dtype}; expected a floating dtype")
        if x.device != tensors["q"].device or x.is_meta:
            raise AttentionError(
                f"{name} is on {x.device} and q is on {tensors['q'].device}; expected one device, and not 'meta', "
                "which has no numbers"
            )


def _validate_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, boundaries: Boundaries) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise AttentionError(
                f"{name} has shape {tuple(x.shape)}; expected three dimensions [T, heads, width]. "
                "Flatten rows into one stream first: several rows are simply more documents"
            )
        if x.shape[0] != q.shape[0]:
            raise AttentionError(f"{name} has {x.shape[0]} tokens and q has {q.shape[0]}; expected the same")
        if x.dtype != q.dtype:
            raise AttentionError(f"{name} is {x.dtype} and q is {q.dtype}; expected one dtype")
    if k.shape[2] != q.shape[2] or q.shape[2] == 0:
        raise AttentionError(
            f"k is {k.shape[2]} wide and q is {q.shape[2]}; expected the same head width of at least 1"
        )
    if k.shape[1] != v.shape[1] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise AttentionError(
            f"q, k and v have {q.shape[1]}, {k.shape[1]} and {v.shape[1]} heads; expected as many value heads "
            "as key heads, and a multiple of them in q"
        )
    if not isinstance(boundaries, Boundaries):
        raise AttentionError(
            f"boundaries is a {type(boundaries).__name__}; expected Boundaries, as Boundaries.from_lengths makes them"
        )
    if boundaries.num_tokens > q.shape[0]:
        raise AttentionError(
            f"boundaries describe {boundaries.num_tokens} tokens and q has {q.shape[0]}; "
            "expected boundaries of this very batch"
        )


def _validate_options(
    q: torch.Tensor,
    *,
    causal: bool,
    window: int | None,
    chunk: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    for name, size in (("window", window), ("chunk", chunk)):
        if size is not None and (type(size) is not int or size < 1):
            raise AttentionError(f"{name} is {size!r}; expected a Python int of at least 1 token, or None for no limit")
    if window is not None and not causal:
        raise AttentionError(
            f"window is {window} with causal=False; a window counts tokens before the current one, "
            "so it needs causal=True"
        )
    if softcap is not None and not 0.0 < softcap < math.inf:
        raise AttentionError(f"softcap is {softcap}; expected a positive, finite number, or None for no cap")
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise AttentionError(f"sinks have shape {tuple(sinks.shape)}; expected [{q.shape[1]}], one per head")
