"""Losses of hidden states, without their logits: what is as large as tokens times vocabulary never exists.

Algorithm: only the rows that predict a supervised token are taken, and only a chunk of them is multiplied with the
output matrix at a time (``hermetic.loss.sweep``). Guarantee: value and gradients of hidden states, weight and bias are
those of ``packed_loss`` on the logits, up to the roundings of their dtype; the guarantees of ``hermetic.loss.dense``
hold. Price: for the loss the three matrix products of the plain way, for log-probabilities one more, since their
gradients need the logits again; memory for the logits of one chunk, and a copy of the rows that are taken.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from hermetic.batch import PackedBatch
from hermetic.errors import LossError
from hermetic.loss.dense import document_sums
from hermetic.loss.liger import liger_total
from hermetic.loss.options import TokenCost, check_chunk, check_number
from hermetic.loss.sweep import Operands, Recipe, token_losses, total_loss
from hermetic.loss.targets import Targets, check_stream, place_in_batch, stream_of, targets_from_labels
from hermetic.loss.weighing import (
    Reduction,
    check_reduction,
    divisor,
    supervised_tokens,
    tell_if_none,
    token_weights,
)

LossBackend = Literal["torch", "liger"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LinearHead:
    """Hidden states and the output layer that would turn them into logits.

    ``logits = cap * tanh(logit_scale * (hidden @ weight.T + bias) / cap)``, without the tanh if there is no cap.

    Attributes:
        hidden: [T, K] or [1, T, K].
        weight: [V, K], of the dtype and device of ``hidden``; under autocast of any floating dtype.
        bias: [V], or None.
        logit_scale: Factor on the logits (Granite and Cohere have one).
        logit_softcap: Cap on the scaled logits, above 0 (Gemma 2 has 30), or None.

    Raises:
        LossError: If shapes, dtypes or devices do not fit each other, or a number is out of its range.

    Example:
        >>> LinearHead(hidden=torch.ones(2, 3), weight=torch.ones(5, 3)).logits().shape
        torch.Size([2, 5])
    """

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        weight, width = self.weight, self.hidden.shape[-1:]
        if weight.ndim != 2 or weight.shape[1:] != width or not len(weight):
            raise LossError(
                f"weight has shape {list(weight.shape)} and hidden states {list(self.hidden.shape)}, expected [V, K] "
                f"and [T, K]; pass the output layer's weight as it is, not transposed"
            )
        if self.bias is not None and self.bias.shape != weight.shape[:1]:
            raise LossError(f"bias has shape {list(self.bias.shape)}, expected [{weight.shape[0]}], as weight has rows")
        for name, other in (("weight", weight), ("bias", self.bias)):
            if other is not None and self._differs(other):
                raise LossError(
                    f"{name} is {other.dtype} on {other.device} and hidden states are {self.hidden.dtype} on "
                    f"{self.hidden.device}, expected the same; convert one of them, or use torch.autocast"
                )
        check_number("logit_scale", self.logit_scale, above=True)
        if self.logit_softcap is not None:
            check_number("logit_softcap", self.logit_softcap, above=True)

    def _differs(self, other: torch.Tensor) -> bool:
        mixed = self.hidden.dtype != other.dtype and not torch.is_autocast_enabled(self.hidden.device.type)
        return mixed or other.device != self.hidden.device

    def logits(self, rows: slice = slice(None)) -> torch.Tensor:
        """[T, V] logits of some rows, in float32 or better.

        Args:
            rows: Those of the rows that are wanted.

        Returns:
            Differentiable logits; they exist whole.
        """
        flat = self.hidden[0] if self.hidden.ndim == 3 else self.hidden
        found = torch.nn.functional.linear(flat[rows], self.weight, self.bias)
        found = found.to(torch.promote_types(found.dtype, torch.float32)) * self.logit_scale
        cap = self.logit_softcap
        return found if cap is None else cap * torch.tanh(found / cap)


def packed_linear_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    batch: PackedBatch,
    *,
    bias: torch.Tensor | None = None,
    reduction: Reduction = "token",
    denominator: float | torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    chunk_tokens: int | None = None,
    backend: LossBackend = "torch",
) -> torch.Tensor:
    """``packed_loss`` of the logits ``hidden @ weight.T + bias``, which are never made as a whole.

    Args:
        hidden: [T, K] or [1, T, K], what the model gives to its output layer, the padded tail included.
        weight: [V, K] of the output layer.
        batch: The batch that the hidden states were computed from, on the same device.
        bias: [V] of the output layer, or None.
        reduction: As in ``packed_loss``.
        denominator: As in ``packed_loss``.
        label_smoothing: As in ``packed_loss``.
        z_loss: As in ``packed_loss``.
        logit_scale: Factor on the logits.
        logit_softcap: c in ``c * tanh(logits / c)``, applied to the scaled logits.
        chunk_tokens: Tokens whose logits exist at a time. Default: as many as have 2**25 logits.
        backend: ``"torch"``: this package's, on every device. ``"liger"``: Liger's fused kernel, on GPUs, for the
            token-level loss without a logit scale. You get the one that you name or an error.

    Returns:
        A scalar in nats, float32 or better; 0.0 with zero gradients and ``ZeroSupervisedTokensWarning`` when no
        token is supervised.

    Raises:
        LossError: As ``packed_loss``, if the output layer does not fit the hidden states, or if the backend
            cannot do what was asked.
        NonFiniteError: If the loss of a supervised token is NaN or infinite.
        MissingDependencyError: If Liger was asked for and is not installed.

    Example:
        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [2, 1]}])
        >>> packed_linear_loss(torch.ones(5, 2), torch.zeros(4, 2), batch)
        tensor(1.3863)
    """
    check_reduction(reduction)
    check_chunk(chunk_tokens)
    head = LinearHead(hidden=hidden, weight=weight, bias=bias, logit_scale=logit_scale, logit_softcap=logit_softcap)
    cost = TokenCost(label_smoothing=label_smoothing, z_loss=z_loss)
    recipe = Recipe(scale=logit_scale, softcap=logit_softcap, cost=cost, chunk_tokens=chunk_tokens)
    _check_backend(backend)
    operands, targets = _operands(head, batch)
    tell_if_none(len(targets))
    counts = supervised_tokens(batch)
    whole = divisor(counts, reduction, denominator)
    if backend == "liger":
        return liger_total(operands, targets, recipe, reduction) / whole
    weights, factor = token_weights(counts, reduction)
    exact = torch.promote_types(operands[0].dtype, torch.float32)
    total, losses = total_loss(operands, targets.values, weights.to(hidden.device, exact), recipe)
    targets.refuse_non_finite(losses, operands[0].dtype)
    return total * (factor / whole)


def document_log_probs_from_hidden(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    batch: PackedBatch,
    *,
    bias: torch.Tensor | None = None,
    logit_scale: float = 1.0,
    logit_softcap: float | None = None,
    chunk_tokens: int | None = None,
) -> torch.Tensor:
    """``document_log_probs`` of the logits ``hidden @ weight.T + bias``, which are never made as a whole.

    Args:
        hidden: [T, K] or [1, T, K], as in ``packed_linear_loss``.
        weight: [V, K] of the output layer.
        batch: The batch that the hidden states were computed from, on the same device.
        bias: [V] of the output layer, or None.
        logit_scale: Factor on the logits.
        logit_softcap: Cap on the scaled logits.
        chunk_tokens: Tokens whose logits exist at a time.

    Returns:
        [D] in nats, float32 or better, differentiable; 0 for a document without supervised tokens.

    Raises:
        LossError: If shapes, devices or dtypes do not fit, or a label is beyond the vocabulary.
        NonFiniteError: If the log-probability of a supervised token is NaN or infinite.

    Example:
        >>> from hermetic.batch import collate
        >>> batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": [2, 1]}])
        >>> document_log_probs_from_hidden(torch.ones(5, 2), torch.zeros(4, 2), batch)
        tensor([-2.7726,  0.0000, -1.3863])
    """
    check_chunk(chunk_tokens)
    head = LinearHead(hidden=hidden, weight=weight, bias=bias, logit_scale=logit_scale, logit_softcap=logit_softcap)
    operands, targets = _operands(head, batch)
    recipe = Recipe(scale=logit_scale, softcap=logit_softcap, chunk_tokens=chunk_tokens)
    losses = token_losses(operands, targets.values, recipe)
    targets.refuse_non_finite(losses, operands[0].dtype)
    return document_sums(-losses, supervised_tokens(batch))


def _operands(head: LinearHead, batch: PackedBatch) -> tuple[Operands, Targets]:
    """The rows that predict a supervised token and the output layer, in the dtype in which they are multiplied."""
    flat = stream_of(head.hidden, batch, name="hidden states", letter="K")
    check_stream(flat, batch.labels, name="hidden states")
    targets = targets_from_labels(batch.labels, head.weight.shape[0], place_in_batch(batch))
    kind = flat.device.type
    lowered = torch.is_autocast_enabled(kind) and flat.dtype != torch.float64
    dtype = torch.get_autocast_dtype(kind) if lowered else flat.dtype
    bias = None if head.bias is None else head.bias.to(dtype)
    return (targets.rows(flat).to(dtype), head.weight.to(dtype), bias), targets


def _check_backend(backend: str) -> None:
    if backend not in get_args(LossBackend):
        raise LossError(f"backend is {backend!r}, expected one of {', '.join(map(repr, get_args(LossBackend)))}")
