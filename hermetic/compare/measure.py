"""What an arm is measured by: its first batch before training, and the losses of a trained model.

Algorithm: logits and the gradient of the loss on the first batch, in the arm's own layout, are held against those of
the padded layout. After training, the loss of the same rows is taken twice from the same weights: as the arm lays them
out, and with each document alone. What the second is above the first is the loss illusion.
Guarantee: documents count by their supervised tokens, in either layout; dropout is off.
Price: a forward and backward of one batch; two forwards of the rows that are asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hermetic.batch import PackedBatch
from hermetic.compare.arms import Arm, logits_and_labels
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import TrainError
from hermetic.integrations.transformers import Row, collate_rows
from hermetic.loss import token_loss


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FirstBatch:
    """Logits of each document, and the gradient of the loss, on one batch."""

    logits: list[torch.Tensor]
    """``[length, V]`` of each document, in order."""
    gradient: torch.Tensor
    """Of all parameters, end to end; 0 where a parameter has none."""

    def logit_distance(self, other: "FirstBatch") -> float:
        """The largest difference of any logit."""
        return max(float((a - b).abs().max()) for a, b in zip(self.logits, other.logits, strict=True) if len(a))

    def gradient_distance(self, other: "FirstBatch") -> float:
        """The norm of the difference, relative to the norm of the other's gradient."""
        size = torch.linalg.vector_norm(other.gradient)
        return float(torch.linalg.vector_norm(self.gradient - other.gradient) / size)


def first_batch(network: nn.Module, arm: Arm, rows: Sequence[Row]) -> FirstBatch:
    """Run a batch in the arm's layout, forward and backward, and leave no gradient behind."""
    network.eval()
    logits, labels = logits_and_labels(arm, network, rows)
    token_loss(logits, labels).backward()
    return FirstBatch(logits=[part.cpu() for part in arm.split(logits.detach(), rows)], gradient=_gradient(network))


def first_batch_alone(network: nn.Module, rows: Sequence[Row]) -> FirstBatch:
    """The same with each document in a call of its own: other shapes, and the same numbers but for rounding."""
    network.eval()
    count = sum(batch.num_supervised_tokens for batch in _documents(rows))
    found = []
    for batch in _documents(rows):
        logits = _alone(network, batch)
        if batch.num_supervised_tokens:
            token_loss(logits, batch.labels[None].to(logits.device), denominator=count).backward()
        found.append(logits.detach()[0].cpu())
    return FirstBatch(logits=found, gradient=_gradient(network))


@torch.no_grad()
def layout_loss(network: nn.Module, arm: Arm, batches: Sequence[Sequence[Row]]) -> float:
    """Mean loss of the supervised tokens of some batches of rows, as the arm lays them out.

    Raises:
        TrainError: no token of them is supervised.
        NonFiniteError: the loss of one is NaN or infinite.
    """
    network.eval()
    total, count = 0.0, 0
    for rows in batches:
        logits, labels = logits_and_labels(arm, network, rows)
        supervised = int((labels != IGNORE_INDEX).sum())
        total += float(token_loss(logits, labels, denominator=1)) if supervised else 0.0
        count += supervised
    return _mean(total, count)


@torch.no_grad()
def solo_loss(network: nn.Module, batches: Sequence[Sequence[Row]]) -> float:
    """Mean loss of the supervised tokens of the same rows, with each document alone.

    Raises:
        TrainError: no token of them is supervised.
        NonFiniteError: the loss of one is NaN or infinite.
    """
    network.eval()
    total, count = 0.0, 0
    for batch in (batch for rows in batches for batch in _documents(rows)):
        if batch.num_supervised_tokens:
            logits = _alone(network, batch)
            total += float(token_loss(logits, batch.labels[None].to(logits.device), denominator=1))
            count += batch.num_supervised_tokens
    return _mean(total, count)


def supervised_tokens(rows: Sequence[Row]) -> int:
    """Tokens that carry a label."""
    return collate_rows(rows).num_supervised_tokens


def _alone(network: nn.Module, batch: PackedBatch) -> torch.Tensor:
    device = next(network.parameters()).device
    logits: torch.Tensor = network(input_ids=batch.input_ids[None].to(device), use_cache=False).logits
    return logits


def _documents(rows: Sequence[Row]) -> Iterator[PackedBatch]:
    """Each document as a batch of its own."""
    whole = collate_rows(rows)
    for ids, labels in zip(whole.unpack(whole.input_ids), whole.unpack(whole.labels), strict=True):
        yield collate_rows([[{"input_ids": ids, "labels": labels}]])


def _gradient(network: nn.Module) -> torch.Tensor:
    parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten().cpu() for p in network.parameters()]
    network.zero_grad(set_to_none=True)
    return torch.cat(parts)


def _mean(total: float, count: int) -> float:
    if count == 0:
        raise TrainError("no token of the rows to measure is supervised; expected some, for they have no loss else")
    return total / count
