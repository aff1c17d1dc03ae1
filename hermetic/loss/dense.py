"""Losses of logits.

Algorithm: pick the logits that predict a supervised token (``logits[t - 1]`` predicts ``labels[t]``), take
their cross-entropy in float32 or better, sum, and divide once by the denominator of the step. A step of
several micro-batches or ranks passes that of the whole step (``loss_denominator``); its parts then add up.
Guarantee: what no supervised token needs is never read, so NaN there harms neither value nor gradient; a
non-finite loss of a supervised token is an error with its place, never a number; zero supervised tokens are
0.0, never NaN. Price: a copy of the selected logits in float32, as any cross-entropy makes, and waits for
the device to count and to check. ``hermetic.loss.linear`` never makes the logits at all.
"""

import torch

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import LossError
from hermetic.loss.options import TokenCost
from hermetic.loss.targets import Place, check_stream, place_in_batch, stream_of, targets_from_labels
from hermetic.loss.weighing import (
    Reduction,
    check_reduction,
    divisor,
    supervised_tokens,
    tell_if_none,
    weighed,
)

_FLOAT32_BYTES = 4


def packed_loss(
    logits: torch.Tensor,
    batch: PackedBatch,
    *,
    reduction: Reduction = "token",
    denominator: float | torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of a packed batch, weighted by tokens, by documents, or between the two.

    Args:
        logits: [T, V] or [1, T, V], one row for each slot of the batch, the padded tail included.
        batch: The batch that the logits were computed from, on the same device.
        reduction: ``"token"``: the sum over supervised tokens, divided by their number. ``"document"``: the
            mean over the documents that have supervised tokens of each document's own mean. ``"sqrt"``: the sum
            over documents of each one's summed loss divided by the root of its supervised tokens, divided by
            the sum of these roots, so that a document weighs as the root of its length.
        denominator: What to divide by instead: that of the whole step, over all micro-batches, as
            ``loss_denominator`` gives it. Where gradients are averaged over N ranks, divide it by N.
        label_smoothing: e in ``(1 - e) * loss + e * (mean over the vocabulary of -log p)``, as in
            ``torch.nn.functional.cross_entropy``.
        z_loss: c in ``loss + c * logsumexp(logits) ** 2``, token by token, which holds the logits near 0.

    Returns:
        A scalar in nats, float32 or better. It is 0.0, connected to the graph with zero gradients, when no
        token is supervised; ``ZeroSupervisedTokensWarning`` says so.

    Raises:
        LossError: If shapes, devices or dtypes do not fit, a label is beyond the vocabulary, the reduction is
            unknown, or a number is out of its range.
        NonFiniteError: If the loss of a supervised token is NaN or infinite.

    Example:
        With equal logits every token costs ln 4, however many tokens there are.

        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [2, 1]}])
        >>> packed_loss(torch.zeros(5, 4), batch)
        tensor(1.3863)
    """
    check_reduction(reduction)
    cost = TokenCost(label_smoothing=label_smoothing, z_loss=z_loss)
    losses = _packed_token_losses(logits, batch, cost)
    tell_if_none(len(losses))
    counts = supervised_tokens(batch)
    if reduction == "token":
        return losses.sum() / divisor(counts, reduction, denominator)
    return weighed(document_sums(losses, counts), counts, reduction, denominator)


def document_log_probs(logits: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Log-probability of each document: the sum over its supervised tokens.

    Each document is summed on its own, so that the value does not depend on what it was packed with.

    Args:
        logits: [T, V] or [1, T, V], one row for each slot of the batch.
        batch: The batch that the logits were computed from, on the same device.

    Returns:
        [D] in nats, float32 or better, differentiable; 0 for a document without supervised tokens.

    Raises:
        LossError: If shapes, devices or dtypes do not fit, or a label is beyond the vocabulary.
        NonFiniteError: If the log-probability of a supervised token is NaN or infinite.

    Example:
        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": [2, 1]}])
        >>> document_log_probs(torch.zeros(5, 4), batch)
        tensor([-2.7726,  0.0000, -1.3863])
    """
    return document_sums(-_packed_token_losses(logits, batch, TokenCost()), supervised_tokens(batch))


def token_loss(
    logits: torch.Tensor, labels: torch.Tensor, *, denominator: float | torch.Tensor | None = None
) -> torch.Tensor:
    """Token-level loss of rows of logits and unshifted labels, as Hugging Face models and trainers hold them.

    Args:
        logits: [B, S, V].
        labels: [B, S] int64, -100 on unsupervised tokens and on the first token of every document; the first
            token of a row always is one.
        denominator: Supervised tokens of the whole step, as in ``packed_loss``. Default: those of these
            labels.

    Returns:
        A scalar in nats, as ``packed_loss`` with ``reduction="token"``.

    Raises:
        LossError: As ``packed_loss``, and if a row starts with a label, for the row before it would predict
            it.
        NonFiniteError: If the loss of a supervised token is NaN or infinite.

    Example:
        >>> token_loss(torch.zeros(1, 3, 4), torch.tensor([[-100, 2, 3]]))
        tensor(1.3863)
    """
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise LossError(
            f"logits have shape {list(logits.shape)} and labels {list(labels.shape)}, expected [B, S, V] "
            f"and [B, S]; pass the labels of these very logits"
        )
    supervised_starts = (labels[:, :1] != IGNORE_INDEX).nonzero()
    if len(supervised_starts):
        row = int(supervised_starts[0, 0])
        raise LossError(
            f"labels[{row}, 0] is {int(labels[row, 0])}, expected {IGNORE_INDEX}: nothing in its row "
            f"predicts a row's first token; mask it"
        )
    row_length = labels.shape[1]

    def place(slot: int) -> str:
        return f"row {slot // row_length}, token {slot % row_length}"

    losses = _token_losses(logits.flatten(0, 1), labels.flatten(), place, TokenCost())
    tell_if_none(len(losses))
    return losses.sum() / divisor(torch.tensor([len(losses)]), "token", denominator)


def document_sums(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Sum the values of each document's supervised tokens, each document on its own.

    Args:
        values: [S] one for each supervised token, in the order of the batch.
        counts: [D] supervised tokens of each document.

    Returns:
        [D] sums.

    Example:
        >>> document_sums(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2, 0, 1]))
        tensor([4., 0., 5.])
    """
    sums = [part.sum() for part in values.split_with_sizes(counts.tolist())]
    return torch.stack(sums) if sums else values


def _packed_token_losses(logits: torch.Tensor, batch: PackedBatch, cost: TokenCost) -> torch.Tensor:
    """[S] losses of the supervised tokens in the order of the batch."""
    flat = stream_of(logits, batch, name="logits", letter="V")
    return _token_losses(flat, batch.labels, place_in_batch(batch), cost)


def _token_losses(logits: torch.Tensor, labels: torch.Tensor, place: Place, cost: TokenCost) -> torch.Tensor:
    """[S] losses of the supervised tokens of one [T, V] stream; ``labels[0]`` is never supervised."""
    check_stream(logits, labels, name="logits")
    targets = targets_from_labels(labels, logits.shape[1], place)
    predictions = targets.rows(logits)
    if predictions.dtype.itemsize < _FLOAT32_BYTES:
        predictions = predictions.float()
    losses = torch.nn.functional.cross_entropy(
        predictions, targets.values, reduction="none", label_smoothing=cost.label_smoothing
    )
    if cost.z_loss:
        losses = losses + cost.z_loss * predictions.logsumexp(dim=1).square()
    targets.refuse_non_finite(losses, logits.dtype)
    return losses
