"""PyTorch's scaled_dot_product_attention, one call per document or per group of documents.

Algorithm: ``layout`` decides by measured prices which documents share a call. A document alone is a slice of the
row, and so are neighbours of equal length; documents of similar length are brought together in a right-padded
batch. Under a causal mask a pad on the right is in nobody's past, so no mask is needed and the fast kernels apply;
bidirectional groups mask their pad keys. A pad repeats a token of its own document and takes and gives no gradient.
A chunk border ends a document as far as attention is concerned, so chunks simply become documents. A window that
binds is computed in blocks of queries against the few keys they can see, all whole blocks in one call. A sink is one
more token at the start of its document (see ``sinks``), which a window keeps in sight.
Guarantee: forward and backward, grouped-query heads, value heads of another width; a document's numbers
depend on the other documents' *lengths* at most, never on their content. ``[T, T]`` is never allocated.
Price: where documents are brought together, one copy of q, k, v and the output and at most 25 % padded slots; where a
window binds, k and v twice and masks of ``[window, 2 * window]``; with sinks, what ``sinks`` says.
On accelerators keys and values are repeated for all query heads where there is a mask or float32.
Where PyTorch has no fused kernel (dropout on the CPU) it makes ``[L, L]`` scores for a document of ``L`` tokens.
Does not do: soft cap, which PyTorch's function does not know (use ``reference``); scales that are not positive.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from numpy.typing import NDArray

from hermetic.attention.backend import AttentionCall, Backend, scale_objection
from hermetic.attention.edges import chunks
from hermetic.attention.layout import Group, Layout, layout_from_lengths, prices_on
from hermetic.attention.options import AttentionOptions
from hermetic.attention.sinks import scale_objection as sink_scale_objection
from hermetic.attention.sinks import with_sink_tokens, without_sink_tokens


def attend(
    q_NHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend inside each of ``lengths`` consecutive documents; returns ``[N, H, V]``."""
    documents = chunks(lengths, options.chunk)
    if options.sinks is None:
        return attend_in(_device_layout(documents, q_NHK), q_NHK, k_NGK, v_NGV, options)
    q, k, v, longer = with_sink_tokens(q_NHK, k_NGK, v_NGV, documents, sinks=options.sinks, scale=options.scale)
    return without_sink_tokens(attend_in(_device_layout(longer, q), q, k, v, options), documents)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLayout:
    """A ``Layout`` with its indices on the device."""

    groups: tuple[Group, ...]
    key_masks: tuple[torch.Tensor | None, ...]
    """For each group ``[rows, 1, 1, width]``, true on tokens; ``None`` where there are no pads."""
    tokens: torch.Tensor | None
    slots: torch.Tensor | None


def attend_in(
    layout: DeviceLayout,
    q_NHK: torch.Tensor,  # noqa: N803
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend in a given layout, one call per group; ``[N, H, V]``."""
    batches = zip(*(_lay_out(x, layout) for x in (q_NHK, k_NGK, v_NGV)), layout.key_masks, strict=True)
    return _take_back([_attend_group(q, k, v, key_mask, options) for q, k, v, key_mask in batches], layout)


def on_device(layout: Layout, device: torch.device) -> DeviceLayout:
    """Copy a layout's indices to a device."""

    def copy(array: NDArray[np.generic] | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device, copy=True)

    with torch.inference_mode(mode=False):  # autograd may save them for a later backward
        return DeviceLayout(
            groups=layout.groups,
            key_masks=tuple(copy(_key_mask(group)) for group in layout.groups),
            tokens=copy(layout.tokens),
            slots=copy(layout.slots),
        )


def _key_mask(group: Group) -> NDArray[np.bool_] | None:
    if not group.is_padded:
        return None
    return (np.arange(group.width) < np.array(group.lengths)[:, None])[:, None, None, :]


def _device_layout(lengths: tuple[int, ...], q: torch.Tensor) -> DeviceLayout:
    return _remembered_layout(lengths, q.device, q.shape[1] * q.shape[2])


@lru_cache(maxsize=8)
def _remembered_layout(lengths: tuple[int, ...], device: torch.device, channels: int) -> DeviceLayout:
    """The layout on a device, made once for all layers of a forward and its backward.

    A pure function of its value, so remembering it cannot go stale; the tensors are never written to.
    """
    return on_device(layout_from_lengths(lengths, prices_on(device.type, channels)), device)


def _lay_out(x: torch.Tensor, layout: DeviceLayout) -> list[torch.Tensor]:
    """``[N, H, K]`` to ``[rows, H, width, K]`` for each group; a document alone in its group costs one view."""
    if layout.tokens is not None:
        x = x.index_select(0, layout.tokens)
    sizes = [group.num_slots for group in layout.groups]
    pieces = x[None].split(sizes, dim=1) if len(sizes) > 1 else (x[None],)
    return [
        (piece if group.rows == 1 else piece[0].unflatten(0, (group.rows, group.width))).transpose(1, 2)
        for piece, group in zip(pieces, layout.groups, strict=True)
    ]


def _take_back(parts: list[torch.Tensor], layout: DeviceLayout) -> torch.Tensor:
    """``[rows, H, width, V]`` of each group to ``[N, H, V]``."""
    flat = [part.transpose(1, 2) if part.shape[0] == 1 else part.transpose(1, 2).flatten(0, 1)[None] for part in parts]
    out = (flat[0] if len(flat) == 1 else torch.cat(flat, dim=1))[0]
    return out if layout.slots is None else out.index_select(0, layout.slots)


def _attend_group(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_mask: torch.Tensor | None, options: AttentionOptions
) -> torch.Tensor:
    sinks = 0 if options.sinks is None else 1
    if options.window is not None and options.window < q.shape[2] - sinks:
        return _windowed(q, k, v, options, options.window)
    return _sdpa(q, k, v, options, mask=None if options.causal else key_mask, causal=options.causal)


def _windowed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions, window: int
) -> torch.Tensor:
    """Cut the queries into blocks of ``window``: a block sees keys of itself and the one before it only.

    Three calls: the first block, which is causal; all other whole blocks as one batch; what is left at the end.
    A sink is at the start of the document and joins the keys of every block.
    """
    sinks = 0 if options.sinks is None else 1
    blocks, left = divmod(q.shape[2] - sinks, window)
    first = sinks + window
    parts = [_sdpa(q[:, :, :first], k[:, :, :first], v[:, :, :first], options, mask=None, causal=True)]
    if blocks > 1:
        parts.append(_whole_blocks(q, k, v, options, window))
    if left:
        keys, values = (torch.cat([x[:, :, :sinks], x[:, :, 1 - window - left :]], dim=2) for x in (k, v))
        mask = _band(left, window - 1 + left, window, sinks, q.device)
        parts.append(_sdpa(q[:, :, -left:], keys, values, options, mask=mask, causal=False))
    return torch.cat(parts, dim=2)


def _whole_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions, window: int
) -> torch.Tensor:
    """All whole blocks but the first, as a batch: ``[rows, H, (blocks - 1) * window, V]``."""
    sinks = 0 if options.sinks is None else 1
    blocks = (q.shape[2] - sinks) // window

    def in_blocks(x: torch.Tensor) -> torch.Tensor:  # [rows, blocks, H, window, K]
        cut: torch.Tensor = x[:, :, sinks : sinks + blocks * window].unflatten(2, (blocks, window))
        return cut.transpose(1, 2)

    def seen(x: torch.Tensor) -> torch.Tensor:
        sink = x[:, None, :, :sinks].expand(-1, blocks - 1, -1, -1, -1)
        cut = in_blocks(x)
        return torch.cat([sink, cut[:, :-1], cut[:, 1:]], dim=3).flatten(0, 1)

    mask = _band(window, 2 * window, window, sinks, q.device)
    out = _sdpa(in_blocks(q)[:, 1:].flatten(0, 1), seen(k), seen(v), options, mask=mask, causal=False)
    by_rows: torch.Tensor = out.unflatten(0, (-1, blocks - 1))
    return by_rows.transpose(1, 2).flatten(2, 3)


def _band(queries: int, keys: int, window: int, sinks: int, device: torch.device) -> torch.Tensor:
    """``[queries, sinks + keys]``: who sees whom where the last query is the last key, with columns for the sinks.

    Two queries, four keys, window 2, one sink::

        1 . 1 1 .
        1 . . 1 1
    """
    i = torch.arange(queries, device=device)[:, None] + (keys - queries)
    j = torch.arange(keys, device=device)[None, :]
    return F.pad((j <= i) & (i - j < window), (sinks, 0), value=True)


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
    width = _width(q, v)
    q, k, v = (x if x.shape[3] == width else F.pad(x, (0, width - x.shape[3])) for x in (q, k, v))
    if not _kernel_takes_groups(q, mask):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
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


def _width(q: torch.Tensor, v: torch.Tensor) -> int:
    """The one width that a fused kernel takes, on accelerators a multiple of 8; zeros add nothing to a dot product."""
    width = max(q.shape[3], v.shape[3])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def _kernel_takes_groups(q: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether PyTorch's fused kernel for this call knows that query heads share keys.

    On accelerators only the one in half precision without a mask does; otherwise ``enable_gqa`` would make the scores.
    """
    return q.device.type == "cpu" or (mask is None and q.dtype in {torch.float16, torch.bfloat16})


def _objection(call: AttentionCall) -> str | None:
    if call.options.softcap is not None:
        return "has no softcap: scaled_dot_product_attention does not know it"
    return scale_objection(call.options) or sink_scale_objection(call.options)


BACKEND = Backend(attend=attend, objection=_objection)
