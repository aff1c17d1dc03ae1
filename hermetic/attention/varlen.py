"""What the backends with variable-length kernels share: one shape for all kernels, and the kernels' common limits.

Algorithm: chunks become documents; sinks become tokens (see ``sinks``) where the kernel has none; queries, keys
and values are padded with zeros to one width, a multiple of 8, which adds nothing to a dot product and is cut off
the output. Guarantee: a kernel sees documents with tokens only, and every slot that it sees lies in a document.
Price: a copy of what has to be padded, such as values that are narrower than keys.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses

from hermetic.attention.backend import AttentionCall, scale_objection
from hermetic.attention.edges import Edges, chunks, edges_of
from hermetic.attention.options import AttentionOptions
from hermetic.attention.sinks import extra_width, with_sink_tokens, without_sink_tokens
from hermetic.attention.sinks import objection as sink_token_objection

DEVICE_TYPES = ("cuda",)
DTYPES = (torch.float16, torch.bfloat16)
MAX_WIDTH = 256
"""Features of a head that the kernels are compiled for at most."""

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Edges], torch.Tensor]
"""``(q [N, H, W], k [N, G, W], v [N, G, W], edges) -> [N, H, W]``."""


def attend(
    kernel: Kernel,
    queries_keys_values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    lengths: tuple[int, ...],
    options: AttentionOptions,
    *,
    sink_tokens: bool,
) -> torch.Tensor:
    """One call of ``kernel`` for all documents; returns ``[N, H, V]``.

    Args:
        kernel: what attends; it gets scale, window and the rest from its maker.
        queries_keys_values: ``[N, H, K]``, ``[N, G, K]`` and ``[N, G, V]``.
        lengths: tokens of each document.
        options: what the call means.
        sink_tokens: the kernel knows no sinks; those of the call, if any, become tokens.
    """
    q, k, v = queries_keys_values
    documents = chunks(lengths, options.chunk)
    if options.sinks is None or not sink_tokens:
        return _at_one_width(kernel, (q, k, v), documents)
    *extended, extended_lengths = with_sink_tokens(q, k, v, documents, sinks=options.sinks, scale=options.scale)
    return without_sink_tokens(_at_one_width(kernel, tuple(extended), extended_lengths), documents)


def compute_capability() -> tuple[int, int] | None:
    """Of the current CUDA device; ``None`` without one."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def kind_objection(call: AttentionCall) -> str | None:
    """Why no variable-length kernel takes a call of this kind, as the rest of a sentence; or None."""
    if call.device_type not in DEVICE_TYPES:
        return f"runs on {' and '.join(DEVICE_TYPES)} only, and these tensors are on {call.device_type}"
    if call.dtype not in DTYPES:
        return f"takes float16 and bfloat16 only, and these tensors are {str(call.dtype).removeprefix('torch.')}"
    return scale_objection(call.options)


def device_objection(first: int, last: int | None) -> str | None:
    """Why a kernel for these major compute capabilities does not run here, as the rest of a sentence; or None."""
    found = compute_capability()
    if found is None:
        return "needs a CUDA device, and PyTorch sees none"
    if first <= found[0] <= (last or found[0]):
        return None
    asked = f"{first} or newer" if last is None else f"{first}" if last == first else f"{first} to {last}"
    return f"needs compute capability {asked}, and this device has {found[0]}.{found[1]}"


def size_objection(call: AttentionCall, *, sink_tokens: bool) -> str | None:
    """Why the kernels' common limits do not allow this call, as the rest of a sentence; or None."""
    by_token = sink_tokens and call.options.sinks is not None
    width = width_of(call, sink_tokens=sink_tokens)
    if width > MAX_WIDTH:
        sinks = " with the columns of the sinks" if by_token else ""
        return f"takes heads of at most {MAX_WIDTH} features, and these have {width}{sinks}"
    if (2 if by_token else 1) * call.num_slots * call.heads * width >= 2**31:  # a token per document, at the worst
        return (
            f"counts features in 32 bits, and {call.num_slots} tokens with {call.heads} heads of {width} features "
            "may be more than they count; attend to fewer tokens at once"
        )
    return sink_token_objection(call.options) if by_token else None


def width_of(call: AttentionCall, *, sink_tokens: bool) -> int:
    """Features of each head as the kernel gets it."""
    by_token = sink_tokens and call.options.sinks is not None
    extra = extra_width(call.heads, call.key_heads, call.dtype) if by_token else 0
    return _multiple_of_8(max(call.key_width + extra, call.value_width))


def _at_one_width(
    kernel: Kernel, queries_keys_values: tuple[torch.Tensor, ...], documents: tuple[int, ...]
) -> torch.Tensor:
    q, _, v = queries_keys_values
    width = _multiple_of_8(max(q.shape[2], v.shape[2]))
    q, k, v = (_as_wide(x, width) for x in queries_keys_values)
    return kernel(q, k, v, edges_of(documents, q.device))[..., : queries_keys_values[2].shape[2]]


def _as_wide(x: torch.Tensor, width: int) -> torch.Tensor:
    """``[N, H, K]`` with zeros up to ``width``; the kernels want features next to each other in memory."""
    padded = x if x.shape[2] == width else F.pad(x, (0, width - x.shape[2]))
    return padded if padded.stride(-1) == 1 else padded.contiguous()


def _multiple_of_8(width: int) -> int:
    return -(-width // 8) * 8
