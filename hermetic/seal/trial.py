"""The measurement that a seal has to pass before ``seal`` returns.

A packed batch of five short documents goes through the model: gradients across every seam must be exactly
0.0, and each document's logits must be those of the document alone within the noise floor. A leak is traced
to the innermost module that first carries it.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hermetic.batch import Boundaries
from hermetic.errors import HermeticError, ProbeError, SealError
from hermetic.seal.channel import WITNESS, Ticket
from hermetic.seal.door import accepted
from hermetic.seal.inputs import Numbering
from hermetic.seal.measure import (
    FLOOR_FACTOR,
    FORWARD_FAILURES,
    GradientInfluence,
    first_leaking_module,
    frozen,
    gradient_influence,
    largest_difference,
    noise_floor,
)

_LENGTHS = (5, 4, 1, 3, 4)
"""Neighbours, a single token, two of one length, which run together, and a total (17) that is no head width."""

LONGER = (67, 3, 73, 30)
"""For what reaches farther than the short documents together: compressed keys, dilated convolutions."""

_OFFSETS = (0, 1, 2)
"""Positions at which models are known to start: 0, and one beyond the padding token's, which is 0 or 1."""


_MEANINGS = ("pad", "eos", "bos", "sep", "mask")
"""Tokens that models may treat by their ids. A document may hold each of them as a token like any other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the check found on a model that passed it."""

    leak: float
    equivalence: float
    noise_floor: float
    visited: dict[int, Ticket]
    """The attention modules that took part, by ``id``."""


class Trial:
    """A few documents of random tokens for one model, and the ways to run them through it."""

    def __init__(self, model: nn.Module, lengths: tuple[int, ...] = _LENGTHS) -> None:
        """Draw the tokens.

        Raises:
            SealError: the model has no embedding of tokens, or no weights yet.
        """
        self.model = model
        self.lengths = lengths
        device, self.vocabulary = _embedding_facts(model)
        self.generator = torch.Generator().manual_seed(0)
        special = _special_ids(model, self.vocabulary)
        self.ordinary = self._drawn_without(special).to(device)
        self.ids = _with_special(self.ordinary, special, lengths)

    def _drawn_without(self, special: Sequence[int]) -> torch.Tensor:
        """Ids of the vocabulary, without the special ones where there are others."""
        kept = torch.ones(self.vocabulary, dtype=torch.bool)
        kept[list(special)] = len(special) == self.vocabulary
        ids = kept.nonzero().flatten()
        return ids[torch.randint(0, len(ids), (sum(self.lengths),), generator=self.generator)]

    def packed(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """``[T, V]`` logits of the documents in one row; optionally of other tokens."""
        return _forward(self.model, self.ids if ids is None else ids, self.lengths)

    def as_one_document(self) -> torch.Tensor:
        """``[T, V]`` logits of all the tokens as a single document."""
        return _forward(self.model, self.ids, None)

    def alone(self, document: int) -> torch.Tensor:
        """Logits of one of the documents as a row of its own."""
        return _forward(self.model, self.ids.split(self.lengths)[document], None)

    @torch.no_grad()
    def numbering(self) -> Numbering:
        """How the model numbers a document; as if by place from 0 where that cannot be told."""
        starts = (start for start in _OFFSETS if self._numbers_by_place(self.ordinary, start))
        start = next(starts, None)
        if start is None:
            return Numbering()  # it takes no positions as everybody counts them
        return Numbering(start=start, by_token=not self._numbers_by_place(self.ids, start))

    def _numbers_by_place(self, ids: torch.Tensor, start: int) -> bool:
        """Whether these tokens get the logits that they get with positions from ``start`` on."""
        positions = torch.arange(start, start + len(ids), device=ids.device)
        return self._is_same_with(ids, position_ids=positions[None])

    @torch.no_grad()
    def minds_a_mask_of_ones(self) -> bool:
        """Whether a mask that hides nothing changes what one document gets: XLM makes another from the tokens."""
        ones = torch.ones_like(self.ids)[None]
        return self._is_same_with(self.ordinary, attention_mask=ones) and not self._is_same_with(
            self.ids, attention_mask=ones
        )

    def _is_same_with(self, ids: torch.Tensor, **others: torch.Tensor) -> bool:
        """Whether these tokens as one document get the same logits when more is said of them."""
        default = _forward(self.model, ids, None)
        try:
            given = _forward(self.model, ids, None, **others)
        except SealError:
            return False
        same = float(default.abs().max()) * math.sqrt(torch.finfo(default.dtype).eps)
        return largest_difference(default, given) <= same

    @torch.no_grad()
    def is_as(self, before: torch.Tensor) -> bool:
        """Whether all tokens as one document still give the logits of ``before``, up to rounding."""
        try:
            after = self.as_one_document()
        except SealError:
            return False
        if torch.equal(after.isfinite(), before.isfinite()):  # the gradients will tell of what is not finite
            after, before = after.nan_to_num(), before.nan_to_num()
        difference = largest_difference(after, before)
        return difference == 0.0 or difference <= FLOOR_FACTOR * noise_floor(self.as_one_document)

    def has_positions_for(self, tokens: int) -> bool:
        """Whether the model has positions for a document of so many tokens, as far as its configuration says."""
        config = getattr(self.model, "config", None)
        limit = getattr(config, "max_position_embeddings", None)
        return not isinstance(limit, int) or tokens <= limit

    def leaks(self) -> bool:
        """Whether a gradient crosses a seam; a row so long that the model fails on it fails openly, and leaks nothing.

        The model has to be in evaluation mode.
        """
        try:
            with torch.no_grad():
                self.packed()
        except SealError:
            return False
        try:
            self._gradients()
        except SealError:
            return True
        return False

    def measure(self) -> Measured:
        """Measure the model as it is now; it has to be in evaluation mode.

        Raises:
            SealError: the model cannot run packed documents, leaks, or computes something else than alone.
        """
        visited: dict[int, Ticket] = {}
        token = WITNESS.set(visited)
        try:
            found = self._gradients()
        finally:
            WITNESS.reset(token)
        with torch.no_grad():
            packed = self.packed().split(self.lengths)
            alone = [self.alone(document) for document in range(len(self.lengths))]
            floor = noise_floor(self.packed)
        equivalence = max(largest_difference(p, a) for p, a in zip(packed, alone, strict=True))
        if not equivalence <= FLOOR_FACTOR * floor:
            raise SealError(
                f"{type(self.model).__name__} isolates packed documents but does not compute what it computes for each "
                f"alone: logits differ by {equivalence:.2g}, the noise floor is {floor:.2g}. Its positions depend on "
                "the row and not on position_ids; train this model on padded rows"
            )
        return Measured(leak=_across(found), equivalence=equivalence, noise_floor=floor, visited=visited)

    def _gradients(self) -> GradientInfluence:
        name = type(self.model).__name__
        try:
            with frozen(self.model.parameters()):
                found = gradient_influence(self.packed, self.ids, self.lengths, generator=self.generator)
        except (ProbeError, NotImplementedError) as error:
            raise SealError(f"{name}: its seal cannot be measured: {error}") from error
        if _across(found) != 0.0:
            raise SealError(self._leak_message(_across(found)))
        return found

    def _leak_message(self, leak: float) -> str:
        swapped = self.ids.clone()
        first = slice(0, self.lengths[0])
        swapped[first] = (self.ids[first] + 1) % self.vocabulary
        found = first_leaking_module(self.model, self.packed, self.ids, swapped)
        where = "a module that could not be singled out" if found is None else f"{found[0]} ({found[1]})"
        return (
            f"{type(self.model).__name__} cannot be sealed: {where} carries one document into another (largest "
            f"gradient across a seam {leak:.2g}, expected 0). It mixes tokens outside of transformers' attention "
            "interface; train this model on padded rows"
        )


def _across(found: GradientInfluence) -> float:
    """Largest gradient from one document to another."""
    return float(found.across.clone().fill_diagonal_(0.0).max())


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
    if embedding.weight.is_inference():
        raise SealError(
            f"{type(model).__name__} has weights that were made under torch.inference_mode(), which take no gradients, "
            "so its seal cannot be measured; load it outside of that"
        )
    return embedding.weight.device, embedding.num_embeddings


def _special_ids(model: nn.Module, vocabulary: int) -> list[int]:
    """The ids in the vocabulary that have a meaning to the model, as far as it says so; the padding's first."""
    configs = {id(found): found for module in model.modules() if (found := getattr(module, "config", None)) is not None}
    said: list[Any] = [getattr(config, f"{name}_token_id", None) for name in _MEANINGS for config in configs.values()]
    said += [module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding)]
    ids = [i for found in said for i in (found if isinstance(found, list) else [found]) if isinstance(i, int)]
    return [i for i in dict.fromkeys(ids) if 0 <= i < vocabulary]


def _with_special(ids: torch.Tensor, special: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    """The same tokens with special ones inside of documents: (5, 3) has room for three, in slots 1, 3 and 6."""
    firsts = [sum(lengths[:document]) for document in range(len(lengths))]
    slots = [first + place for first, length in zip(firsts, lengths, strict=True) for place in range(1, length - 1, 2)]
    number = min(len(slots), len(special))
    ids = ids.clone()
    ids[slots[:number]] = torch.tensor(special[:number], dtype=ids.dtype, device=ids.device)
    return ids


def _forward(model: nn.Module, ids: torch.Tensor, lengths: Sequence[int] | None, **others: Any) -> torch.Tensor:
    """Logits (or last hidden states, for a model without a head) of one row, ``[T, V]``."""
    arguments: dict[str, Any] = {"input_ids": ids[None], "use_cache": False, **others}
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
