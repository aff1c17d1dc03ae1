"""Seeded leaks: a model made wrong in one known way and by a known amount, to prove that it is noticed.

Algorithm: ``plant`` hooks the outermost transformers model and one of its layers. The hook of the model reads where
documents start (``seams``). That of the layer adds to the layer's outputs what the kind of leak says: ``size * M @
inputs`` with a matrix of tokens by tokens, a ramp, or a gradient that is wrong. Other kinds change the positions that
modules are given, the labels, or the loss.
Guarantee: no class is patched and no parameter touched; taking the leak out removes the hooks, and the model computes
bit for bit what it did before. A document in a row of its own is left alone, but by the kinds that are wrong there
too: ``not_causal``, ``row_length``, ``row_mean`` and ``accumulation``.
Price: a matrix of T by T tokens and a product with it for each forward: for short rows.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hermetic.constants import IGNORE_INDEX
from hermetic.errors import ProbeError
from hermetic.seal.unpack import Unpacked
from hermetic.testing import seams
from hermetic.testing.seams import CallReader, Tokens, named_arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One way for packed documents to go wrong."""

    name: str
    what: str
    size: float | None = 1.0
    """What ``plant`` takes by default; ``None``: the kind has no size."""
    size_is: str = "weight of the other token's value"


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="one_key", what="one token of one document gets one token of another"),
        Kind(name="bias", what="every token gets all tokens of earlier documents, as by a mask of finite biases"),
        Kind(name="boundary_late", what="the first token of a document gets the whole document before"),
        Kind(name="boundary_early", what="every token of a document gets the last token of the document before"),
        Kind(name="convolution", what="the last inputs of a convolution are carried over the seam"),
        Kind(name="recurrence", what="a decaying state is carried over the seam"),
        Kind(name="no_gradient", what="every token gets all tokens of earlier documents, by a path without gradient"),
        Kind(
            name="backward",
            what="the forward is right, and the backward adds gradients of later documents",
            size_is="weight of the other token's gradient",
        ),
        Kind(
            name="backward_own",
            what="the forward is right, and gradients of all documents of a row but the first are too large",
            size=0.1,
            size_is="share by which they are too large",
        ),
        Kind(name="not_causal", what="every token gets the next one of its own document"),
        Kind(name="running_positions", what="modules are given positions that count on through the row", size=None),
        Kind(
            name="position_ramp",
            what="documents are moved by how far from the row's start they start",
            size=0.1,
            size_is="standard deviation of the step for each token",
        ),
        Kind(
            name="row_length",
            what="all tokens are moved by one over the root of the row's length",
            size_is="standard deviation of the step in a row of one token",
        ),
        Kind(name="targets", what="first tokens of documents keep their labels, over the seam", size=None),
        Kind(
            name="row_mean",
            what="the loss is divided by the slots of its rows, not by their supervised tokens",
            size_is="share of that loss in a mean with the right one",
        ),
        Kind(name="accumulation", what="the step's count of supervised tokens is ignored", size=None),
    )
}
"""Every kind that ``plant`` knows."""


@dataclass(kw_only=True, slots=True, eq=False)
class Planted:
    """A leak that is in a model until ``remove``, or to the end of a ``with`` block."""

    kind: str
    size: float
    where: str
    """The module that leaks, by name; empty for the model itself."""
    acted: int = 0
    """What it has changed so far, call by call: a leak that never acted proves nothing."""
    handles: list[RemovableHandle] = field(default_factory=list)

    def remove(self) -> None:
        """Give the model back as it was."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def __enter__(self) -> "Planted":  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def plant(model: nn.Module, kind: str, *, size: float | None = None, seed: int = 0) -> Planted:
    """Plant a leak into a model, sealed or not; its documents are those that each call says.

    Args:
        model: a transformers model, or a module around one.
        kind: one of ``KINDS``.
        size: how large; what it counts, and what it is by default, is said in ``KINDS``.
        seed: of the layer, of the pair of tokens of ``one_key``, and of directions.

    Returns:
        The leak, which is in the model from now on: ``remove`` it, or use it as a context manager.

    Raises:
        ProbeError: there is no such kind, it has no size, or the model is none of transformers or has no layers.

    Example:
        >>> import hermetic
        >>> from hermetic.atlas import build_tiny
        >>> from hermetic.testing.leaks import plant
        >>> model = hermetic.seal(build_tiny("llama"))
        >>> with plant(model, "one_key", size=1e-9):
        ...     hermetic.probe(model).verdict
        'leak'
        >>> hermetic.probe(model).verdict
        'sealed'
    """
    if kind not in KINDS:
        raise ProbeError(f"kind of leak {kind!r} is unknown; expected one of {', '.join(KINDS)}")
    default = KINDS[kind].size
    if size is not None and default is None:
        raise ProbeError(f"size is {size}, and a leak of kind {kind!r} has none; expected None")
    root = _transformers_model(model)
    where, module = _leaking_module(root, seed) if kind in _HIDDEN else ("", root)
    planted = Planted(kind=kind, size=float(size if size is not None else default or 0.0), where=where)
    planted.handles += _hooked(planted, root, module, seed)
    return planted


def _transformers_model(model: nn.Module) -> Any:
    from transformers import PreTrainedModel

    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ProbeError(f"{type(model).__name__} holds no transformers model; expected a PreTrainedModel or one around it")


def _leaking_module(root: nn.Module, seed: int) -> tuple[str, nn.Module]:
    """One of the layers, or the module around it that a seal runs document by document: outside, rows are packed."""
    lists = {name: found for name, found in root.named_modules() if isinstance(found, nn.ModuleList) and len(found)}
    if not lists:
        raise ProbeError(f"{type(root).__name__} has no list of layers (torch.nn.ModuleList); expected one to leak")
    layers = next(iter(lists))
    number = torch.randint(len(lists[layers]), (), generator=torch.Generator().manual_seed(seed))
    layer = f"{layers}.{number}"
    parts = layer.split(".")
    around = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    unpacked = (name for name in around if isinstance(vars(root.get_submodule(name)).get("forward"), Unpacked))
    where = next(unpacked, layer)
    return where, root.get_submodule(where)


def _hooked(planted: Planted, root: Any, module: nn.Module, seed: int) -> Iterator[RemovableHandle]:
    reader = CallReader()
    # before the hook of a seal, which takes the boundaries out of the call
    yield root.register_forward_pre_hook(reader, with_kwargs=True, prepend=True)
    if planted.kind in _HIDDEN:
        yield module.register_forward_hook(_HiddenHook(planted, reader, seed), with_kwargs=True)
    elif planted.kind == "running_positions":
        others = (x for x in root.modules() if x is not root and x is not root.get_input_embeddings())
        yield from (x.register_forward_pre_hook(_PositionHook(planted, reader), with_kwargs=True) for x in others)
    else:  # behind the hook of a seal, which masks labels
        step = _StepHook(planted, reader)
        yield root.register_forward_pre_hook(step.before, with_kwargs=True)
        yield root.register_forward_hook(step.after)


class _HiddenHook:
    """Changes what a layer gives."""

    def __init__(self, planted: Planted, reader: CallReader, seed: int) -> None:
        self.planted, self.reader, self.seed = planted, reader, seed

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        rows, slots = (1, len(hidden)) if hidden.ndim == 2 else hidden.shape[:2]
        tokens = self.reader.tokens(rows, slots)
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.is_floating_point())
        inputs = next((x for x in given if x.shape == hidden.shape), hidden)
        change = _HIDDEN[self.planted.kind]
        changed = change(inputs.flatten(0, -2), hidden.flatten(0, -2), tokens, self.planted.size, self.seed)
        self.planted.acted += tokens.has_seams
        return _with_first(output, changed.view(hidden.shape))


def _with_first(output: Any, first: torch.Tensor) -> Any:
    """The output of a layer, or a transformers ModelOutput, with another first tensor."""
    if isinstance(output, torch.Tensor):
        return first
    if isinstance(output, tuple):
        return (first, *output[1:])
    output[next(iter(output))] = first
    return output


Change = Callable[[torch.Tensor, torch.Tensor, Tokens, float, int], torch.Tensor]
"""From the inputs and outputs of a layer ``[T, C]``, the tokens, a size and a seed to other outputs."""


def _carrying(pattern: Callable[[Tokens], torch.Tensor]) -> Change:
    """Inputs of other tokens are added to a token's outputs."""

    def change(inputs: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, _: int) -> torch.Tensor:
        return outputs + size * (pattern(tokens).to(inputs) @ inputs)

    return change


def _one_key(inputs: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, seed: int) -> torch.Tensor:
    return _carrying(lambda tokens: seams.one_pair(tokens, seed))(inputs, outputs, tokens, size, seed)


def _no_gradient(inputs: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, seed: int) -> torch.Tensor:
    return _carrying(seams.foreign)(inputs.detach(), outputs, tokens, size, seed)


class _WrongBackward(torch.autograd.Function):
    """Gives its input, and to its gradient adds a product with a matrix."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(wrong)
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        (wrong,) = ctx.saved_tensors
        return upstream[0] + wrong @ upstream[0], None


def _backward(_inputs: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, _seed: int) -> torch.Tensor:
    return _wrong_backward(outputs, size * seams.foreign(tokens).T.to(outputs))


def _backward_own(
    _inputs: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, _seed: int
) -> torch.Tensor:
    return _wrong_backward(outputs, size * (tokens.slot > tokens.place).to(outputs).diag())


def _wrong_backward(outputs: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    changed: torch.Tensor = _WrongBackward.apply(outputs, wrong)  # type: ignore[no-untyped-call]  # torch has no types
    return changed


def _position_ramp(_: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, seed: int) -> torch.Tensor:
    moved = (tokens.slot - tokens.place).to(outputs)
    return outputs + size * moved[:, None] * _direction(outputs, seed)


def _row_length(_: torch.Tensor, outputs: torch.Tensor, tokens: Tokens, size: float, seed: int) -> torch.Tensor:
    length = int(tokens.slot.max()) + 1
    return outputs + size / math.sqrt(length) * _direction(outputs, seed)


def _direction(outputs: torch.Tensor, seed: int) -> torch.Tensor:
    """A wave over the features, of standard deviation 1: no draw, for instruments may hold draws fixed."""
    phase = torch.arange(outputs.shape[-1], dtype=torch.float64) * (seed + 1)
    return torch.cos(phase).mul(2**0.5).to(outputs)


_HIDDEN: dict[str, Change] = {
    "one_key": _one_key,
    "bias": _carrying(seams.foreign),
    "boundary_late": _carrying(seams.to_first_tokens),
    "boundary_early": _carrying(seams.from_last_tokens),
    "convolution": _carrying(seams.convolution),
    "recurrence": _carrying(seams.recurrence),
    "no_gradient": _no_gradient,
    "backward": _backward,
    "backward_own": _backward_own,
    "not_causal": _carrying(seams.next_of_own),
    "position_ramp": _position_ramp,
    "row_length": _row_length,
}
"""The kinds that change what a layer gives."""


class _PositionHook:
    """Changes the positions that a module is given."""

    def __init__(self, planted: Planted, reader: CallReader) -> None:
        self.planted, self.reader = planted, reader

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self.running, args)), {name: self.running(value) for name, value in kwargs.items()}

    def running(self, value: Any) -> Any:
        """Positions that restart with each document as ones that do not; anything else as it is."""
        if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.ndim < 1 or not value.numel():
            return value
        tokens = self.reader.tokens(value[..., 0].numel(), value.shape[-1])
        offset = value.flatten()[0]
        if not tokens.has_seams or not torch.equal(value.flatten(), tokens.place.to(value) + offset):
            return value
        self.planted.acted += 1
        return (tokens.slot.to(value) + offset).view_as(value)


class _StepHook:
    """Changes the labels that a model is given, and the loss that it gives."""

    def __init__(self, planted: Planted, reader: CallReader) -> None:
        self.planted, self.reader = planted, reader
        self.labels: torch.Tensor | None = None

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The hook of the call."""
        call = named_arguments(module, args, kwargs)
        if self.planted.kind == "accumulation":
            self.planted.acted += call.pop("num_items_in_batch", None) is not None
        self.labels = call.get("labels")
        if self.planted.kind == "targets" and self.labels is not None:
            tokens = self.reader.tokens(*self.labels.shape)
            behind = tokens.is_behind_seam.view(self.labels.shape).to(self.labels.device)
            call["labels"] = torch.where(behind, call["input_ids"], self.labels)
            self.planted.acted += tokens.has_seams
        return (), call

    def after(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """The hook of the output."""
        if self.planted.kind == "row_mean" and self.labels is not None:
            supervised = int((self.labels[:, 1:] != IGNORE_INDEX).sum())
            output.loss = output.loss * (1 + self.planted.size * (supervised / self.labels.numel() - 1))
            self.planted.acted += 1
        return output
