"""The five ways of laying out the same documents that are compared.

=================  ==========================================================================
padded             one document to a row, padded on the right: what packing has to reproduce
naive              documents end to end in each row, plain causal attention over all of it
positions_only     the same with positions that restart, and still no mask
mask_only          the same with a block-diagonal mask, and positions that run on
sealed             packed, each document on its own
=================  ==========================================================================

Algorithm: an arm is a collator, and the cut of what comes out back into documents. The mask of ``mask_only`` is added
to the scores, ``[B, 1, L, L]`` with 0 where a token may look and the dtype's minimum where not; slots behind the last
document look at themselves alone, so that no softmax is over nothing.
Guarantee: all arms hold the same documents in the same order, and supervise the same tokens.
Price: the mask of ``mask_only`` takes ``B x L x L`` numbers; nothing else is larger than its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from hermetic.batch import Boundaries, PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import TrainError
from hermetic.integrations.transformers import PackedCollator, PaddedCollator, Row, collate_rows

Collator = Callable[[Sequence[Row]], dict[str, Any]]


class NaiveCollator:
    """Rows as naive packing gives them to a model: ``[B, longest]`` tokens and a mask of ones.

    With ``restart`` the positions start anew with each document, which leaves the mask as it is.
    """

    def __init__(self, *, restart: bool) -> None:
        self.restart = restart

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """``input_ids``, ``labels``, ``attention_mask`` and perhaps ``position_ids``."""
        batches = [collate_rows([row]) for row in rows]
        ones = [torch.ones_like(batch.input_ids) for batch in batches]
        inputs = _tokens(batches) | {"attention_mask": _stacked(ones, 0)}
        if self.restart:
            inputs["position_ids"] = _stacked([batch.boundaries.position_ids for batch in batches], 0)
        return inputs


class MaskCollator:
    """Naive rows under a mask that keeps documents apart; positions run on over the whole row."""

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """``input_ids``, ``labels``, ``position_ids`` and a float32 ``attention_mask`` of ``[B, 1, longest, longest]``.

        Example:
            Documents of 2 and 1 tokens: 0 where the token of this row may look at that of the column.

            >>> row = [{"input_ids": [5, 6], "labels": [-100, 6]}, {"input_ids": [7], "labels": [-100]}]
            >>> (MaskCollator()([row])["attention_mask"][0, 0] == 0).int()
            tensor([[1, 0, 0],
                    [1, 1, 0],
                    [0, 0, 1]], dtype=torch.int32)
        """
        batches = [collate_rows([row]) for row in rows]
        inputs = _tokens(batches)
        count, longest = inputs["input_ids"].shape
        owner = _stacked([batch.boundaries.document_ids for batch in batches], -1)
        slots = torch.arange(longest)
        apart = (owner[:, :, None] != owner[:, None, :]) | (slots[None, :] > slots[:, None])
        alone = (owner == -1)[:, :, None] & (slots[None, :] != slots[:, None])
        hidden = torch.finfo(torch.float32).min
        mask = torch.zeros(count, longest, longest).masked_fill(apart | alone, hidden)
        return inputs | {"attention_mask": mask[:, None], "position_ids": slots.expand(count, longest).contiguous()}


def _tokens(batches: Sequence[PackedBatch]) -> dict[str, Any]:
    return {
        "input_ids": _stacked([batch.input_ids for batch in batches], 0),
        "labels": _stacked([batch.labels for batch in batches], IGNORE_INDEX),
    }


def _stacked(parts: list[torch.Tensor], blank: int) -> torch.Tensor:
    """``[B, longest]``, filled up on the right."""
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=blank)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train: its layout, and whether the model is sealed."""

    name: str
    about: str
    """What its documents are, after \"documents that are\"."""
    collator: Collator
    sealed: bool
    packed: bool
    """Whether a row holds several documents."""
    apart: bool
    """Whether its documents are meant to be kept from each other; then it trains nothing on a leak."""
    split: Callable[[torch.Tensor, Sequence[Row]], list[torch.Tensor]]
    """From the logits of a batch to those of each document, in order."""


ARMS: Final = ("padded", "naive", "positions_only", "mask_only", "sealed")
"""The names of the arms; the first is the one that the others are compared with."""


def all_arms(*, pad_token_id: int = 0) -> tuple[Arm, ...]:
    """The five arms, in the order of ``ARMS``; ``pad_token_id`` fills the slots of the padded one."""
    padded = PaddedCollator(pad_token_id=pad_token_id)
    return (
        Arm(
            name="padded",
            about="padded",
            collator=padded,
            sealed=False,
            packed=False,
            apart=True,
            split=_split_padded,
        ),
        Arm(
            name="naive",
            about="packed naively",
            collator=NaiveCollator(restart=False),
            sealed=False,
            packed=True,
            apart=False,
            split=_split_rows,
        ),
        Arm(
            name="positions_only",
            about="packed with positions that restart",
            collator=NaiveCollator(restart=True),
            sealed=False,
            packed=True,
            apart=False,
            split=_split_rows,
        ),
        Arm(
            name="mask_only",
            about="packed under a mask",
            collator=MaskCollator(),
            sealed=False,
            packed=True,
            apart=True,
            split=_split_rows,
        ),
        Arm(
            name="sealed",
            about="packed and sealed",
            collator=PackedCollator(pad_token_id=pad_token_id),
            sealed=True,
            packed=True,
            apart=True,
            split=_split_flat,
        ),
    )


def arms_by_name(names: Sequence[str], *, pad_token_id: int = 0) -> tuple[Arm, ...]:
    """The arms of these names, in the order of ``ARMS``.

    Raises:
        TrainError: a name is unknown, or none was given.
    """
    unknown = [name for name in names if name not in ARMS]
    if unknown or not names:
        offender = f"arm {unknown[0]!r} is unknown" if unknown else "no arm was given"
        raise TrainError(f"{offender}; expected some of {', '.join(ARMS)}")
    return tuple(arm for arm in all_arms(pad_token_id=pad_token_id) if arm.name in names)


def forward_of(arm: Arm, network: nn.Module) -> Callable[[PackedBatch], torch.Tensor]:
    """A function from a batch of documents to ``[1, T, V]`` logits: the call that this arm trains with."""

    def forward(batch: PackedBatch) -> torch.Tensor:
        here = batch.to("cpu")
        columns = (here.unpack(values) for values in (here.input_ids, here.labels))
        row = [{"input_ids": ids, "labels": labels} for ids, labels in zip(*columns, strict=True)]
        return logits_and_labels(arm, network, [row])[0]

    forward.__qualname__ = f"{type(network).__name__} {arm.about}"  # how a report calls it
    return forward


def logits_and_labels(arm: Arm, network: nn.Module, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """``[B, S, V]`` logits and ``[B, S]`` labels of rows that are laid out as this arm trains on them."""
    device = next(network.parameters()).device
    inputs = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in arm.collator(rows).items()
    }
    labels: torch.Tensor = inputs.pop("labels")
    logits: torch.Tensor = network(**inputs | {"use_cache": False}).logits
    return logits, labels


def _lengths(row: Row) -> list[int]:
    return list(collate_rows([row]).boundaries.document_lengths)


def _split_padded(logits: torch.Tensor, rows: Sequence[Row]) -> list[torch.Tensor]:
    lengths = [length for row in rows for length in _lengths(row)]
    return [document[:length] for document, length in zip(logits, lengths, strict=True)]


def _split_rows(logits: torch.Tensor, rows: Sequence[Row]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for row_logits, row in zip(logits, rows, strict=True):
        lengths = _lengths(row)
        found += row_logits[: sum(lengths)].split(lengths)
    return found


def _split_flat(logits: torch.Tensor, rows: Sequence[Row]) -> list[torch.Tensor]:
    boundaries = Boundaries.from_lengths([length for row in rows for length in _lengths(row)])
    return list(logits[0].split(list(boundaries.document_lengths)))
