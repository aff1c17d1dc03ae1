"""What a token and a document weigh in the loss of a step, and what the step is divided by.

Algorithm: a document of ``n`` supervised tokens whose losses sum to ``L`` counts for a share of its sum, and
all shares are divided once by a denominator that belongs to the whole optimizer step:

    reduction    share of a document   denominator of the step          weight of a document
    "token"      L                     N, the sum of all n              n
    "document"   L / n                 D, documents with n > 0          1
    "sqrt"       L / sqrt(n)           R, the sum of all sqrt(n)        sqrt(n)

Guarantee: shares and denominators are sums over documents, so neither the packing nor the order nor the split
into micro-batches and ranks can move their quotient; where every token costs c, so does the step. Price:
O(documents) on the host, and a wait for the device to count.
"""

import math
import warnings
from collections.abc import Iterable
from numbers import Real
from typing import Final, Literal

import torch
import torch.distributed

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import LossError, NonFiniteError

Reduction = Literal["token", "document", "sqrt"]
REDUCTIONS: Final = ("token", "document", "sqrt")

_EXPONENTS: Final = {"token": 0.0, "document": 1.0, "sqrt": 0.5}
"""A document's summed loss is divided by this power of its supervised tokens."""


class ZeroSupervisedTokensWarning(UserWarning):
    """A loss was asked of a batch in which no token is supervised, or no document has a role; it was 0.0."""


def supervised_tokens(batch: PackedBatch) -> torch.Tensor:
    """Supervised tokens of each document.

    Args:
        batch: The batch. Waits for its device.

    Returns:
        [D] int64 on the CPU.

    Example:
        >>> from hermetic.batch import collate
        >>> supervised_tokens(collate([{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": [4, 5]}]))
        tensor([2, 0, 1])
    """
    boundaries = batch.boundaries
    supervised = batch.labels[: boundaries.num_tokens].cpu() != IGNORE_INDEX
    return boundaries.document_ids[supervised].bincount(minlength=boundaries.num_documents)


def loss_denominator(
    batches: Iterable[PackedBatch],
    *,
    reduction: Reduction = "token",
    group: torch.distributed.ProcessGroup | None = None,
) -> float:
    """What the losses of a whole optimizer step are divided by: N, D or R of its micro-batches, over all ranks.

    Args:
        batches: All micro-batches of the step on this rank; there may be none.
        reduction: That of the loss: ``"token"`` counts supervised tokens, ``"document"`` the documents that
            have some, ``"sqrt"`` adds the roots of each document's.
        group: The data-parallel ranks, each of which calls this once per step;
            ``torch.distributed.group.WORLD`` is all of them. ``None``: this process alone.

    Returns:
        The denominator of the step, the same on all ranks. Losses divided by it are to be **added** over
        micro-batches and ranks. Where gradients are averaged over W ranks instead, as
        DistributedDataParallel and FSDP do, divide by W times less: ``denominator=found / W``. A step without any
        supervised token gives 1.0: its losses are 0.0 whatever they are divided by.

    Raises:
        LossError: If the reduction is unknown.

    Example:
        Documents of 1 and of 4 supervised tokens, in two micro-batches.

        >>> from hermetic.batch import collate
        >>> step = [collate([{"input_ids": [1, 2]}]), collate([{"input_ids": [1, 2, 3, 4, 5]}])]
        >>> [loss_denominator(step, reduction=reduction) for reduction in ("token", "document", "sqrt")]
        [5.0, 2.0, 3.0]
    """
    check_reduction(reduction)
    total = math.fsum(_denominator(supervised_tokens(batch), reduction) for batch in batches)
    if group is not None:
        total = _summed_over(group, total)
    return total or 1.0


def weigh_documents(
    sums: torch.Tensor,
    batch: PackedBatch,
    *,
    reduction: Reduction = "token",
    denominator: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """The loss of a batch from the summed losses of its documents, whatever they are losses of.

    Args:
        sums: [D] sum over each document's supervised tokens, such as ``-document_log_probs(logits, batch)`` or
            ``document_kl(...)``; those of documents without supervised tokens are not read.
        batch: The batch of these D documents.
        reduction: How documents weigh, as in ``packed_loss``.
        denominator: What to divide by instead, as in ``packed_loss``.

    Returns:
        A scalar; 0.0, connected to the graph, when no token is supervised.

    Raises:
        LossError: If there are not D sums of a floating dtype, the reduction is unknown, or the denominator is not a
            positive number.
        NonFiniteError: If the sum of a document with supervised tokens is NaN or infinite.

    Example:
        Losses 1 and 3 in one document, four of 5 in another.

        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [1, 2, 3, 4, 5]}])
        >>> sums = torch.tensor([4.0, 20.0])
        >>> [float(weigh_documents(sums, batch, reduction=reduction)) for reduction in ("token", "document")]
        [4.0, 3.5]
    """
    check_reduction(reduction)
    if sums.shape != (batch.boundaries.num_documents,):
        raise LossError(
            f"sums have shape {list(sums.shape)}, expected [{batch.boundaries.num_documents}]: one for each document "
            f"of the batch"
        )
    if not sums.dtype.is_floating_point:
        raise LossError(f"sums have dtype {sums.dtype}, expected a floating one: shares of them are no whole numbers")
    counts = supervised_tokens(batch)
    tell_if_none(int(counts.sum()))
    broken = ((counts > 0) & ~sums.detach().isfinite().cpu()).nonzero()
    if len(broken):
        document = int(broken[0])
        raise NonFiniteError(
            f"sums[{document}] is {float(sums[document])}, expected a finite loss of a document with "
            f"{int(counts[document])} supervised tokens"
        )
    return weighed(sums, counts, reduction, denominator)


def weighed(
    sums: torch.Tensor, counts: torch.Tensor, reduction: Reduction, denominator: float | torch.Tensor | None
) -> torch.Tensor:
    """The weighing itself, of arguments that were checked.

    Args:
        sums: [D] summed losses.
        counts: [D] supervised tokens, on the CPU.
        reduction: How documents weigh.
        denominator: What to divide by instead.

    Returns:
        A scalar.

    Raises:
        LossError: If the denominator is not a positive number.

    Example:
        >>> weighed(torch.tensor([2.0, 8.0]), torch.tensor([1, 4]), "sqrt", None)
        tensor(2.)
    """
    counted = counts.nonzero().squeeze(1)
    powers = counts[counted].double() ** _EXPONENTS[reduction]
    shares = sums.index_select(0, counted.to(sums.device)) / powers.to(sums.device, sums.dtype)
    return shares.sum() / divisor(counts, reduction, denominator)


def token_weights(counts: torch.Tensor, reduction: Reduction) -> tuple[torch.Tensor, float]:
    """The weight of each supervised token before the division by the step's denominator.

    Args:
        counts: [D] supervised tokens of each document, on the CPU.
        reduction: How documents weigh.

    Returns:
        [S] float64 weights of at most 1, and the factor that they are still to be multiplied with: half precision
        holds them best where the largest is 1.

    Example:
        >>> token_weights(torch.tensor([2, 0, 4]), "document")
        (tensor([1.0000, 1.0000, 0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64), 0.5)
    """
    positive = counts[counts > 0]
    if len(positive) == 0:
        return torch.empty(0, dtype=torch.float64), 1.0
    weights = positive.double() ** -_EXPONENTS[reduction]
    largest = float(weights.max())
    return (weights / largest).repeat_interleave(positive), largest


def divisor(counts: torch.Tensor, reduction: Reduction, denominator: float | torch.Tensor | None) -> float:
    """What to divide by: the denominator that was given, or these documents' own.

    Args:
        counts: [D] supervised tokens, on the CPU.
        reduction: How documents weigh.
        denominator: What was given.

    Returns:
        A positive number; 1.0 where there is nothing to count, for any divisor keeps an empty sum at 0.0.

    Raises:
        LossError: If the denominator is not a positive number.

    Example:
        >>> divisor(torch.tensor([1, 4]), "sqrt", None)
        3.0
    """
    return (_denominator(counts, reduction) or 1.0) if denominator is None else _positive(denominator)


def check_reduction(reduction: str) -> None:
    """Refuse an unknown reduction.

    Args:
        reduction: Its name.

    Raises:
        LossError: If it is unknown.

    Example:
        >>> check_reduction("sqrt")
    """
    if reduction not in REDUCTIONS:
        raise LossError(f"reduction is {reduction!r}, expected one of {', '.join(map(repr, REDUCTIONS))}")


def tell_if_none(count: int, *, what: str = "targets", why: str = "no token of this batch is supervised") -> None:
    """Give the notice of a loss over nothing, at the line that called the public function.

    Args:
        count: Tokens, pairs or documents that the loss is over.
        what: What was counted.
        why: What that means.

    Example:
        >>> tell_if_none(1)
    """
    if count == 0:
        warnings.warn(
            f"0 {what}: {why}, so its loss is 0.0 and its gradients are zero; "
            f"check the labels or loss masks if this is not meant",
            ZeroSupervisedTokensWarning,
            stacklevel=3,
        )


def _denominator(counts: torch.Tensor, reduction: Reduction) -> float:
    return math.fsum(count ** (1.0 - _EXPONENTS[reduction]) for count in counts.tolist() if count)


def _summed_over(group: torch.distributed.ProcessGroup, value: float) -> float:
    on_cuda = torch.distributed.get_backend(group) == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    total = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(total, group=group)
    return float(total)


def _positive(denominator: object) -> float:
    value = math.nan
    if isinstance(denominator, Real) or (isinstance(denominator, torch.Tensor) and denominator.ndim == 0):
        value = float(denominator)
    is_boolean = isinstance(denominator, bool) or getattr(denominator, "dtype", None) == torch.bool
    if is_boolean or not (math.isfinite(value) and value > 0):
        raise LossError(
            f"denominator is {denominator!r}, expected a finite number or 0-d tensor above 0: the "
            f"supervised tokens or documents of the whole step"
        )
    return value
