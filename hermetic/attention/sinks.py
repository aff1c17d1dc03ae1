"""Attention sinks for kernels that do not know them: one more token at the start of each document.

A sink is a learned logit per query head that takes softmax weight and carries no value. A token whose key
answers every query with that very logit and whose value is zero does the same.

Algorithm: queries and keys grow by a few columns. Query head ``h = g * r + j``, the ``j``-th of the ``r`` heads
that share key head ``g``, holds a constant in column ``j``; ordinary keys hold zeros there; the sink key of
group ``g`` holds zeros in the old columns and the logit of head ``h``, divided by the constant and by ``scale``,
in column ``j``. Half precision gets a second column per head for what rounding took from the first. The
constant is the power of two that brings ``scale`` to between 1 and 2, so that nothing over- or underflows.
Guarantee: exact for causal and for bidirectional documents (chunks count as documents) and any kernel that takes
a softmax of scaled dot products. All is made of differentiable tensor operations, so q, k, v and the sinks get
their gradients without further work; those of the sinks are summed over documents in float32.
Price: one copy of q, k and v, a token per document, and ``r`` (half precision: ``2 * r``) columns of width.
Does not do: a window, which leaves the first token behind; a soft cap, which the sink must not pass through.
"""

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses

from hermetic.attention.options import AttentionOptions

SMALLEST_SCALE = 2.0**-14
"""Below it the constant would leave the range of float16."""


def extra_width(heads: int, key_heads: int, dtype: torch.dtype) -> int:
    """Columns that ``with_sink_tokens`` adds to queries and keys.

    Example:
        >>> extra_width(8, 2, torch.float32), extra_width(8, 2, torch.bfloat16)
        (4, 8)
    """
    return heads // key_heads * _columns_per_head(dtype)


def with_sink_tokens(
    q_NHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    *,
    sinks: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """Put a token that acts as the sink at the start of each document that has tokens.

    Args:
        q_NHK: ``[N, H, K]`` queries.
        k_NGK: ``[N, G, K]`` keys.
        v_NGV: ``[N, G, V]`` values.
        lengths: tokens of each document; they sum to ``N``.
        sinks: ``[H]`` logits.
        scale: factor on the dot products, at least ``SMALLEST_SCALE`` in magnitude; the kernel must be told it,
            for the width it would derive it from has changed.

    Returns:
        q ``[N + D, H, K + extra_width]``, k ``[N + D, G, K + extra_width]``, v ``[N + D, G, V]`` and the lengths
        with these tokens, for ``D`` documents that are not empty.

    Example:
        >>> x = torch.ones(5, 1, 1)
        >>> q, k, v, lengths = with_sink_tokens(x, x, x, (3, 0, 2), sinks=torch.tensor([4.0]), scale=2.0)
        >>> lengths, k[:, 0].tolist()
        ((4, 0, 3), [[0.0, 4.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 4.0], [1.0, 0.0], [1.0, 0.0]])
        >>> q[1, 0].tolist()
        [1.0, 0.5]
    """
    order, _ = _indices(lengths, q_NHK.device)
    documents = len(order) - len(q_NHK)
    columns = extra_width(q_NHK.shape[1], k_NGK.shape[1], q_NHK.dtype)
    constant = _constant(scale)
    marks = _marks(q_NHK.shape[1], columns, constant, q_NHK).expand(len(q_NHK), -1, -1)
    sink_keys = _sink_keys(sinks, k_NGK, scale * constant, documents)
    q = _insert(torch.cat([q_NHK, marks], dim=-1), None, order)
    k = _insert(F.pad(k_NGK, (0, columns)), sink_keys, order)
    return q, k, _insert(v_NGV, None, order), tuple(length + (length > 0) for length in lengths)


def without_sink_tokens(out_NHV: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:  # noqa: N803 - shape letters
    """Take the outputs of the sink tokens away: ``[N + D, H, V]`` to ``[N, H, V]``.

    Args:
        out_NHV: what the kernel returned for the tensors of ``with_sink_tokens``.
        lengths: the documents' lengths *without* their sink tokens.

    Example:
        >>> without_sink_tokens(torch.arange(7.0).view(7, 1, 1), (3, 0, 2)).flatten().tolist()
        [1.0, 2.0, 3.0, 5.0, 6.0]
    """
    return out_NHV.index_select(0, _indices(lengths, out_NHV.device)[1])


def objection(options: AttentionOptions) -> str | None:
    """Why a sink token cannot stand in for the sinks of this call, as the rest of a sentence; or None."""
    if options.sinks is None:
        return None
    if options.window is not None:
        return "has no sinks together with a window: its sink is each document's first token, which a window loses"
    if options.softcap is not None:
        return "has no sinks together with a softcap: its sink is a token, whose logit would be capped too"
    return scale_objection(options)


def scale_objection(options: AttentionOptions) -> str | None:
    """Why no key can answer with the sinks' logits under this scale, as the rest of a sentence; or None."""
    if options.sinks is None or abs(options.scale) >= SMALLEST_SCALE:
        return None
    return f"has no sinks with scale {options.scale}: they need a scale of at least {SMALLEST_SCALE} in magnitude"


def _columns_per_head(dtype: torch.dtype) -> int:
    return 2 if torch.finfo(dtype).bits < 32 else 1


def _constant(scale: float) -> float:
    """The power of two that brings the scale's magnitude to between 1 and 2, as far as float16 has it."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, max(-14, min(14, 1 - exponent)))


def _marks(heads: int, columns: int, constant: float, like: torch.Tensor) -> torch.Tensor:
    """``[H, columns]``: head ``g * r + j`` holds the constant in its own columns, ``j`` and ``j + r``.

    Four heads in two groups, half precision::

        c . c .
        . c . c
        c . c .
        . c . c
    """
    per_group = columns // _columns_per_head(like.dtype)
    own = torch.arange(heads, device=like.device)[:, None] % per_group
    return (torch.arange(columns, device=like.device)[None, :] % per_group == own).to(like.dtype) * constant


def _sink_keys(sinks: torch.Tensor, k_NGK: torch.Tensor, factor: float, documents: int) -> torch.Tensor:  # noqa: N803
    """``[D, G, K + columns]``: zeros, then the logits over ``factor``, then what rounding took from them."""
    work_dtype = torch.promote_types(k_NGK.dtype, torch.float32)
    lowest = torch.finfo(k_NGK.dtype).min / 4  # a sink of -inf is none; as a key it would make 0 * inf
    logits = (sinks.to(work_dtype) / factor).clamp(min=lowest)
    logits = logits.view(1, k_NGK.shape[1], -1).expand(documents, -1, -1)
    parts = [logits.to(k_NGK.dtype)]
    if _columns_per_head(k_NGK.dtype) == 2:
        parts.append((logits - parts[0]).detach().to(k_NGK.dtype))  # the whole gradient flows through the first
    return torch.cat([k_NGK.new_zeros(documents, *k_NGK.shape[1:]), *parts], dim=-1)


def _insert(x: torch.Tensor, rows: torch.Tensor | None, order: torch.Tensor) -> torch.Tensor:
    """One row, or zeros, before each document's tokens."""
    if rows is None:
        rows = x.new_zeros(len(order) - len(x), *x.shape[1:])
    return torch.cat([x, rows]).index_select(0, order)


@lru_cache(maxsize=8)
def _indices(lengths: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of ``[tokens, sinks]`` each new slot takes, and the new slot of each token.

    Lengths 3, 0, 2: slots take 5 0 1 2 6 3 4; tokens are in slots 1 2 3 5 6.
    A pure function of its value, so remembering it cannot go stale; the tensors are never written to.
    """
    sizes = np.array([length for length in lengths if length > 0], dtype=np.int64)
    tokens, sinks = np.arange(sizes.sum()), np.arange(len(sizes))
    slots = tokens + np.repeat(sinks, sizes) + 1
    order = np.empty(len(tokens) + len(sinks), dtype=np.int64)
    order[slots] = tokens
    order[np.cumsum(sizes) - sizes + sinks] = len(tokens) + sinks
    with torch.inference_mode(mode=False):  # autograd may save them for a later backward
        return torch.from_numpy(order).to(device, copy=True), torch.from_numpy(slots).to(device, copy=True)
