"""PyTorch's own variable-length attention: one kernel call for all documents, and nothing to install.

Algorithm: ``torch.nn.attention.varlen.varlen_attn`` over ``cu_seqlens``. Guarantee: forward and backward,
grouped-query heads, windows, chunks, value heads of another width, sinks without a window; no document's numbers
depend on another document. Price: what is said in ``varlen``; a GPU and half precision.
Does not do: soft cap and dropout, which PyTorch's function does not know.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from hermetic.attention import varlen
from hermetic.attention.backend import AttentionCall, Backend
from hermetic.attention.edges import Edges
from hermetic.attention.options import AttentionOptions
from hermetic.errors import BackendError

_NEEDED = ("scale", "window_size", "enable_gqa")


def attend(
    q_NHK: torch.Tensor,  # noqa: N803 - shape letters are the house style
    k_NGK: torch.Tensor,  # noqa: N803
    v_NGV: torch.Tensor,  # noqa: N803
    lengths: tuple[int, ...],
    options: AttentionOptions,
) -> torch.Tensor:
    """Attend inside each of ``lengths`` consecutive documents; returns ``[N, H, V]``."""
    function = _function()
    if isinstance(function, str):
        raise BackendError(f"backend 'torch_varlen' {function}")

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, edges: Edges) -> torch.Tensor:
        out: torch.Tensor = function(
            q,
            k,
            v,
            edges.cu_seqlens,
            edges.cu_seqlens,
            edges.max_seqlen,
            edges.max_seqlen,
            scale=options.scale,
            window_size=_window_size(options),
            enable_gqa=q.shape[1] != k.shape[1],
            **_unsplit(),
        )
        return out

    return varlen.attend(kernel, (q_NHK, k_NGK, v_NGV), lengths, options, sink_tokens=True)


def _window_size(options: AttentionOptions) -> tuple[int, int]:
    """Keys before and after a query that it sees; -1 is no limit."""
    if not options.causal:
        return -1, -1
    return (-1 if options.window is None else options.window - 1), 0


def _unsplit() -> dict[str, int]:
    """Ask kernels that may split a document's keys, and decide it by the whole batch, for one split.

    The kernel that comes with PyTorch splits only while decoding, and some releases refuse to be asked.
    """
    from torch.nn.attention import current_flash_attention_impl

    return {} if current_flash_attention_impl() is None else {"num_splits": 1}


@lru_cache(maxsize=1)
def _function() -> Callable[..., Any] | str:
    """PyTorch's function, or why this PyTorch has none that serves, as the rest of a sentence."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        return f"needs a newer PyTorch than {torch.__version__}: {error}"
    missing = [name for name in _NEEDED if name not in inspect.signature(varlen_attn).parameters]
    if missing:
        return f"needs a newer PyTorch than {torch.__version__}, whose varlen_attn has no {' and no '.join(missing)}"
    return varlen_attn


def _objection(call: AttentionCall) -> str | None:
    reason = varlen.kind_objection(call)
    if reason is not None:
        return reason
    function = _function()
    if isinstance(function, str):
        return function
    if not torch.backends.cuda.is_flash_attention_available():
        return "needs a PyTorch that was built with flash attention"
    for name, asked in (("softcap", call.options.softcap is not None), ("dropout", call.options.dropout > 0.0)):
        if asked:
            return f"has no {name}: varlen_attn does not know it"
    return varlen.device_objection(8, None) or varlen.size_objection(call, sink_tokens=True)


BACKEND = Backend(attend=attend, objection=_objection)
