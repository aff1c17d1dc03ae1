"""The measurements that sealing and probing share.

Each works on one packed batch and a function that runs the model on token ids. None needs a second copy of
the model, touches a parameter's ``.grad`` or leaves a hook behind.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import torch
from torch import nn

from hermetic.errors import ProbeError
from hermetic.seal.aligned import UNPACKED

Run = Callable[[], torch.Tensor]
"""Runs the model once and returns its logits as ``[T, V]``."""

FORWARD_FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    ImportError,
    AttributeError,
    AssertionError,
)
"""What a model's own forward raises on an input that it cannot take."""


@contextmanager
def evaluation(module: nn.Module | None) -> Iterator[None]:
    """Evaluation mode (no dropout, no checkpointing) for the duration; each module's own flag is restored."""
    flags = [] if module is None else [(child, child.training) for child in module.modules()]
    if module is not None:
        module.eval()
    try:
        yield
    finally:
        for child, training in flags:
            child.training = training


@contextmanager
def frozen(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let no gradient reach these parameters for the duration; each one's own flag is restored."""
    flags = [(parameter, parameter.requires_grad) for parameter in parameters]
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tap:
    """The output of one embedding of a batch's tokens, made a leaf."""

    leaf: torch.Tensor
    """``[..., C]``, one slot for each element of what was embedded."""
    tokens: torch.Tensor
    """``[slots]``: the token of the batch in each slot, ``-1`` in a pad."""

    def gradient_per_token(self, num_tokens: int) -> torch.Tensor:
        """``[T]``: the largest magnitude of the gradient at each token; takes it away."""
        found = torch.zeros(num_tokens + 1, dtype=torch.float64)
        if self.leaf.grad is not None:
            largest = self.leaf.grad.abs().amax(dim=-1).flatten().double().cpu()
            found.scatter_reduce_(0, self.tokens.cpu() % (num_tokens + 1), largest, reduce="amax")
            self.leaf.grad = None
        return found[:num_tokens]


@contextmanager
def tapped_embeddings(input_ids: torch.Tensor) -> Iterator[list[Tap]]:
    """Make the outputs of every embedding of exactly these ids leaves that require a gradient; yields them.

    Works for any callable that embeds tokens through ``torch.nn.Embedding``, whatever it is wrapped in, and for the
    groups of documents in which an unpacked module embeds them.
    """
    taps: list[Tap] = []
    ids = input_ids.flatten()

    def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        fed = arguments[0] if arguments else None
        if not isinstance(module, nn.Embedding) or not isinstance(fed, torch.Tensor):
            return None
        tokens = _tokens_of(fed.flatten().to(ids.device), ids)
        if tokens is None or output[..., 0].numel() != tokens.numel():
            return None  # the latter embeds positions, of which all rows share one
        leaf = output.detach().requires_grad_()
        taps.append(Tap(leaf=leaf, tokens=tokens))
        return leaf.clone()  # some models scale their embeddings in place, which a leaf does not allow

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        yield taps
    finally:
        handle.remove()


def _tokens_of(fed: torch.Tensor, ids: torch.Tensor) -> torch.Tensor | None:
    """The token of the batch behind each embedded id; ``None`` when it is something else that is embedded."""
    group = UNPACKED.get()
    if group is None:
        same = fed.numel() == ids.numel() and torch.equal(fed, ids)
        return torch.arange(ids.numel(), device=ids.device) if same else None
    stream, real = group.stream.flatten().to(ids.device), group.is_real.flatten().to(ids.device)
    if fed.numel() != stream.numel() or int(stream.max()) >= ids.numel():
        return None
    if not torch.equal(fed[real], ids[stream[real]]):
        return None
    return stream.masked_fill(~real, -1)


def covering_groups(count: int) -> list[list[int]]:
    """Groups such that for any two documents i and j, in this order, some group holds i and not j.

    Each document is in a set of its own of half the groups, and no set of that size holds another (Sperner), so
    the number of groups grows with the logarithm: 6 for 20 documents, 11 for 400. Up to 4 documents, each is its
    own group: ``covering_groups(3) == [[0], [1], [2]]``.
    """
    number = next(n for n in range(1, count + 1) if math.comb(n, n // 2) >= count)
    if number >= count:
        return [[document] for document in range(count)]
    sets = list(islice(combinations(range(number), number // 2), count))
    return [[document for document in range(count) if group in sets[document]] for group in range(number)]


def by_pairs(groups: Sequence[Sequence[int]], readings: Sequence[torch.Tensor]) -> torch.Tensor:
    """``[D, D]``: from a reading ``[D]`` of every group, that of document i's groups at document j.

    Off the diagonal the smallest over the groups that hold i and not j: one of them at 0 clears the pair, and where
    there is none it is infinite. On the diagonal the largest over the groups that hold i.
    """
    count = len(readings[0])
    pairs = torch.full((count, count), torch.inf, dtype=torch.float64)
    pairs.fill_diagonal_(0.0)
    for group, reading in zip(groups, readings, strict=True):
        inside = torch.zeros(count, dtype=torch.bool)
        inside[list(group)] = True
        apart = inside[:, None] & ~inside[None, :]
        pairs = torch.where(apart, torch.minimum(pairs, reading.double()), pairs)
        own = (inside * reading).diag().double()
        pairs = torch.where(torch.eye(count, dtype=torch.bool), torch.maximum(pairs, own), pairs)
    return pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientInfluence:
    """Gradients of logits with respect to token embeddings, the largest magnitudes."""

    across: torch.Tensor
    """``[D, D]`` float64: of document i's logits (or of those of a group that holds i) at document j's embeddings."""
    measured: torch.Tensor
    """``[D, D]`` booleans: the entries of ``across`` that were measured; others are 0.0 and say nothing."""
    future: float
    """Of the first half of each document's logits at the embeddings of its second half."""


def gradient_influence(
    run: Run,
    input_ids: torch.Tensor,
    lengths: Sequence[int],
    *,
    generator: torch.Generator,
    groups: Sequence[Sequence[int]] | None = None,
) -> GradientInfluence:
    """Which document reaches which, by gradients: off the diagonal a sealed model has exact zeros.

    One backward for each of ``groups`` of documents; by default of those that tell any two documents apart.

    The logits are contracted with a random sign for each token and each id, so that no sum cancels by construction.
    A zero attention weight has a zero gradient, and the smallest that is not zero shows, down to 1e-30 and below.
    Uses ``backward`` alone, so it works under both kinds of gradient checkpointing; freeze the parameters first.

    Raises:
        ProbeError: no ``torch.nn.Embedding`` was fed these ids, or no gradient comes back that says anything: the
            logits are detached, do not depend on the embeddings, or have gradients that are not finite.
    """
    with torch.enable_grad(), tapped_embeddings(input_ids) as taps:
        logits = run()
        if not taps:
            raise ProbeError(
                "the gradient instrument saw no torch.nn.Embedding that was fed the batch's input_ids, and it takes "
                "gradients at one; choose the other instruments with instruments=('swap', 'solo')"
            )
        if not logits.requires_grad:
            raise ProbeError(
                "the gradient instrument got logits that are detached from the embeddings; run the model without "
                "torch.no_grad() and detach(), or choose the other instruments with instruments=('swap', 'solo')"
            )
        signs = torch.randint(0, 2, logits.shape, generator=generator, dtype=torch.int8)
        document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        groups = covering_groups(len(lengths)) if groups is None else groups
        readings = [
            _largest_per_document(_pull(logits, signs, torch.isin(document, torch.tensor(list(group))), taps), lengths)
            for group in groups
        ]
        early = _first_halves(lengths)
        later = _pull(logits, signs, early, taps)[~early]
    if not all(bool(reading.isfinite().all()) for reading in readings):
        raise ProbeError("the gradients at the embeddings are not finite; check the weights for NaN, and the precision")
    pairs = by_pairs(groups, readings)
    measured = pairs != torch.inf
    found = GradientInfluence(
        across=pairs.masked_fill(~measured, 0.0),
        measured=measured,
        future=float(later.max()) if later.numel() else 0.0,
    )
    _refuse_blind(found)
    return found


def _refuse_blind(found: GradientInfluence) -> None:
    if float(found.across.diagonal().max()) == 0.0:
        raise ProbeError(
            "the gradient of every document at its own embeddings is exactly 0, so zeros between documents would "
            "say nothing; expected logits that depend on the tokens (are the output weights all zero?)"
        )


def _pull(logits: torch.Tensor, signs: torch.Tensor, rows: torch.Tensor, taps: list[Tap]) -> torch.Tensor:
    """``[T]``: the largest magnitude at each token's embeddings of the gradient of some tokens' logits, with signs.

    ``signs`` are 0 and 1, ``[T, V]``; ``rows`` are booleans ``[T]``.
    """
    for tap in taps:
        tap.leaf.grad = None
    upstream = signs.to(logits).mul_(2).sub_(1).mul_(rows.to(logits)[:, None])
    logits.backward(upstream, retain_graph=True)
    return torch.stack([tap.gradient_per_token(len(logits)) for tap in taps]).amax(dim=0)


def _first_halves(lengths: Sequence[int]) -> torch.Tensor:
    """``[T]`` booleans: (3, 2) is [1, 1, 0, 1, 0]."""
    return torch.cat([torch.arange(length) < (length + 1) // 2 for length in lengths])


def _largest_per_document(per_token: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    parts = per_token.split(list(lengths))
    return torch.stack([part.max() if part.numel() else part.new_zeros(()) for part in parts])


FLOOR_FACTOR = 10.0
"""Differences up to this many noise floors are noise: the floor is the largest of a few draws, not a bound."""


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest absolute difference in float64; 0.0 for empty tensors and exactly equal ones."""
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    block = _BLOCK_OF_CPU if a.device.type == "cpu" else _BLOCK
    rows = max(1, block * len(a) // a.numel())
    blocks = zip(a.split(rows), b.split(rows), strict=True)
    ends = [torch.stack(x.double().sub_(y).aminmax()) for x, y in blocks]
    return float(torch.stack(ends).abs().max())


_BLOCK = 2**22
"""Numbers that are compared at a time: logits of a long row in float64 are larger than what made them."""

_BLOCK_OF_CPU = 2**16
"""As many as its cache holds."""


_DRAWS = 3
"""Perturbed runs per noise floor; the largest counts."""

UNMEASURED_ROUNDINGS = 100
"""Noise floor, in roundings of the largest logit, of a subject that has no module to perturb."""


def noise_floor(run: Run) -> float:
    """Largest logit difference that rounding alone may make, measured on this very model, batch and dtype.

    The model is run again with the output of each of its innermost modules moved by one rounding, up or down at
    random; how far the logits move is what another kernel, shape or order of summation may do. Lengths and
    neighbours are the same in all runs, so nothing that packing does to a document is taken for noise.
    """
    exact = run()
    rounding = float(exact.abs().max()) * torch.finfo(exact.dtype).eps
    noise = 0.0
    for seed in range(_DRAWS):
        with perturbed_by_roundings(seed):
            noise = max(noise, largest_difference(exact, run()))
    return max(noise, rounding) if noise else UNMEASURED_ROUNDINGS * rounding


@contextmanager
def perturbed_by_roundings(seed: int) -> Iterator[None]:
    """Move each floating output of every module without children by one rounding, at random, for the duration."""
    generators: dict[torch.device, torch.Generator] = {}

    def hook(module: nn.Module, _arguments: tuple[Any, ...], output: Any) -> Any:
        if next(module.children(), None) is not None:
            return None
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return None
        if output.device not in generators:
            generators[output.device] = torch.Generator(output.device).manual_seed(seed)
        signs = torch.randint(0, 2, output.shape, generator=generators[output.device], device=output.device)
        return output * (1 + torch.finfo(output.dtype).eps * (2 * signs.to(output.dtype) - 1))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def first_leaking_module(
    model: nn.Module, run_with: Callable[[torch.Tensor], object], ids: torch.Tensor, swapped: torch.Tensor
) -> tuple[str, str] | None:
    """The innermost module that first lets a changed token reach an unchanged one: its name and class.

    ``ids`` and ``swapped`` are ``[T]`` and differ in one document. A module leaks first if its inputs agree
    at every unchanged token and its output does not.
    """
    kept = (ids == swapped).cpu()
    before = _recorded(model, run_with, ids, kept)
    after = _recorded(model, run_with, swapped, kept)
    names = {id(module): name for name, module in model.named_modules()}
    for one, other in zip(before, after, strict=False):
        if one.module is not other.module:
            return None
        if one.inputs == other.inputs and one.outputs != other.outputs:
            return names[id(one.module)], type(one.module).__name__
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    module: nn.Module
    inputs: list["_Print"]
    outputs: list["_Print"]


def _recorded(
    model: nn.Module, run_with: Callable[[torch.Tensor], object], ids: torch.Tensor, kept: torch.Tensor
) -> list[_Call]:
    calls: list[_Call] = []

    def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        calls.append(
            _Call(
                module=module,
                inputs=_kept_rows((*arguments, *named.values()), kept),
                outputs=_kept_rows((output,), kept),
            )
        )

    handles = [m.register_forward_hook(hook, with_kwargs=True) for m in model.modules()]
    try:
        with torch.no_grad():
            run_with(ids)
    finally:
        for handle in handles:
            handle.remove()
    return calls


_Print = tuple[tuple[int, ...], int]
"""Shape and fingerprint of a tensor: what is compared bit by bit need not be kept."""


def _kept_rows(values: Sequence[Any], kept: torch.Tensor) -> list[_Print]:
    """Fingerprints of the slices at unchanged tokens of every floating tensor that has a token axis."""
    found: list[_Print] = []
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if value.ndim > 2 and 1 < value.shape[0] < kept.numel() == value.shape[0] * value.shape[1]:
                value = value.flatten(0, 1)  # several rows: [B, S, ...] is one stream  # noqa: PLW2901 - same numbers
            axes = [axis for axis, size in enumerate(value.shape) if size == kept.numel()]
            if axes:
                found.append(_fingerprint(value.detach().movedim(axes[0], 0)[kept.to(value.device)]))
        elif isinstance(value, (tuple, list)):
            found += _kept_rows(value, kept)
        elif isinstance(value, dict):
            found += _kept_rows(list(value.values()), kept)
    return found


_ODD = 0x4F1BBCDCBFA53E0B


def _fingerprint(tensor: torch.Tensor) -> _Print:
    """The sum of all bit patterns, each times a number of its place, modulo 2^64."""
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = (tensor + 0.0).contiguous().view(widths[tensor.element_size()]).flatten().long()  # -0.0 is 0.0
    places = torch.arange(bits.numel(), device=bits.device) * _ODD + _ODD
    return tuple(tensor.shape), int((bits * places).sum())
