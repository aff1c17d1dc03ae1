"""The loss of a Hugging Face model without its logits.

Algorithm: the model's own forward runs, but its output layer is not multiplied: it hands over what it was given, and
a few rows of known numbers take the place of the logits. What the forward makes of those rows shows by measurement what
this model does to its logits (nothing; a factor; a soft cap), whatever its configuration calls that. Guarantee:
what scale and cap do not describe in every entry of the vocabulary, such as a mask over token ids, is an error. Price:
eight rows of V numbers in place of T. Only ``forward`` of the output layer is replaced, and put back.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
from torch import nn

from hermetic.batch import PackedBatch
from hermetic.errors import LossError
from hermetic.loss.linear import LinearHead, LossBackend, document_log_probs_from_hidden, packed_linear_loss
from hermetic.loss.weighing import Reduction

_SMALL: Final = 2.0**-40
_LARGE: Final = 2.0**100
_KNOWN: Final = (_SMALL, _LARGE, 0.0, 1.0, -1.0, 7.0, -50.0, -_LARGE)
"""At the first only a factor shows, at the second only a cap; the others are there to disagree."""

_ROUNDINGS: Final = 16
"""More than a division, a hyperbolic tangent and a product make."""


def loss_without_logits(
    model: nn.Module,
    batch: PackedBatch,
    *,
    reduction: Reduction = "token",
    denominator: float | torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk_tokens: int | None = None,
    backend: LossBackend = "torch",
) -> torch.Tensor:
    """``packed_loss(model(...).logits, batch)`` from the model's last hidden states.

    Args:
        model: A causal language model of Hugging Face, sealed, so that its documents are apart.
        batch: On the model's device.
        reduction: As in ``packed_loss``.
        denominator: As in ``packed_loss``.
        label_smoothing: As in ``packed_loss``.
        z_loss: As in ``packed_loss``.
        chunk_tokens: As in ``packed_linear_loss``.
        backend: As in ``packed_linear_loss``.

    Returns:
        A scalar in nats. What else a model adds to its loss, such as the balance of experts, is not in it.

    Raises:
        LossError: As ``packed_linear_loss``, and if the model's output layer is not a plain linear one or
            more is done to its logits than a scale and a soft cap.
        NonFiniteError: If the loss of a supervised token is NaN or infinite.
        MissingDependencyError: If Liger was asked for and is not installed.

    Example:
        >>> import hermetic
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)))
        >>> batch = hermetic.collate([{"input_ids": [1, 2, 3]}, {"input_ids": [2, 1]}])
        >>> plain = hermetic.packed_loss(model(**batch.model_inputs()).logits, batch)
        >>> torch.testing.assert_close(loss_without_logits(model, batch), plain)
    """
    head = linear_head(model, batch)
    return packed_linear_loss(
        head.hidden,
        head.weight,
        batch,
        bias=head.bias,
        reduction=reduction,
        denominator=denominator,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        logit_scale=head.logit_scale,
        logit_softcap=head.logit_softcap,
        chunk_tokens=chunk_tokens,
        backend=backend,
    )


def log_probs_without_logits(model: nn.Module, batch: PackedBatch, *, chunk_tokens: int | None = None) -> torch.Tensor:
    """``document_log_probs(model(...).logits, batch)`` from the model's last hidden states.

    Args:
        model: As in ``loss_without_logits``.
        batch: On the model's device.
        chunk_tokens: As in ``packed_linear_loss``.

    Returns:
        [D] in nats.

    Raises:
        LossError: As ``loss_without_logits``.
        NonFiniteError: If the log-probability of a supervised token is NaN or infinite.

    Example:
        >>> import hermetic
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)))
        >>> log_probs_without_logits(model, hermetic.collate([{"input_ids": [1, 2, 3]}, {"input_ids": [2, 1]}])).shape
        torch.Size([2])
    """
    head = linear_head(model, batch)
    return document_log_probs_from_hidden(
        head.hidden,
        head.weight,
        batch,
        bias=head.bias,
        logit_scale=head.logit_scale,
        logit_softcap=head.logit_softcap,
        chunk_tokens=chunk_tokens,
    )


def linear_head(model: nn.Module, batch: PackedBatch) -> LinearHead:
    """Run a model up to its output layer.

    Args:
        model: As in ``loss_without_logits``.
        batch: On the model's device.

    Returns:
        Its last hidden states [1, T, K], its output layer and what it does to its logits.

    Raises:
        LossError: As ``loss_without_logits``.

    Example:
        Gemma 2 caps its logits at 30.

        >>> import hermetic
        >>> from transformers import Gemma2Config, Gemma2ForCausalLM
        >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> config = Gemma2Config(vocab_size=8, num_key_value_heads=1, head_dim=4, **sizes)
        >>> head = linear_head(hermetic.seal(Gemma2ForCausalLM(config)), hermetic.collate([{"input_ids": [1, 2, 3]}]))
        >>> head.hidden.shape, head.logit_scale, head.logit_softcap
        (torch.Size([1, 3, 8]), 1.0, 30.0)
    """
    layer = _output_layer(model)
    inputs = {name: value for name, value in batch.model_inputs().items() if name != "labels"}
    known = torch.tensor(_KNOWN, dtype=torch.float64, device=layer.weight.device)
    given = known[None, :, None].expand(1, -1, layer.weight.shape[0])
    with _handing_over(layer, given) as taken:
        logits = model(**inputs).logits
    if len(taken) != 1:
        raise LossError(
            f"the output layer of {type(model).__name__} was called {len(taken)} times, expected once; use "
            f"packed_loss on the logits"
        )
    scale, softcap = _measured(model, given, logits)
    return LinearHead(hidden=taken[0], weight=layer.weight, bias=layer.bias, logit_scale=scale, logit_softcap=softcap)


def _output_layer(model: nn.Module) -> Any:
    """The layer whose product is to be left out; a subclass or a replaced forward may compute something else."""
    find = getattr(model, "get_output_embeddings", None)
    layer: Any = None if find is None else find()
    plain = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    if plain and "forward" not in vars(layer) and type(layer.weight.data) is torch.Tensor:
        return layer
    raise LossError(
        f"the output layer of {type(model).__name__} is {type(layer).__name__}, expected a plain torch.nn.Linear "
        f"from model.get_output_embeddings(), neither replaced, adapted, quantized nor sharded; use packed_loss on "
        f"the logits"
    )


@contextmanager
def _handing_over(layer: Any, given: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """While open, the layer keeps what it gets and gives the known rows."""
    taken: list[torch.Tensor] = []

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        taken.append(hidden)
        return given.clone()  # a forward may write into its logits

    layer.forward = forward
    try:
        yield taken
    finally:
        del layer.forward


def _measured(model: nn.Module, given: torch.Tensor, found: torch.Tensor) -> tuple[float, float | None]:
    """Scale and cap that turn the known rows into what came out, in every entry.

    Raises:
        LossError: If there are none.
    """
    if found.shape != given.shape or found.dtype.itemsize < torch.float32.itemsize:
        _refuse(model, f"{list(given.shape)} numbers became {list(found.shape)} of {found.dtype}")
    at_small, at_large = found[0, :2].double().median(dim=1).values.tolist()  # so that the odd entry out is named
    scale = at_small / _SMALL
    scale = 1.0 if math.isclose(scale, 1.0, rel_tol=1e-12) else scale
    capped = not math.isclose(at_large, scale * _LARGE, rel_tol=1e-3)
    expected = scale * given
    if capped:
        expected = at_large * torch.tanh(expected / at_large)
    tolerance = _ROUNDINGS * torch.finfo(found.dtype).eps
    wrong = (~torch.isclose(found.double(), expected, rtol=tolerance, atol=0.0)).nonzero()
    if len(wrong):
        _, row, entry = wrong[0].tolist()
        _refuse(model, f"at entry {entry} of the vocabulary {_KNOWN[row]:g} became {float(found[0, row, entry]):g}")
    return scale, at_large if capped else None


def _refuse(model: nn.Module, why: str) -> NoReturn:
    raise LossError(
        f"{type(model).__name__} does more to its logits than to scale and cap them: {why}; use packed_loss on the "
        f"logits"
    )
