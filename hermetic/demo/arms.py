"""The four ways of laying out the same documents that the demo trains.

=================  ==========================================================================
padded             one document to a row, padded on the right: what packing has to reproduce
naive              documents end to end in each row, plain causal attention over all of it
positions_only     the same with positions that restart, and still no mask: worse than naive
sealed             packed, each document on its own
=================  ==========================================================================
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hermetic.batch import Boundaries
from hermetic.constants import IGNORE_INDEX
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
        columns = {
            "input_ids": ([batch.input_ids for batch in batches], 0),
            "labels": ([batch.labels for batch in batches], IGNORE_INDEX),
            "attention_mask": ([torch.ones_like(batch.input_ids) for batch in batches], 0),
        }
        if self.restart:
            columns["position_ids"] = ([batch.boundaries.position_ids for batch in batches], 0)
        return {
            name: torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=blank)
            for name, (parts, blank) in columns.items()
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train: its layout, and whether the model is sealed."""

    name: str
    collator: Collator
    sealed: bool
    packed: bool
    split: Callable[[torch.Tensor, Sequence[Row]], list[torch.Tensor]]
    """From the logits of a batch to those of each document, in order."""


def all_arms() -> tuple[Arm, ...]:
    """The four arms, the one that the others are compared with first."""
    return (
        Arm(name="padded", collator=PaddedCollator(), sealed=False, packed=False, split=_split_padded),
        Arm(name="naive", collator=NaiveCollator(restart=False), sealed=False, packed=True, split=_split_rows),
        Arm(name="positions_only", collator=NaiveCollator(restart=True), sealed=False, packed=True, split=_split_rows),
        Arm(name="sealed", collator=PackedCollator(), sealed=True, packed=True, split=_split_flat),
    )


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
