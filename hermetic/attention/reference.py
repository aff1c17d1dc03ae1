"""The definition: each document alone, in plain tensor algebra.

Algorithm: a loop over documents; scores, mask, softmax, values, as the textbook has them.
Guarantee: any dtype, causal or bidirectional, grouped-query heads, window, chunk, soft cap, sinks and
dropout, forward and backward. Half precision is computed in float32 and rounded once at the end.
Price: ``[H, L, L]`` scores for a document of ``L`` tokens, and a kernel launch per document and step.
"""

import torch

from hermetic.attention.backend import AttentionCall, Backend
from hermetic.attention.options import AttentionOptions


def attend(
    q_NHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend inside each of ``lengths`` consecutive documents; returns ``[N, H, V]`` in the query's dtype."""
    work_dtype = torch.promote_types(q_NHK.dtype, torch.float32)
    queries, keys, values = (x.to(work_dtype).split(lengths) for x in (q_NHK, k_NGK, v_NGV))
    documents = [_one_document(q, k, v, options) for q, k, v in zip(queries, keys, values, strict=True)]
    return torch.cat(documents).to(q_NHK.dtype)


def visible(length: int, options: AttentionOptions, device: torch.device) -> torch.Tensor:
    """``[L, L]`` booleans: may query ``i`` see key ``j``, both counted from the document's start.

    Causal, length 4, window 2::

        1 . . .
        1 1 . .
        . 1 1 .
        . . 1 1
    """
    i = torch.arange(length, device=device)[:, None]
    j = torch.arange(length, device=device)[None, :]
    return allowed(i, j, causal=options.causal, window=options.window, chunk=options.chunk)


def allowed(
    query: torch.Tensor, key: torch.Tensor, *, causal: bool, window: int | None, chunk: int | None
) -> torch.Tensor:
    """May the tokens at ``query`` see those at ``key``, both counted from the document's start; broadcasts."""
    seen = query >= key if causal else torch.ones_like(query >= key)
    if window is not None:
        seen = seen & (query - key < window)
    if chunk is not None:
        seen = seen & (query // chunk == key // chunk)
    return seen


def _one_document(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("ihk,jhk->hij", q, k) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores.masked_fill(~visible(q.shape[0], options, q.device), -torch.inf)
    weights = torch.nn.functional.dropout(_softmax(scores, options.sinks), options.dropout)
    return torch.einsum("hij,jhv->ihv", weights, v)


def _softmax(scores_hij: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return scores_hij.softmax(dim=-1)
    column = sinks.to(scores_hij.dtype)[:, None, None].expand(-1, scores_hij.shape[1], 1)
    return torch.cat([scores_hij, column], dim=-1).softmax(dim=-1)[..., :-1]


def _objection(_call: AttentionCall) -> None:
    """The definition serves every call."""


BACKEND = Backend(attend=attend, objection=_objection)
