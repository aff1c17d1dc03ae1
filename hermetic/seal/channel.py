"""How boundaries travel through a model's forward, and through its recomputation.

Two steps. The door (a forward pre-hook) reads the boundaries from the caller's arguments and keeps them in a
context variable for the duration of that forward: the mask interface, which the model calls once per kind of
layer and which gets none of those arguments, finds them there. What the mask interface returns is a
``Ticket`` encoded as a small tensor; the model hands it to each attention layer as its ``attention_mask``.

Guarantee: an attention layer decides by its own argument alone. So gradient checkpointing, which runs layers
again in the backward pass with the arguments they had, gets the same boundaries again, whatever other batch
has gone through the model in between; and an exception in the forward leaves nothing behind.
Price: ``D + 6`` integers on the host per kind of layer; no device memory, no synchronization.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

_MAGIC = 0x48_45_52_4D
"""Marks a tensor as a ticket ("HERM"); no mask that a model makes holds it as its first integer."""

_HEADER = 5

_P = ParamSpec("_P")
_R = TypeVar("_R")


def outside_graphs(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a function out of compiled graphs: one would remember the boundaries of the batch it was made from."""
    eager: Callable[_P, _R] = torch.compiler.disable(function)
    return eager


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """What an attention layer has to know about the rows it gets."""

    lengths: tuple[int, ...]
    """Tokens of each document over all rows, one stream; a padded tail counts as a document."""
    causal: bool
    window: int | None
    chunk: int | None

    def encode(self) -> torch.Tensor:
        """``[1, D + 5, 1, 1]`` int64 on the host.

        The numbers lie along the heads axis, because models slice masks along the token axes.
        """
        header = [_MAGIC, len(self.lengths), int(self.causal), self.window or 0, self.chunk or 0]
        return torch.tensor([*header, *self.lengths], dtype=torch.int64).view(1, -1, 1, 1)

    @staticmethod
    def decode(mask: object) -> "Ticket | None":
        """The ticket that ``mask`` encodes, or ``None`` when it is any other mask."""
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.int64 or mask.ndim != 4:
            return None
        numbers = mask.flatten().tolist()
        if len(numbers) < _HEADER or numbers[0] != _MAGIC or numbers[1] != len(numbers) - _HEADER:
            return None
        return Ticket(
            lengths=tuple(numbers[_HEADER:]),
            causal=bool(numbers[2]),
            window=numbers[3] or None,
            chunk=numbers[4] or None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveForward:
    """One forward of a sealed model over packed rows."""

    owner: int
    """``id`` of the module whose forward this is; the others inside it leave it alone."""
    lengths: tuple[int, ...]
    num_rows: int
    num_slots: int
    """Tokens per row, padding included."""


ACTIVE: ContextVar[ActiveForward | None] = ContextVar("hermetic_active_forward", default=None)
"""The packed forward that this thread is in; ``None`` outside, and for unpacked rows and generation."""

WITNESS: ContextVar[dict[int, Ticket] | None] = ContextVar("hermetic_witness", default=None)
"""Where the check at sealing collects, by ``id``, the attention modules that take part and their tickets."""
