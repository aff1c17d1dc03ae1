"""One optimizer step of a plain loop: its micro-batches on this rank, what they are divided by, and when ranks talk.

Algorithm: a single all-reduce adds up what the ranks' micro-batches weigh and how many each rank has. Every rank then
runs as many as the rank with the most; those that it lacks are blank: two tokens, nothing supervised. Losses are
divided by the weight of the whole step, over the number of ranks, since ``DistributedDataParallel`` and FSDP average
gradients.
Guarantee: the gradients, and the losses averaged over ranks, are those of one process with all documents, however these
were split into micro-batches and ranks; no rank waits for a forward or backward pass that another does not run; a rank
with nothing supervised contributes zeros.
Price: one all-reduce of 1 + W numbers; a pass over two tokens for each blank micro-batch; gradients that are kept back
until the last micro-batch take, under FSDP, the memory of a whole model's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from hermetic.batch import PackedBatch, collate
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import TrainError
from hermetic.loss import Reduction, loss_denominator, packed_loss

Group = torch.distributed.ProcessGroup


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankStep:
    """The share of one rank in an optimizer step; ``rank_step`` makes it.

    Attributes:
        batches: What this rank runs, as many on every rank; those from ``num_own`` on are blank.
        num_own: Micro-batches that this rank was given.
        reduction: How documents weigh, as in ``packed_loss``.
        weight: What the documents of the step weigh over all ranks: supervised tokens, for ``"token"``; 0.0 if
            nothing is supervised.
        averaged_over: What training divides gradients by on its own: the ranks, where it averages over them.
    """

    batches: tuple[PackedBatch, ...]
    num_own: int
    reduction: Reduction
    weight: float
    averaged_over: int

    @property
    def denominator(self) -> float:
        """What ``packed_loss`` of a micro-batch is divided by, on every rank."""
        return (self.weight or 1.0) / self.averaged_over

    def loss(self, logits: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
        """The loss of one micro-batch, to call ``backward`` on.

        Args:
            logits: [T, V] or [1, T, V].
            batch: One of ``batches``.

        Returns:
            A scalar. The sum over micro-batches, averaged over ranks, is the loss of the step. It is 0.0 with zero
            gradients if nothing is supervised; ``ZeroSupervisedTokensWarning`` says so of a batch that was given.

        Raises:
            LossError: As ``packed_loss``.
            NonFiniteError: As ``packed_loss``.
        """
        if any(batch is blank for blank in self.batches[self.num_own :]):
            return logits[..., :0].sum()  # in the graph of every parameter, and never NaN
        return packed_loss(logits, batch, reduction=self.reduction, denominator=self.denominator)

    def micro_batches(self, model: nn.Module) -> Iterator[PackedBatch]:
        """The batches in order; the ranks exchange gradients in the backward pass of the last one only.

        Run forward and backward of a batch before asking for the next one. Where ranks exchange gradients in
        each backward pass, as under ``torch.compile`` around a wrapper, results are the same and the network
        carries more.

        Args:
            model: What is trained: ``DistributedDataParallel``, sharded by FSDP, or neither.
        """
        last = len(self.batches) - 1
        for index, batch in enumerate(self.batches):
            with _exchanging_gradients(model, now=index == last):
                yield batch


def rank_step(
    batches: Sequence[PackedBatch],
    *,
    reduction: Reduction = "token",
    group: Group | None = None,
    averaged: bool = True,
    at_least: int = 1,
) -> RankStep:
    """Agree with the other ranks on one optimizer step. Every rank of the group calls this once for each step.

    Args:
        batches: This rank's micro-batches, of any number, on the device of the model; there may be none.
        reduction: ``"token"``, ``"document"`` or ``"sqrt"``, the same on all ranks.
        group: The ranks with different data; by default all of them, and this process alone where
            ``torch.distributed`` has not been started. Ranks that share a stream, as under tensor or context
            parallelism, belong to different groups.
        averaged: Gradients are averaged over ranks, as ``DistributedDataParallel`` and FSDP do. ``False`` where
            they are added.
        at_least: Micro-batches that every rank runs at the least, for engines that count them.

    Returns:
        The step.

    Raises:
        LossError: If the reduction is unknown.
        TrainError: If ``at_least`` is not a positive whole number.

    Example:
        One process with two micro-batches of 2 and 3 supervised tokens.

        >>> from hermetic.batch import collate
        >>> step = rank_step([collate([{"input_ids": [1, 2, 3]}]), collate([{"input_ids": [1, 2, 3, 4]}])])
        >>> step.denominator, len(step.batches)
        (5.0, 2)
    """
    if type(at_least) is not int or at_least < 1:
        raise TrainError(f"at_least is {at_least!r}, expected a whole number of micro-batches, 1 or more")
    own = _weight(batches, reduction)
    ranks, rank = _place(group)
    weight, counts = (own, [len(batches)]) if ranks == 1 else _gathered(own, len(batches), ranks, rank, group)
    missing = max(*counts, at_least) - len(batches)
    blank = tuple(_blank(batches, group) for _ in range(missing))
    return RankStep(
        batches=(*batches, *blank),
        num_own=len(batches),
        reduction=reduction,
        weight=weight,
        averaged_over=ranks if averaged else 1,
    )


def _weight(batches: Sequence[PackedBatch], reduction: Reduction) -> float:
    found = loss_denominator(batches, reduction=reduction)
    return found if any(batch.num_supervised_tokens for batch in batches) else 0.0


def _place(group: Group | None) -> tuple[int, int]:
    """Number of ranks, and this one's among them."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 1, 0
    return torch.distributed.get_world_size(group), torch.distributed.get_rank(group)


def _gathered(weight: float, count: int, ranks: int, rank: int, group: Group | None) -> tuple[float, list[int]]:
    """The weight over all ranks and the micro-batches of each, by one sum."""
    table = torch.zeros(1 + ranks, dtype=torch.float64)  # whole numbers up to 2 ** 53 are exact
    table[0], table[1 + rank] = weight, count
    table = table.to(device_of(group))
    torch.distributed.all_reduce(table, group=group)
    total, *counts = table.tolist()
    return total, [int(one) for one in counts]


def device_of(group: Group | None) -> torch.device:
    """Where the backend of a group of ranks wants its tensors; the CPU where none was started."""
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    if started and torch.distributed.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _blank(batches: Sequence[PackedBatch], group: Group | None) -> PackedBatch:
    """A micro-batch that weighs nothing."""
    device = batches[0].input_ids.device if batches else device_of(group)
    return collate([{"input_ids": [0, 0], "labels": [IGNORE_INDEX] * 2}]).to(device)


@contextmanager
def _exchanging_gradients(model: nn.Module, *, now: bool) -> Iterator[None]:
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        model.set_is_last_backward(now)
        yield
    elif isinstance(model, DistributedDataParallel | FullyShardedDataParallel) and not now:
        with model.no_sync():
            yield
    else:
        yield
