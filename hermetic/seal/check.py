"""The measurement that a seal has to pass before ``seal`` returns.

A packed batch of four short documents goes through the model: gradients across every seam must be exactly
0.0, and each document's logits must be those of the document alone within the noise floor. A leak is traced
to the innermost module that first carries it.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hermetic.batch import Boundaries
from hermetic.errors import HermeticError, ProbeError, SealError
from hermetic.seal.channel import WITNESS, Ticket
from hermetic.seal.door import accepted
from hermetic.seal.measure import (
    FLOOR_FACTOR,
    FORWARD_FAILURES,
    GradientInfluence,
    evaluation,
    first_leaking_module,
    frozen,
    gradient_influence,
    largest_difference,
    noise_floor,
)

_LENGTHS = (5, 4, 1, 7)
"""Three neighbours, a single token, and a total (17) that is no head width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the check found on a model that passed it."""

    leak: float
    equivalence: float
    noise_floor: float
    visited: dict[int, Ticket]
    """The attention modules that took part, by ``id``."""


def check_isolation(model: nn.Module) -> Measured:
    """Measure a freshly sealed model.

    Raises:
        SealError: the model cannot run packed documents, leaks, or computes something else than alone.
    """
    device, vocabulary = _embedding_facts(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (sum(_LENGTHS),), generator=generator).to(device)
    visited: dict[int, Ticket] = {}
    with evaluation(model):
        with torch.no_grad():
            _forward(model, ids, None)  # a model that cannot run alone is not blamed for packing
        token = WITNESS.set(visited)
        try:
            found = _measured_gradients(model, ids, generator)
        finally:
            WITNESS.reset(token)
        with torch.no_grad():
            packed = _forward(model, ids, _LENGTHS).split(_LENGTHS)
            documents = ids.split(_LENGTHS)
            alone = [_forward(model, document, None) for document in documents]
            floor = noise_floor(lambda: _forward(model, ids, _LENGTHS))
    equivalence = max(largest_difference(p, a) for p, a in zip(packed, alone, strict=True))
    if not equivalence <= FLOOR_FACTOR * floor:
        raise SealError(
            f"{type(model).__name__} isolates packed documents but does not compute what it computes for each alone: "
            f"logits differ by {equivalence:.2g}, the noise floor is {floor:.2g}. Its positions depend on the row "
            "and not on position_ids; train this model on padded rows"
        )
    return Measured(leak=_across(found), equivalence=equivalence, noise_floor=floor, visited=visited)


def _embedding_facts(model: nn.Module) -> tuple[torch.device, int]:
    get_embedding = getattr(model, "get_input_embeddings", None)
    embedding = get_embedding() if callable(get_embedding) else None
    if not isinstance(embedding, nn.Embedding):
        raise SealError(
            f"{type(model).__name__} has no torch.nn.Embedding as its input embedding, so its seal cannot be measured; "
            "seal the transformers model before wrapping it"
        )
    if embedding.weight.is_meta:
        raise SealError(
            f"{type(model).__name__} has no weights yet (they are on the meta device), so its seal cannot be measured; "
            "load the weights first"
        )
    return embedding.weight.device, embedding.num_embeddings


def _forward(model: nn.Module, ids: torch.Tensor, lengths: Sequence[int] | None) -> torch.Tensor:
    """Logits (or last hidden states, for a model without a head) of one row, ``[T, V]``."""
    arguments: dict[str, Any] = {"input_ids": ids[None], "use_cache": False}
    if lengths is not None:
        arguments["document_ids"] = Boundaries.from_lengths(lengths).document_ids
    try:
        output = model(**accepted(inspect.signature(model.forward), arguments))
    except HermeticError as error:
        raise SealError(f"{type(model).__name__} cannot be sealed: {error}") from error
    except FORWARD_FAILURES as error:
        what = "token ids alone" if lengths is None else "packed rows, which its own attention cannot take"
        raise SealError(
            f"{type(model).__name__} cannot be sealed: its forward failed on {what} ({type(error).__name__}: {error}). "
            "Train this model on padded rows"
        ) from error
    logits: torch.Tensor = output.logits if hasattr(output, "logits") else output[0]
    if logits.shape[:2] != (1, ids.numel()):
        raise SealError(
            f"{type(model).__name__} cannot be sealed: it made outputs of shape {tuple(logits.shape)} from "
            f"{ids.numel()} tokens, so it adds tokens of its own to each row; expected one output per token"
        )
    return logits[0]


def _measured_gradients(model: nn.Module, ids: torch.Tensor, generator: torch.Generator) -> GradientInfluence:
    try:
        with frozen(model.parameters()):
            found = gradient_influence(lambda: _forward(model, ids, _LENGTHS), ids, _LENGTHS, generator=generator)
    except (ProbeError, NotImplementedError) as error:
        raise SealError(f"{type(model).__name__}: its seal cannot be measured: {error}") from error
    if _across(found) != 0.0:
        raise SealError(_leak_message(model, ids, _across(found)))
    return found


def _across(found: GradientInfluence) -> float:
    """Largest gradient from one document to another."""
    return float(found.across.clone().fill_diagonal_(0.0).max())


def _leak_message(model: nn.Module, ids: torch.Tensor, leak: float) -> str:
    swapped = ids.clone()
    first = slice(0, _LENGTHS[0])
    swapped[first] = (ids[first] + 1) % _embedding_facts(model)[1]
    found = first_leaking_module(model, lambda x: _forward(model, x, _LENGTHS), ids, swapped)
    where = "a module that could not be singled out" if found is None else f"{found[0]} ({found[1]})"
    return (
        f"{type(model).__name__} cannot be sealed: {where} carries one document into another (largest "
        f"gradient across a seam {leak:.2g}, expected 0). It mixes tokens outside of transformers' attention "
        "interface; train this model on padded rows"
    )
