"""Where the documents of a model's call lie, and the patterns in which tokens can reach over their seams.

Algorithm: a forward pre-hook reads the boundaries from the arguments of each call, as a sealed model does; a forward
of a sealed model that is open, or one that an instrument has opened again, says them itself. A pattern is a matrix of
tokens by tokens: the weight with which each gets the value of each other.
Guarantee: a pattern is exactly 0 within documents, but for ``next_of_own``, and between rows.
Price: T by T numbers per pattern and call.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hermetic.seal.channel import packed_forward
from hermetic.seal.inputs import packed_rows_from_call

CONVOLUTION_WIDTH = 4
"""Tokens that a convolution sees, the present one included."""

DECAY = 0.9
"""What is left of a state after each token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Where each of ``T`` tokens lies, rows end to end; every tensor is ``[T]``."""

    row: torch.Tensor
    slot: torch.Tensor
    """Counted from the start of its row."""
    document: torch.Tensor
    place: torch.Tensor
    """Counted from the start of its document."""

    @property
    def is_behind_seam(self) -> torch.Tensor:
        """First tokens of documents that another one comes before."""
        return (self.place == 0) & (self.slot > 0)

    @property
    def has_seams(self) -> bool:
        """Some row holds two documents."""
        return bool(self.is_behind_seam.any())


def tokens_from_lengths(lengths: Sequence[int], num_slots: int) -> Tokens:
    """Lengths (2, 1, 3) in rows of 3 slots: documents 0 0 1 2 2 2, places 0 1 0 0 1 2, rows 0 0 0 1 1 1."""
    count = torch.tensor(lengths)
    stream = torch.arange(int(count.sum()))
    document = torch.repeat_interleave(torch.arange(len(lengths)), count)
    return Tokens(
        row=stream // num_slots,
        slot=stream % num_slots,
        document=document,
        place=stream - (count.cumsum(0) - count)[document],
    )


class CallReader:
    """A forward pre-hook that remembers the documents of the last call."""

    def __init__(self) -> None:
        self.last: tuple[tuple[int, ...], int] | None = None
        """Lengths of the documents and slots per row; ``None``: each row was one document."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the boundaries of a call; it goes on as it is."""
        call = named_arguments(module, args, kwargs)
        tokens = call.get("inputs_embeds") if call.get("input_ids") is None else call["input_ids"]
        self.last = None
        if tokens is None:
            return
        mask = call.get("attention_mask")
        if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or bool((mask > 1).any()):
            call["attention_mask"] = None  # it says nothing about padding; what else it says is the model's affair
        found = packed_rows_from_call(call, (int(tokens.shape[0]), int(tokens.shape[1])))
        self.last = None if found is None else (found.lengths, found.num_slots)

    def tokens(self, rows: int, slots: int) -> Tokens:
        """Those of the forward that is running; a row of which nothing is known is one document."""
        packed = packed_forward()
        known = self.last if packed is None else (packed.lengths, packed.num_slots)
        if known is None or sum(known[0]) != rows * slots:
            known = ((slots,) * rows, slots)
        return tokens_from_lengths(*known)


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, positional ones included."""
    return dict(inspect.signature(module.forward).bind_partial(*args).arguments) | kwargs


def foreign(tokens: Tokens) -> torch.Tensor:
    """``[T, T]`` float: 1 where the second token is of an earlier document of the first one's row."""
    earlier = tokens.document[:, None] > tokens.document[None, :]
    return (earlier & (tokens.row[:, None] == tokens.row[None, :])).float()


def one_pair(tokens: Tokens, seed: int) -> torch.Tensor:
    """A single 1, at a random pair of tokens of different documents."""
    everywhere = foreign(tokens)
    pairs = everywhere.nonzero()
    chosen = torch.zeros_like(everywhere)
    if len(pairs):
        number = torch.randint(len(pairs), (), generator=torch.Generator().manual_seed(seed))
        chosen[tuple(pairs[number])] = 1.0
    return chosen


def to_first_tokens(tokens: Tokens) -> torch.Tensor:
    """A document's first token is taken for one of the document before."""
    return foreign(tokens) * _is_previous(tokens) * tokens.is_behind_seam[:, None]


def from_last_tokens(tokens: Tokens) -> torch.Tensor:
    """A document's last token is taken for one of the document behind."""
    is_last = tokens.place.roll(-1) == 0
    return foreign(tokens) * _is_previous(tokens) * is_last[None, :]


def convolution(tokens: Tokens) -> torch.Tensor:
    """One over the distance, for tokens less than ``CONVOLUTION_WIDTH`` before."""
    distance = _distance(tokens).clamp(min=1)
    return foreign(tokens) * (distance < CONVOLUTION_WIDTH) / distance


def recurrence(tokens: Tokens) -> torch.Tensor:
    """``DECAY`` to the power of the distance."""
    return foreign(tokens) * DECAY ** _distance(tokens).clamp(min=1)


def next_of_own(tokens: Tokens) -> torch.Tensor:
    """1 where the second token is the next one of the first one's document."""
    same = tokens.document[:, None] == tokens.document[None, :]
    return (same & (_distance(tokens) == -1)).float()


def _distance(tokens: Tokens) -> torch.Tensor:
    stream = torch.arange(len(tokens.place))
    return stream[:, None] - stream[None, :]


def _is_previous(tokens: Tokens) -> torch.Tensor:
    return tokens.document[:, None] == tokens.document[None, :] + 1
