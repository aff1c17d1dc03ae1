"""PyTorch's scaled_dot_product_attention, one call per group of documents of similar length.

Algorithm: documents of similar length are laid out as a right-padded batch (see ``layout``). Under a causal
mask a pad on the right is in nobody's past, so no mask is needed and the fast kernels apply; bidirectional
groups mask their pad keys. A chunk border ends a document as far as attention is concerned, so chunks simply
become documents. A window that binds is computed in blocks of queries against the few keys they can see.
Guarantee: forward and backward, grouped-query heads, value heads of another width; a document's numbers
depend on the other documents' *lengths* at most, never on their content. ``[T, T]`` is never allocated.
Price: one gather and one scatter of q, k and v; at most 25 % padded slots; ``[window, 2 * window]`` masks.
Where PyTorch has no fused kernel (dropout on the CPU) it makes ``[L, L]`` scores for a document of ``L`` tokens.
Does not do: soft cap and sinks, which PyTorch's function does not know (use ``reference``).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from numpy.typing import NDArray

from hermetic.attention.backend import AttentionCall, Backend
from hermetic.attention.layout import layout_from_lengths
from hermetic.attention.options import AttentionOptions


def attend(
    q_NHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend inside each of ``lengths`` consecutive documents; returns ``[N, H, V]``."""
    layout = _indices(_chunks(lengths, options.chunk), q_NHK.device)
    parts = []
    for group in layout.groups:
        q, k, v = (_lay_out(x, group) for x in (q_NHK, k_NGK, v_NGV))
        parts.append(_take_back(_attend_group(q, k, v, group, options), group))
    return torch.cat(parts).index_select(0, layout.back)


@dataclass(frozen=True, kw_only=True, slots=True)
class _GroupIndices:
    """A group of documents with its indices on the device; see ``layout.Group``."""

    rows: int
    width: int
    tokens: torch.Tensor
    slots: torch.Tensor | None
    lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Indices:
    groups: tuple[_GroupIndices, ...]
    back: torch.Tensor


@lru_cache(maxsize=8)
def _indices(lengths: tuple[int, ...], device: torch.device) -> _Indices:
    """The layout's indices on a device, copied there once for all layers of a forward and its backward.

    A pure function of its value, so remembering it cannot go stale; the tensors are never written to.
    """
    layout = layout_from_lengths(lengths)

    def on_device(index: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(index).to(device, copy=True)

    with torch.inference_mode(mode=False):  # autograd may save them for a later backward
        groups = tuple(
            _GroupIndices(
                rows=group.rows,
                width=group.width,
                tokens=on_device(group.tokens),
                slots=None if group.slots is None else on_device(group.slots),
                lengths=group.lengths,
            )
            for group in layout.groups
        )
        return _Indices(groups=groups, back=on_device(layout.back))


def _chunks(lengths: tuple[int, ...], chunk: int | None) -> tuple[int, ...]:
    """Cut each document into its chunks: ``(3, 5)`` in chunks of 4 is ``(3, 4, 1)``."""
    if chunk is None:
        return lengths
    return tuple(min(chunk, length - begin) for length in lengths for begin in range(0, length, chunk))


def _lay_out(x: torch.Tensor, group: _GroupIndices) -> torch.Tensor:
    """``[N, H, K]`` to the group's ``[rows, H, width, K]``; pad slots are zeros."""
    real = x.index_select(0, group.tokens)
    if group.slots is not None:
        blank = x.new_zeros(group.rows * group.width, *x.shape[1:])
        real = blank.index_copy(0, group.slots, real)
    return real.view(group.rows, group.width, *x.shape[1:]).transpose(1, 2)


def _take_back(x: torch.Tensor, group: _GroupIndices) -> torch.Tensor:
    """``[rows, H, width, V]`` to the group's real tokens ``[n, H, V]``, in slot order."""
    flat = x.transpose(1, 2).reshape(group.rows * group.width, x.shape[1], x.shape[3])
    return flat if group.slots is None else flat.index_select(0, group.slots)


def _attend_group(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: _GroupIndices, options: AttentionOptions
) -> torch.Tensor:
    if options.window is not None and options.window < group.width:
        return _windowed(q, k, v, options, options.window)
    mask = None if options.causal or group.slots is None else _key_mask(group, q.device)
    return _sdpa(q, k, v, options, mask=mask, causal=options.causal)


def _key_mask(group: _GroupIndices, device: torch.device) -> torch.Tensor:
    lengths = torch.tensor(group.lengths, device=device)
    return (torch.arange(group.width, device=device) < lengths[:, None])[:, None, None, :]


def _windowed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions, window: int
) -> torch.Tensor:
    """Blocks of ``window`` queries see the at most ``2 * window - 1`` keys up to their own last token."""
    width = q.shape[2]
    blocks = []
    for begin in range(0, width, window):
        end = min(begin + window, width)
        first_key = max(0, begin - window + 1)
        i = torch.arange(begin, end, device=q.device)[:, None]
        j = torch.arange(first_key, end, device=q.device)[None, :]
        mask = (i >= j) & (i - j < window)
        keys, values = k[:, :, first_key:end], v[:, :, first_key:end]
        blocks.append(_sdpa(q[:, :, begin:end], keys, values, options, mask=mask, causal=False))
    return torch.cat(blocks, dim=2)


def _sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: AttentionOptions,
    *,
    mask: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    value_width = v.shape[3]
    width = max(q.shape[3], value_width)  # the fused kernels take one width; zeros add nothing to a dot product
    q, k, v = (x if x.shape[3] == width else F.pad(x, (0, width - x.shape[3])) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=options.dropout,
        is_causal=causal,
        scale=options.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[..., :value_width]


def _objection(call: AttentionCall) -> str | None:
    for name in ("softcap", "sinks"):
        if getattr(call.options, name) is not None:
            return f"has no {name}: scaled_dot_product_attention does not know it"
    return None


BACKEND = Backend(attend=attend, objection=_objection)
