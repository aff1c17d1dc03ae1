"""Cross-entropy of hidden states and an output matrix, chunk by chunk, with its gradients.

Algorithm: for a chunk of C rows at a time, the logits ``hidden @ weight.T + bias`` are made in one buffer,
turned in place into probabilities, and, where gradients are wanted, into the gradient of the logits, which is
multiplied at once into those of hidden states, weight and bias. The gradient of a logit z[v] of a token of
weight w is ``w * (p[v] * (1 + 2 * c * logsumexp(z)) - (1 - e) * [v = y] - e / V)``.

    total_loss    the weights are known before: gradients are made in the forward pass, three matrix products in all;
                  backward multiplies them by what it is given
    token_losses  the weights come with backward, which makes the logits again: four products

Guarantee: the same products, roundings and sums over a row as with whole logits; only the sums over tokens, in the
gradients of weight and bias, are taken chunk by chunk, in float32 or better. Products run in the dtype of their
operands, all else in float32 or better. Price: C x V numbers at a time (twice that in half precision or under a soft
cap), and the gradient of the weight in float32, beside one in half precision where the weight has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hermetic.loss.options import TokenCost

CHUNK_NUMBERS = 2**25
"""Logits that exist at a time unless the caller says how many tokens: 128 MiB of float32."""

_SLICE_NUMBERS = 2**23
"""Numbers of the weight's gradient that exist in half precision at a time, before they are added in float32."""

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Hidden states [S, K], weight [V, K] and bias [V], all of one dtype."""

Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Those of the operands, where they are wanted; weight's and bias's in float32 or better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How hidden states become losses: ``cap * tanh(scale * (hidden @ weight.T + bias) / cap)``, then the cost.

    Attributes:
        scale: On the logits.
        softcap: The cap, or None for none.
        cost: Of a token.
        chunk_tokens: Rows whose logits exist at a time; None for as many as ``CHUNK_NUMBERS`` allow.
    """

    scale: float = 1.0
    softcap: float | None = None
    cost: TokenCost = field(default_factory=TokenCost)
    chunk_tokens: int | None = None

    def chunks(self, rows: int, vocabulary: int) -> Iterator[slice]:
        """The rows of one chunk after the other."""
        step = self.chunk_tokens or max(1, CHUNK_NUMBERS // vocabulary)
        yield from (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def total_loss(
    operands: Operands, targets: torch.Tensor, weights: torch.Tensor, recipe: Recipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted sum of token losses, and the losses themselves.

    Args:
        operands: Hidden states [S, K], weight and bias.
        targets: [S] the entry of the vocabulary that each row predicts.
        weights: [S] of each token, best with a largest one of 1.
        recipe: How the losses are made.

    Returns:
        A differentiable scalar, and [S] losses that are not.

    Example:
        >>> hidden, weight = torch.ones(2, 1), torch.zeros(4, 1)
        >>> total, losses = total_loss((hidden, weight, None), torch.tensor([0, 3]), torch.ones(2), Recipe())
        >>> total, losses
        (tensor(2.7726), tensor([1.3863, 1.3863]))
    """
    total, losses = _TotalLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        *operands, targets, weights, recipe, torch.is_grad_enabled()
    )
    return total, losses


def token_losses(operands: Operands, targets: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """The loss of each token.

    Args:
        operands: Hidden states [S, K], weight and bias.
        targets: [S] the entry of the vocabulary that each row predicts.
        recipe: How the losses are made.

    Returns:
        [S] differentiable.

    Example:
        >>> token_losses((torch.ones(2, 1), torch.zeros(4, 1), None), torch.tensor([0, 3]), Recipe())
        tensor([1.3863, 1.3863])
    """
    losses: torch.Tensor = _TokenLosses.apply(*operands, targets, recipe)  # type: ignore[no-untyped-call]  # as above
    return losses


class _TotalLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - apply takes no keywords
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        weights: torch.Tensor,
        recipe: Recipe,
        differentiable: bool,  # noqa: FBT001 - apply takes no keywords
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wanted = ctx.needs_input_grad[:3] if differentiable else (False, False, False)
        ctx.recipe = recipe
        ctx.save_for_backward(hidden, weight, bias, targets, weights)
        losses, ctx.ready = _sweep((hidden, weight, bias), targets, weights, recipe, wanted)
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor, _: Any) -> tuple[Any, ...]:
        hidden, weight, bias, targets, weights = ctx.saved_tensors
        # They are handed over, so that they need not be copied; who asks again gets new ones.
        ready, ctx.ready = ctx.ready, None
        if ready is None:
            _, ready = _sweep((hidden, weight, bias), targets, weights, ctx.recipe, ctx.needs_input_grad[:3])
        scaled = [None if each is None else each.mul_(upstream) for each in ready]
        return (*_as_operands(scaled, (hidden, weight, bias)), None, None, None, None)


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - apply takes no keywords
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        recipe: Recipe,
    ) -> torch.Tensor:
        ctx.recipe = recipe
        ctx.save_for_backward(hidden, weight, bias, targets)
        return _sweep((hidden, weight, bias), targets, None, recipe, (False, False, False))[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        operands = (hidden, weight, bias)
        _, found = _sweep(operands, targets, upstream, ctx.recipe, ctx.needs_input_grad[:3])
        return (*_as_operands(found, operands), None, None)


def _as_operands(gradients: Sequence[torch.Tensor | None], operands: Operands) -> list[torch.Tensor | None]:
    return [
        None if gradient is None or operand is None else gradient.to(operand.dtype)
        for gradient, operand in zip(gradients, operands, strict=True)
    ]


def _sweep(
    operands: Operands, targets: torch.Tensor, weights: torch.Tensor | None, recipe: Recipe, wanted: Sequence[bool]
) -> tuple[torch.Tensor, Gradients]:
    """[S] losses, and the wanted gradients of their sum under these weights."""
    hidden, weight, bias = operands
    exact = torch.promote_types(hidden.dtype, torch.float32)
    losses = hidden.new_empty(len(hidden), dtype=exact)
    gradients = (
        torch.zeros_like(hidden) if wanted[0] else None,
        torch.zeros_like(weight, dtype=exact) if wanted[1] else None,
        torch.zeros_like(bias, dtype=exact) if bias is not None and wanted[2] else None,
    )
    chunks = list(recipe.chunks(len(hidden), len(weight)))
    buffer = hidden.new_empty(max((rows.stop - rows.start for rows in chunks), default=0), len(weight))
    with torch.autocast(hidden.device.type, enabled=False):
        for rows in chunks:
            some = None if weights is None or not any(wanted) else weights[rows, None]
            scores = _product(hidden[rows], weight, bias, buffer).to(exact)
            losses[rows] = _costs(scores, targets[rows, None], some, recipe)
            if some is not None:
                _add_gradients(scores, rows, operands, gradients)
    return losses, gradients


def _product(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, buffer: torch.Tensor
) -> torch.Tensor:
    """[C, V] in the buffer."""
    out = buffer[: len(hidden)]
    return torch.mm(hidden, weight.t(), out=out) if bias is None else torch.addmm(bias, hidden, weight.t(), out=out)


def _costs(scores: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, recipe: Recipe) -> torch.Tensor:
    """[C] losses; ``scores`` [C, V] become the gradient of their sum under ``weights`` [C, 1], if there are any."""
    if recipe.scale != 1.0:
        scores.mul_(recipe.scale)
    steepness = None if recipe.softcap is None else _cap(scores, recipe.softcap, keep=weights is not None)
    losses = _plain_costs(scores, targets, weights, recipe.cost)
    if weights is not None and recipe.scale != 1.0:
        scores.mul_(recipe.scale)
    if steepness is not None:
        scores.mul_(steepness)
    return losses


def _cap(scores: torch.Tensor, cap: float, *, keep: bool) -> torch.Tensor | None:
    """Cap the scores in place; the derivative of that if it is to be kept."""
    scores.div_(cap).tanh_()
    steepness = scores.square().neg_().add_(1.0) if keep else None
    scores.mul_(cap)
    return steepness


def _plain_costs(
    scores: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, cost: TokenCost
) -> torch.Tensor:
    smoothing = cost.label_smoothing
    peak = scores.amax(dim=1, keepdim=True)
    scores.sub_(peak)  # as log_softmax does, so that a loss near 0 keeps its digits however large the logits are
    losses = (smoothing - 1.0) * scores.gather(1, targets)
    if smoothing:
        losses -= smoothing * scores.mean(dim=1, keepdim=True)
    total = scores.exp_().sum(dim=1, keepdim=True)
    log_total = total.log()
    losses += log_total
    height = peak + log_total if cost.z_loss else torch.zeros_like(peak)
    losses += cost.z_loss * height.square()
    if weights is not None:
        scores.mul_(weights * (1.0 + 2.0 * cost.z_loss * height) / total)
        if smoothing:
            scores.sub_(weights * (smoothing / scores.shape[1]))
        scores.scatter_add_(1, targets, (smoothing - 1.0) * weights)
    return losses.squeeze(1)


def _add_gradients(slopes: torch.Tensor, rows: slice, operands: Operands, gradients: Gradients) -> None:
    """Multiply the gradient [C, V] of a chunk's logits into those of the operands."""
    hidden, weight, _ = operands
    of_hidden, of_weight, of_bias = gradients
    if of_bias is not None:
        of_bias += slopes.sum(dim=0)
    slopes = slopes.to(hidden.dtype)
    if of_hidden is not None:
        torch.mm(slopes, weight, out=of_hidden[rows])
    if of_weight is not None and of_weight.dtype == slopes.dtype:
        of_weight.addmm_(slopes.t(), hidden[rows])
    elif of_weight is not None:
        step = max(1, _SLICE_NUMBERS // hidden.shape[1])
        for start in range(0, len(weight), step):
            of_weight[start : start + step] += slopes[:, start : start + step].t() @ hidden[rows]
