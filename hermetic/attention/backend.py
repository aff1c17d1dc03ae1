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
