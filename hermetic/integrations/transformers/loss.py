"""The loss of an optimizer step as transformers' Trainer takes it: ``compute_loss_func``.

Guarantee: the loss of a step is that of its documents, however they were packed, accumulated or dealt to ranks. Price:
that of ``hermetic.loss.packed_loss``.
"""

from typing import Any

import torch

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import TrainError
from hermetic.integrations.batches import logits_of_batch, no_loss
from hermetic.loss import Reduction, packed_loss, token_loss
from hermetic.loss.options import TokenCost
from hermetic.loss.weighing import check_reduction


def packed_token_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Token-level, over the supervised tokens of the whole optimizer step.

    Args:
        outputs: the model's, with ``logits`` of ``[B, S, V]``.
        labels: ``[B, S]`` unshifted, -100 on the first token of every document and every row.
        num_items_in_batch: supervised tokens of the step, as the Trainer counts them over micro-batches and
            ranks; by default those of ``labels``.
    """
    if num_items_in_batch is None:
        return token_loss(outputs.logits, labels)
    # a step without supervised tokens has a sum of 0 to divide
    denominator = torch.as_tensor(num_items_in_batch)
    if denominator > 0 and not bool((labels != IGNORE_INDEX).any()):
        return no_loss(outputs.logits)
    return token_loss(outputs.logits, labels, denominator=denominator.clamp(min=1))


class PackedLoss:
    """``compute_loss_func`` of any reduction, for a Trainer with ``PackedRows``, which tells it the batch.

    A loss by documents needs to know where they are, and transformers' Trainer passes outputs and labels only.
    """

    def __init__(self, reduction: Reduction = "token", *, label_smoothing: float = 0.0) -> None:
        """Make a loss.

        Args:
            reduction: ``"token"``, ``"document"`` or ``"sqrt"``, as in ``hermetic.packed_loss``.
            label_smoothing: as in ``hermetic.packed_loss``.

        Raises:
            LossError: one of them is not as described.
        """
        check_reduction(reduction)
        self.reduction = reduction
        self.label_smoothing = TokenCost(label_smoothing=label_smoothing).label_smoothing
        self.batch: PackedBatch | None = None
        """The batch of the call that is being computed."""

    def __call__(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The loss of one micro-batch.

        Args:
            outputs: the model's, with ``logits`` of ``[B, S, V]``.
            labels: the batch's.
            num_items_in_batch: what the whole step is divided by; by default that of this batch alone.

        Raises:
            TrainError: nobody told it the batch.
        """
        if self.batch is None or self.batch.labels.numel() != labels.numel():
            raise TrainError(
                f"a loss by {self.reduction}s does not know where documents start; expected a Trainer with PackedRows, "
                "which tells it. With any other, use compute_loss_func=packed_token_loss"
            )
        logits, weight = logits_of_batch(outputs.logits), num_items_in_batch
        if weight is not None and weight > 0 and not self.batch.num_supervised_tokens:
            return no_loss(outputs.logits)
        return packed_loss(
            logits,
            self.batch,
            reduction=self.reduction,
            # a step without supervised tokens has a sum of 0 to divide
            denominator=None if weight is None else float(weight) or 1.0,
            label_smoothing=self.label_smoothing,
        )
