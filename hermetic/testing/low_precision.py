"""How far roundings alone move attention: a naive evaluation in the tested dtype, in several orders.

Algorithm: each query against every key of the row under a dense mask, each step rounded to the tested dtype, with
gradients by autograd. The same again with the features and the keys in another order; the scale applied before or
after the dot product; the normalisation before, after or inside the exponential (as the backward pass of kernels
has it, with scores that are computed a second time); the gradients of keys and values rounded after each block of
queries; and the terms of each dot product added one after the other, which is the worst order where the first term
is the largest, as it is for the first key of a document. None of this changes what is computed, only how it is
rounded. The floor is the largest error that any of them has.
Guarantee: independent of ``hermetic.attention``; it shares no line with the definition or with any backend.
Price: ``[H, T, T]`` scores, so rows of a few hundred tokens.

Why a backend may have a multiple of the floor: two evaluations that are equally good may be rounded to opposite
sides of the exact result. So twice the error of one is no evidence against the other, and gradients, which pass
through more roundings, get three times. These are the ratios that FlashAttention's published tests allow between a
kernel and PyTorch's own attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

ALLOWED_OUTPUT = 2.0
"""A backend's output may be off by so many times what the naive evaluation is off by."""
ALLOWED_GRADIENT = 3.0
"""The same for each gradient."""

_BLOCK = 32  # queries, as many as kernels take at a time

Tensors = dict[str, torch.Tensor]
Normalisation = Literal["weights", "output", "exponent"]

_EVALUATIONS: tuple[tuple[Normalisation, int | None, bool], ...] = (
    ("weights", None, False),
    ("output", None, False),
    ("exponent", None, False),
    ("weights", _BLOCK, False),
    ("exponent", _BLOCK, False),
    ("weights", None, True),
)
"""Each with other features and keys; None is one block for the whole row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One way to evaluate the same formula."""

    features: torch.Tensor
    """``[K]``: a permutation of the features of a head."""
    keys: torch.Tensor
    """``[T]``: a permutation of the keys."""
    scale_first: bool
    """Scale the queries, not the scores."""
    normalise: Normalisation
    """Divide the weights or the output by the sum, or subtract its logarithm before the exponential."""
    block: int
    """So many queries at a time; the gradients of keys and values are rounded after each block."""
    one_by_one: bool
    """Add the terms of a dot product one after the other, as their indices have them."""


def orders(key_width: int, num_tokens: int, device: torch.device) -> Iterator[Order]:
    """The order that everyone writes down, then shuffled ones; always the same for the same sizes."""
    generator = torch.Generator().manual_seed(0)
    features, keys = torch.arange(key_width), torch.arange(num_tokens)
    for normalise, block, one_by_one in _EVALUATIONS:
        yield Order(
            features=features.to(device),
            keys=keys.to(device),
            scale_first=block is not None,
            normalise=normalise,
            block=block or num_tokens,
            one_by_one=one_by_one,
        )
        features = torch.randperm(key_width, generator=generator)
        keys = torch.randperm(num_tokens, generator=generator)


def attention(
    inputs: Tensors, mask: torch.Tensor, *, scale: float, softcap: float | None, order: Order
) -> torch.Tensor:
    """Attend over the whole row under a mask, rounding each step to the dtype of the inputs.

    Args:
        inputs: ``q [T, H, K]``, ``k [T, G, K]``, ``v [T, G, V]`` and optionally ``sinks [H]``.
        mask: ``[T, T]``, True where the query (row) may see the key (column); each query sees at least one.
        scale: factor on the dot products.
        softcap: cap on the scores through ``tanh``.
        order: in which order to evaluate it.

    Returns:
        ``[T, H, V]``.
    """
    q = inputs["q"][..., order.features]
    k = inputs["k"][order.keys][..., order.features]
    v = inputs["v"][order.keys]
    mask = mask[:, order.keys]
    queries_per_key_head = q.shape[1] // k.shape[1]
    heads = []
    for head in range(q.shape[1]):
        sink = inputs["sinks"][head] if "sinks" in inputs else None
        key_head = head // queries_per_key_head
        # The last block first: autograd sums in the opposite direction, and large terms come with a document's start.
        blocks = [
            _one_head(rows, k[:, key_head], v[:, key_head], visible, sink, scale=scale, softcap=softcap, order=order)
            for rows, visible in zip(q[:, head].split(order.block)[::-1], mask.split(order.block)[::-1], strict=True)
        ]
        heads.append(torch.cat(blocks[::-1]))
    return torch.stack(heads, dim=1)


def _one_head(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    sink: torch.Tensor | None,
    *,
    scale: float,
    softcap: float | None,
    order: Order,
) -> torch.Tensor:
    product = _one_by_one if order.one_by_one else _product

    def masked_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = product(q * scale, k.mT) if order.scale_first else product(q, k.mT) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        return scores.masked_fill(~mask, -torch.inf)

    scores = masked_scores(q, k)
    if order.normalise == "exponent":
        _, total, largest = _exponentials(masked_scores(q.flip(-1), k.flip(-1)), sink)
        return product(torch.exp(scores - (largest + torch.log(total))), v)
    weights, total, _ = _exponentials(scores, sink)
    if order.normalise == "weights":
        return product(weights / total, v)
    return product(weights, v) / total


def _exponentials(scores: torch.Tensor, sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights before normalisation, their sum, and the largest score of each row, which was subtracted."""
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = torch.exp(scores - largest)
    total = weights.sum(dim=-1, keepdim=True)
    return weights, total if sink is None else total + torch.exp(sink - largest), largest


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A matrix product as matrix units have it: summed in float32 or better, rounded once."""
    wide = torch.promote_types(a.dtype, torch.float32)
    return (a.to(wide) @ b.to(wide)).to(a.dtype)


def _one_by_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same product with its terms added in the order of the inner index, here and in its gradients."""
    out: torch.Tensor = _OneByOne.apply(a, b)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


class _OneByOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return _sum_of_outer_products(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return _sum_of_outer_products(gradient, b.mT), _sum_of_outer_products(a.mT, gradient)


def _sum_of_outer_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)
    total = torch.zeros(a.shape[0], b.shape[1], dtype=wide, device=a.device)
    for column, row in zip(a.to(wide).unbind(1), b.to(wide).unbind(0), strict=True):
        total.addr_(column, row)
    return total.to(a.dtype)
