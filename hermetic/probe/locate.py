"""Where a leak is, what kind it is and how far it reaches; and the same for every token mixer of a model.

Algorithm: one packed forward over few tokens is recorded, and each call is repeated by itself, asked by gradients
whether it carries one document into another (``hermetic.seal.replay``). The first that does is the place. Then all
that lies before a seam is changed in its inputs: how many tokens behind the seam move is its reach, how many
before the seam matter its depth. And the last two tokens before the seam change places, with all that belongs to
them: attention does not mind, for it sums over a set; convolutions and recurrences do. (Attention with a position
bias of its own does; it is known by the mask of pairs that it is given.)
Guarantee: the kind is what was measured of that call, never a class name; what none of the patterns fits is a leak
without a kind. A leak outside of all modules, or one without a gradient, is looked for by comparing two runs.
Price: the activations of one forward over at most ``MAX_TOKENS`` tokens; per module one forward and a backward per
document, and some twenty forwards of the module that leaks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.errors import HermeticError
from hermetic.probe.compare import MAX_TOKENS, place_by_comparison
from hermetic.probe.observe import CACHES
from hermetic.probe.report import LayerReading
from hermetic.probe.subject import Subject
from hermetic.seal.aligned import Axes, Path, mapped, tensors_in
from hermetic.seal.channel import PackedForward, reopened
from hermetic.seal.distortion import distorted
from hermetic.seal.measure import FORWARD_FAILURES, frozen
from hermetic.seal.replay import TOKEN_WISE, Arguments, Call, axes_of, carried, recorded

_MAX_DOCUMENTS = 4
"""Each is a backward through every module."""

Kind = Literal["attention", "boundary", "recurrence", "convolution"]

_CHANGE = 0.5
"""Inputs are moved by this share of their own size, and by as much: far beyond rounding, and no value explodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The first module that carries one document into another."""

    where: str
    kind: Kind | None = None
    reach: int | None = None
    """Tokens behind a seam that move; ``None``: all of them, or not known."""
    depth: int | None = None
    """Tokens before a seam that matter; ``None``: all of them, or not known."""


NOWHERE = "outside of the modules that were seen"


def leak_place(subject: Subject, batch: PackedBatch, source: int) -> Place:
    """The first leaking module: by isolated replay, then by comparing two runs that differ in document ``source``."""
    small = shortened(subject, batch)
    unread: set[int] = set()
    for root, call, axes in _calls(subject, small):
        reading = _Reading(subject=subject, call=call, axes=axes, lengths=small.boundaries.document_lengths)
        influence = reading.carried()
        unread |= {id(call.module)} if math.isnan(influence) else set()
        if influence > 0.0:
            earlier = place_by_comparison(subject, batch, source) if unread else None
            if earlier is not None and id(earlier[1]) in unread:
                return Place(where=_where(*earlier))
            return Place(
                where=_where(root, call.module), kind=reading.kind(), reach=reading.reach(), depth=reading.depth()
            )
    found = place_by_comparison(subject, batch, source)
    return Place(where=NOWHERE if found is None else _where(*found))


def read_layers(subject: Subject, batch: PackedBatch) -> tuple[LayerReading, ...]:
    """Every innermost module that mixes tokens of a document, with what it carries from one document into another."""
    small = shortened(subject, batch)
    found: list[LayerReading] = []
    mixing: set[int] = set()
    for root, call, axes in _calls(subject, small):
        if any(id(child) in mixing for child in call.module.modules()):
            continue
        reading = _Reading(subject=subject, call=call, axes=axes, lengths=small.boundaries.document_lengths)
        if not reading.mixes_tokens():
            continue
        mixing.add(id(call.module))
        influence = reading.influence()
        found.append(
            LayerReading(
                name=_name(root, call.module),
                kind=type(call.module).__name__,
                influence=influence,
                reach=reading.reach() if influence else 0,
            )
        )
    return tuple(found)


def distorted_place(subject: Subject, batch: PackedBatch, document: int) -> tuple[str, int] | None:
    """The first token mixer that gives other outputs packed than alone on equal inputs, and from which token on.

    The token is counted from the start of ``document``; ``None`` when no mixer does. What is done to tokens around
    mixers, by a layer to what its attention gives, is nothing that is done to their context.
    """
    lengths = batch.boundaries.document_lengths
    if sum(lengths) > MAX_TOKENS or not all(lengths):
        return None
    singles = [collate([{"input_ids": ids}]) for ids in batch.unpack(batch.input_ids)]
    for root in subject.modules:
        packed = recorded(root, lambda: subject.logits(batch))
        alone = [recorded(root, lambda one=one: subject.logits(one)).calls for one in singles]  # type: ignore[misc]
        for call in distorted(packed.calls, alone, lengths):
            inside = {id(module) for module in call.module.modules()} - {id(call.module)}
            parts = (part for part in packed.calls if id(part.module) in inside)
            if _mixes(subject, call, lengths) and not any(_mixes(subject, part, lengths) for part in parts):
                counterpart = next(other for other in alone[document] if other.module is call.module)
                token = _first_difference(call, counterpart, lengths, document)
                return f"{_name(root, call.module)} ({type(call.module).__name__})", token
    return None


def _mixes(subject: Subject, call: Call, lengths: tuple[int, ...]) -> bool:
    if type(call.module) in TOKEN_WISE:
        return False
    try:
        axes = axes_of(call.arguments, sum(lengths))
    except HermeticError:  # sizes alone do not tell which axes are the tokens'
        return False
    return _Reading(subject=subject, call=call, axes=axes, lengths=lengths).mixes_tokens()


def shortened(subject: Subject, batch: PackedBatch) -> PackedBatch:
    """The first four documents of a batch, cut to few tokens, and to a number that is no width of the model.

    Where tokens lie in a tensor is told by sizes, so no other axis may be as long as the row. Where documents are too
    short to be cut, the last one goes on with its own tokens.
    """
    widths = {size for parameter in subject.parameters() for size in parameter.shape}
    ids = [part for part in batch.unpack(batch.input_ids) if part.numel()][:_MAX_DOCUMENTS]
    ids = [part[: MAX_TOKENS // len(ids)] for part in ids]
    total = sum(map(len, ids))
    sizes = (*range(total, 2 * len(ids), -1), *range(total + 1, 2 * total + 2 * len(ids)))
    size = next((size for size in sizes if all(width % size for width in widths)), total)
    while sum(map(len, ids)) > size:
        longest = max(range(len(ids)), key=lambda document: len(ids[document]))
        ids[longest] = ids[longest][:-1]
    missing = size - sum(map(len, ids))
    ids[-1] = ids[-1].repeat(1 + missing)[: len(ids[-1]) + missing]
    return collate([{"input_ids": part} for part in ids])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """One call, repeated by itself on other inputs."""

    subject: Subject
    call: Call
    axes: Axes
    lengths: tuple[int, ...]

    @property
    def packed(self) -> PackedForward:
        return PackedForward(lengths=self.lengths, num_rows=1, num_slots=sum(self.lengths))

    def carried(self) -> float:
        """Largest gradient across documents; NaN for a call that cannot be repeated."""
        return carried(self.call, self.packed, self.lengths, self.axes)

    def influence(self) -> float:
        """Largest gradient across documents; 0.0 also for a call that cannot be repeated."""
        found = self.carried()
        return 0.0 if math.isnan(found) else found

    def mixes_tokens(self) -> bool:
        """Whether it carries one half of a document into the other."""
        halves = [part for length in self.lengths for part in (length // 2, length - length // 2) if part]
        return carried(self.call, self.packed, halves, self.axes) > 0.0

    def seam(self) -> int:
        """The first token of the longest document that has one before it."""
        later = max(range(1, len(self.lengths)), key=lambda document: self.lengths[document])
        return sum(self.lengths[:later])

    def reach(self) -> int | None:
        """How many tokens of the document behind the seam move when everything before it changes."""
        seam = self.seam()
        end = seam + self._behind()
        moved = self._moved(range(seam))[seam:end]
        last = int(moved.nonzero()[-1]) + 1 if bool(moved.any()) else 0
        return None if last == end - seam else last

    def depth(self) -> int | None:
        """How many tokens right before the seam matter to the document behind it."""
        seam = self.seam()
        end = seam + self._behind()
        before = self.lengths[self._document(seam) - 1]
        for count in range(1, before):
            if not bool(self._moved(range(seam - count))[seam:end].any()):
                return count
        return None

    def is_ordered(self) -> bool:
        """Whether the first token behind the seam minds that the two tokens before it change places."""
        seam = self.seam()
        if self.lengths[self._document(seam) - 1] < 2:
            return False
        order = torch.arange(sum(self.lengths))
        order[[seam - 2, seam - 1]] = order[[seam - 1, seam - 2]]

        def exchanged(path: Path, tensor: torch.Tensor) -> torch.Tensor:
            for axis in self.axes[path]:
                if len(self.axes[path]) == 1 or axis == self.axes[path][-1]:  # a mask's keys, not its queries
                    tensor = tensor.index_select(axis, order.to(tensor.device))
            return tensor

        before, after = self._outputs(lambda _, tensor: tensor), self._outputs(exchanged)
        for one, other in zip(before, after, strict=True):
            size = float(one[seam].abs().max()) * torch.finfo(one.dtype).eps ** 0.5
            if float((one[seam] - other[seam]).abs().max()) > size:
                return True
        return False

    def kind(self) -> Kind | None:
        """What the pattern of reach, depth and order says."""
        try:
            reach, depth = self.reach(), self.depth()
            ordered = reach not in {0, 1} and self.is_ordered()
        except (HermeticError, *FORWARD_FAILURES):
            return None
        if reach != 0 and (reach == 1) != (depth == 1):
            return "boundary"
        if reach not in {0, 1} and not ordered:
            return "attention"
        if reach is None and depth is None:
            return "attention" if self._is_given_pairs() else "recurrence"
        return "convolution" if reach == depth else None  # where nothing moves, the backward alone crosses

    def _is_given_pairs(self) -> bool:
        """Whether it gets a mask of pairs of tokens: attention with a position bias of its own minds order too."""
        return any(len(axes) == 2 for axes in self.axes.values())

    def _document(self, token: int) -> int:
        return next(i for i in range(len(self.lengths)) if sum(self.lengths[: i + 1]) > token)

    def _behind(self) -> int:
        return self.lengths[self._document(self.seam())]

    def _moved(self, tokens: range) -> torch.Tensor:
        """``[T]`` booleans: the tokens whose outputs move when the inputs of ``tokens`` do."""

        def changed(path: Path, tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point() or len(self.axes[path]) != 1 or not len(tokens):
                return tensor
            other = tensor.clone()
            part = other.movedim(self.axes[path][0], 0)[tokens.start : tokens.stop]
            part += _CHANGE * part.abs().mean() * torch.ones_like(part) + _CHANGE * part
            return other

        pairs = zip(self._outputs(lambda _, tensor: tensor), self._outputs(changed), strict=True)
        moved = [(one != other).flatten(1).any(dim=1).cpu() for one, other in pairs]
        return torch.stack(moved).any(dim=0)

    def _outputs(self, change: Callable[[Path, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        """Every output along the tokens, tokens first, of the call on changed arguments."""
        with torch.no_grad(), reopened(self.packed), self.subject.same_randomness():
            output = self.call.repeat(mapped(self.call.arguments, lambda path, x: change(path, x.clone())))
        axes = axes_of(output, sum(self.lengths))
        return [
            tensor.movedim(axes[path][0], 0)
            for path, tensor in tensors_in(output).items()
            if tensor.is_floating_point() and len(axes[path]) == 1
        ]


def _calls(subject: Subject, batch: PackedBatch) -> Iterator[tuple[nn.Module, Call, Axes]]:
    """The calls of one run, in order, that may mix tokens."""
    count = batch.boundaries.num_tokens
    with frozen(subject.parameters()):
        for root in subject.modules:
            for call in map(_without_cache, recorded(root, lambda: subject.logits(batch)).calls):
                if type(call.module) in TOKEN_WISE:
                    continue
                try:
                    axes = axes_of(call.arguments, count)
                except HermeticError:  # sizes alone do not tell which axes are the tokens'
                    continue
                yield root, call, axes


def _without_cache(call: Call) -> Call:
    """The call as it was before anything was in its cache, which holds the tokens of the recorded run by now."""
    arguments: Arguments = {name: None if name in CACHES else value for name, value in call.arguments.items()}
    return replace(call, arguments=arguments)


def _where(root: nn.Module, module: nn.Module) -> str:
    return f"{_name(root, module)} ({type(module).__name__})"


def _name(root: nn.Module, module: nn.Module) -> str:
    return next(name for name, other in root.named_modules() if other is module) or type(root).__name__


def _first_difference(packed: Call, alone: Call, lengths: Sequence[int], document: int) -> int:
    """The first token of a document whose output of a call is not that of the document alone."""
    axes = axes_of(packed.output, sum(lengths))
    others = tensors_in(alone.output)
    first = lengths[document]
    for path, tensor in tensors_in(packed.output).items():
        if tensor.is_floating_point() and len(axes[path]) == 1 and path in others:
            part = tensor.split(list(lengths), dim=axes[path][0])[document].movedim(axes[path][0], 0).flatten(1)
            other = others[path].movedim(axes[path][0], 0).flatten(1)
            size = float(other.abs().max()) * torch.finfo(other.dtype).eps ** 0.5
            differs = ((part - other).abs() > size).any(dim=1)
            first = min(first, int(differs.nonzero()[0]) if bool(differs.any()) else first)
    return first
