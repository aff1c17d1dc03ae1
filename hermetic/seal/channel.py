"""How boundaries travel through a model's forward, and through its recomputation.

Two steps. The door (a forward pre-hook) reads the boundaries from the caller's arguments and keeps them in a
context variable for the duration of that forward: the mask interface, which the model calls once per kind of
layer and which gets none of those arguments, finds them there. What the mask interface returns is a
``Ticket`` encoded as a small tensor; the model hands it to each attention layer as its ``attention_mask``.

Guarantee: an attention layer decides by its own argument alone. So gradient checkpointing, which runs layers
again in the backward pass with the arguments they had, gets the same boundaries again, whatever other batch
has gone through the model in between; and an exception in the forward leaves nothing behind.
Price: ``D + 5`` integers on the host per kind of layer and forward, no device memory.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from torch import nn

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
class PackedForward:
    """The documents of one forward over packed rows."""

    lengths: tuple[int, ...]
    num_rows: int
    num_slots: int
    """Tokens per row, padding included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenForward:
    """One forward of a sealed model that has begun and not ended."""

    owner: weakref.ref[nn.Module]
    """The module whose forward it is; the transformers models inside it leave it alone."""
    packed: PackedForward | None
    """``None``: one document per row, or generation. The model runs as before it was sealed."""
    argument: weakref.ref[torch.Tensor]
    """A tensor that only the arguments of this call hold: when it is gone, so is the call."""
    outer: "OpenForward | None"
    """The forward inside which this one began."""

    def holds(self, module: nn.Module) -> bool:
        """Whether ``module`` is inside the owner."""
        owner = self.owner()
        return owner is not None and owner is not module and any(child is module for child in owner.modules())


_OPEN: ContextVar[OpenForward | None] = ContextVar("hermetic_open_forward", default=None)


def open_forward() -> OpenForward | None:
    """The innermost forward of a sealed model that this thread is in.

    PyTorch ends no hooks after an interrupt (KeyboardInterrupt), which leaves its forward open: it is passed
    over once its arguments are gone.
    """
    found = _OPEN.get()
    while found is not None and found.argument() is None:
        found = found.outer
    return found


def packed_forward() -> PackedForward | None:
    """The documents of the forward that this thread is in; ``None`` outside, and for rows of one document."""
    found = open_forward()
    return None if found is None else found.packed


def enter(owner: nn.Module, packed: PackedForward | None, argument: torch.Tensor) -> None:
    """Open the forward of ``owner``; one of its own that is open was interrupted, and ends here."""
    outer = open_forward()
    while outer is not None and outer.owner() is owner:
        outer = outer.outer
    _OPEN.set(OpenForward(owner=weakref.ref(owner), packed=packed, argument=weakref.ref(argument), outer=outer))


def leave(owner: nn.Module) -> None:
    """End the forward of ``owner``, if it is the one that is open."""
    found = open_forward()
    if found is not None and found.owner() is owner:
        _OPEN.set(found.outer)


_NOBODY = nn.Module()


@contextmanager
def reopened(packed: PackedForward | None) -> Iterator[None]:
    """Open a forward again for the duration: in a recomputation, or with ``None`` where documents lie in rows."""
    argument = torch.empty(0)
    frame = OpenForward(owner=weakref.ref(_NOBODY), packed=packed, argument=weakref.ref(argument), outer=open_forward())
    token = _OPEN.set(frame)
    try:
        yield
    finally:
        _OPEN.reset(token)


WITNESS: ContextVar[dict[int, Ticket] | None] = ContextVar("hermetic_witness", default=None)
"""Where the check at sealing collects, by ``id``, the attention modules that take part and their tickets."""
