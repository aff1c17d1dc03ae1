"""Losses that do not depend on how documents were packed.

Algorithm: pick the logits that predict a supervised token (``logits[t - 1]`` predicts ``labels[t]``), take
their cross-entropy in float32 or better, sum, and divide once by a count of tokens or documents. A step of
several micro-batches or ranks passes the count of the whole step as ``denominator``; its parts then add up.
Guarantee: what no supervised token needs is never read, so NaN there harms neither value nor gradient; a
non-finite loss of a supervised token is an error with its place, never a number; zero supervised tokens are
0.0, never NaN. Price: a copy of the selected logits in float32, as any cross-entropy makes, and waits for
the device to count and to check.
"""

import math
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Final, Literal

import torch

from hermetic.batch import PackedBatch
from hermetic.constants import IGNORE_INDEX
from hermetic.errors import LossError, NonFiniteError

REDUCTIONS: Final = ("token", "document")

_FLOAT32_BYTES = 4
_BATCHED_LOGITS = 3  # dimensions of [rows, tokens, vocabulary]


class ZeroSupervisedTokensWarning(UserWarning):
    """A loss was asked of a batch in which no token is supervised; it was 0.0."""


def packed_loss(
    logits: torch.Tensor,
    batch: PackedBatch,
    *,
    reduction: Literal["token", "document"] = "token",
    denominator: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy of a packed batch, weighted by tokens or by documents.

    Args:
        logits: [T, V] or [1, T, V], one row for each slot of the batch, the padded tail included.
        batch: The batch that the logits were computed from, on the same device.
        reduction: ``"token"``: the sum over supervised tokens, divided by their number. ``"document"``: the
            mean over the documents that have supervised tokens of each document's own mean.
        denominator: What to divide by instead: the supervised tokens (or documents) of the whole step, over
            all micro-batches. Where gradients are averaged over N ranks, divide this count by N.

    Returns:
        A scalar in nats, float32 or better. It is 0.0, connected to the graph with zero gradients, when no
        token is supervised; ``ZeroSupervisedTokensWarning`` says so.

    Raises:
        LossError: If shapes, devices or dtypes do not fit, a label is beyond the vocabulary, the reduction is
            unknown, or the denominator is not a positive number.
        NonFiniteError: If the loss of a supervised token is NaN or infinite.

    Example:
        With equal logits every token costs ln 4, however many tokens there are.

        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [2, 1]}])
        >>> packed_loss(torch.zeros(5, 4), batch)
        tensor(1.3863)
    """
    if reduction not in REDUCTIONS:
        raise LossError(f"reduction is {reduction!r}, expected one of {', '.join(map(repr, REDUCTIONS))}")
    losses = _packed_token_losses(logits, batch)
    if reduction == "token":
        return _mean(losses, denominator)
    means = [part.mean() for part in _split_by_document(losses, batch) if len(part)]
    # Without a supervised token there is no mean, but the empty losses still hold the graph.
    return _mean(torch.stack(means) if means else losses, denominator)


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
    losses = _packed_token_losses(logits, batch)
    sums = [part.sum() for part in _split_by_document(-losses, batch)]
    return torch.stack(sums) if sums else losses


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
    if logits.ndim != _BATCHED_LOGITS or labels.shape != logits.shape[:2]:
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

    return _mean(_token_losses(logits.flatten(0, 1), labels.flatten(), place), denominator)


def _packed_token_losses(logits: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """[S] losses of the supervised tokens in the order of the batch."""
    slots = batch.num_slots
    flat = logits[0] if logits.ndim == _BATCHED_LOGITS and logits.shape[0] == 1 else logits
    if flat.ndim != _BATCHED_LOGITS - 1 or flat.shape[0] != slots:
        raise LossError(
            f"logits have shape {list(logits.shape)}, expected [{slots}, V] or [1, {slots}, V]; pass the "
            f"logits of all {slots} slots of this batch, the padded tail included"
        )

    def place(slot: int) -> str:
        document = int(batch.boundaries.document_ids[slot])
        token = int(batch.boundaries.position_ids[slot])
        return f"document {document}, token {token} (slot {slot})"

    return _token_losses(flat, batch.labels, place)


def _token_losses(logits: torch.Tensor, labels: torch.Tensor, place: Callable[[int], str]) -> torch.Tensor:
    """[S] losses of the supervised tokens of one [T, V] stream; ``labels[0]`` is never supervised."""
    _check_tensors(logits, labels)
    positions = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    targets = labels.index_select(0, positions)
    _check_targets(targets, logits.shape[1], positions, place)
    predictions = logits.index_select(0, positions - 1)
    if predictions.dtype.itemsize < _FLOAT32_BYTES:
        predictions = predictions.float()
    losses = torch.nn.functional.cross_entropy(predictions, targets, reduction="none")
    broken = (~losses.detach().isfinite()).nonzero()
    if len(broken):
        slot = int(positions[broken[0]])
        raise NonFiniteError(
            f"{place(slot)} has the loss {float(losses[broken[0]])}, expected finite logits where they "
            f"predict a supervised token; look for an overflow in {logits.dtype} or a diverged model, or "
            f"mask the token"
        )
    return losses


def _check_tensors(logits: torch.Tensor, labels: torch.Tensor) -> None:
    if not logits.dtype.is_floating_point:
        raise LossError(f"logits have dtype {logits.dtype}, expected a floating one; pass the model's raw scores")
    if labels.dtype != torch.int64:
        raise LossError(f"labels have dtype {labels.dtype}, expected torch.int64; convert them")
    if logits.device != labels.device:
        raise LossError(
            f"logits are on {logits.device} and labels on {labels.device}, expected one device; move the "
            f"batch with batch.to(logits.device)"
        )


def _check_targets(
    targets: torch.Tensor, vocabulary: int, positions: torch.Tensor, place: Callable[[int], str]
) -> None:
    """On an accelerator a label beyond the vocabulary would be an assertion without a place."""
    wrong = ((targets < 0) | (targets >= vocabulary)).nonzero()
    if len(wrong):
        raise LossError(
            f"{place(int(positions[wrong[0]]))} has the label {int(targets[wrong[0]])}, expected 0 to "
            f"{vocabulary - 1} or {IGNORE_INDEX}; the logits have {vocabulary} entries, so check that "
            f"tokenizer and model belong together"
        )


def _split_by_document(losses: torch.Tensor, batch: PackedBatch) -> list[torch.Tensor]:
    """One [supervised tokens] tensor for each of the D documents."""
    boundaries = batch.boundaries
    supervised = batch.labels[: boundaries.num_tokens].cpu() != IGNORE_INDEX
    counts = boundaries.document_ids[supervised].bincount(minlength=boundaries.num_documents)
    return list(losses.split_with_sizes(counts.tolist()))


def _mean(losses: torch.Tensor, denominator: float | torch.Tensor | None) -> torch.Tensor:
    # With nothing to count, any divisor keeps the empty sum at 0.0.
    divisor = max(len(losses), 1) if denominator is None else _positive(denominator)
    if len(losses) == 0:
        warnings.warn(
            "0 targets: no token of this batch is supervised, so its loss is 0.0 and its gradients are zero; "
            "check the labels or loss masks if this is not meant",
            ZeroSupervisedTokensWarning,
            stacklevel=3,
        )
    return losses.sum() / divisor


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
