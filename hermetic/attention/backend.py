"""The seam between ``packed_attention`` and the kernels behind it.

A backend is a function that attends and a function that says, before anything runs, why it cannot serve a
call. The objection is asked of the call itself, not read from a table of features, so that "which backend
has it" is answered for this machine, this dtype and these shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hermetic.attention.options import AttentionOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """What a backend needs to know of a call in order to say whether it can serve it."""

    device_type: str
    """``"cpu"``, ``"cuda"``, ..."""
    dtype: torch.dtype
    """Of queries, keys and values."""
    heads: int
    """Query heads ``H``."""
    key_heads: int
    """Key and value heads ``G``."""
    key_width: int
    """Width ``K`` of a query or key head."""
    value_width: int
    """Width ``V`` of a value head."""
    num_slots: int
    """Tokens with the padded tail."""
    with_gradient: bool
    """A backward pass may follow."""
    options: AttentionOptions


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, ...], AttentionOptions], torch.Tensor]
"""``(q [N, H, K], k [N, G, K], v [N, G, V], document lengths, options) -> [N, H, V]``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One way to attend inside documents."""

    attend: Attend
    objection: Callable[[AttentionCall], str | None]
    """Why this call cannot be served, as the rest of a sentence that begins with the backend's name; or None."""
    takes_tail: bool = False
    """``attend`` gets the padded tail too and returns zeros there; otherwise it never sees one."""


def call_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttentionOptions) -> AttentionCall:
    """The call that these tensors, ``[T, heads, width]``, and options make."""
    inputs = [q, k, v] if options.sinks is None else [q, k, v, options.sinks]
    return AttentionCall(
        device_type=q.device.type,
        dtype=q.dtype,
        heads=q.shape[1],
        key_heads=k.shape[1],
        key_width=q.shape[2],
        value_width=v.shape[2],
        num_slots=q.shape[0],
        with_gradient=torch.is_grad_enabled() and any(x.requires_grad for x in inputs),
        options=options,
    )


def scale_objection(options: AttentionOptions) -> str | None:
    """Why a fused kernel cannot have this scale, as the rest of a sentence; or None.

    It sets scores that are masked to minus infinity before it scales them, and takes the largest before it does.
    """
    if options.scale >= torch.finfo(torch.float32).tiny:
        return None
    return f"has no scale {options.scale}: its kernels mask scores before they scale them, so it has to be positive"
