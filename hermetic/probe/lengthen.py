"""The length-change instrument: does a document change when another one gets longer?

Algorithm: the first document gets more tokens at its end, as many as the longest document has, and the last one half
as many; every other document has to compute what it did before. Of two documents, one is lengthened and the other
watched, and then the other way round. Shapes change, so last bits may, and what they may do
is the noise floor, measured in place. Random draws are replaced by the ends of their ranges for the duration, over
features by both in turn (what all features share, a layer norm takes away), so that noise shows by its scale and not
by its values: NEFTune divides by the length of the row.
Guarantee: whatever depends on the lengths of the row by more than rounding moves: rotary scaling by the longest
position (dynamic NTK, longrope), biases and temperatures by row length, the capacity of experts.
Price: a forward over the longer row (two of two documents), and the noise floor; the model is left as it was.
Blind to: thresholds beyond the lengthened row, and what becomes of the first and the last of many documents. It
cannot tell a length from content that is carried along: that is what swap and gradient are for.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode  # PyTorch documents it under this name

from hermetic.batch import PackedBatch, collate
from hermetic.errors import HermeticError, ProbeError
from hermetic.probe.instruments import floor_for, floor_of
from hermetic.probe.subject import Subject
from hermetic.seal.measure import FORWARD_FAILURES, largest_difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengthening:
    """What other documents' lengths do to a document."""

    change: torch.Tensor
    """``[D]`` float64: how far document i's logits move when another document gets longer."""
    noise_floor: float
    """Largest logit difference that rounding alone may make."""


def lengthen(subject: Subject, batch: PackedBatch, *, floor: float | None = None) -> Lengthening:
    """Lengthen the first and the last document, and watch all others.

    ``floor`` is the noise floor, where it is known.

    Raises:
        ProbeError: the subject cannot run the longer row, as with a table of positions that ends before.
    """
    lengths = list(batch.boundaries.document_lengths)
    present = [document for document, length in enumerate(lengths) if length]
    change = torch.zeros(len(lengths), dtype=torch.float64)
    with _without_chance(subject, batch) as quiet, torch.no_grad():
        before = quiet.packed(batch)
        floor = floor_of(quiet, batch) if floor is None or quiet is not subject else floor
        both = (present[0], present[-1])
        for longer in [both] if len(present) > 2 else [both[:1], both[1:]]:
            after = _logits_lengthened(quiet, batch, longer)
            for document in present:
                if document not in longer:
                    moved = largest_difference(before[document], after[document][: lengths[document]])
                    change[document] = moved
        floor = floor_for(quiet, batch, float(change.max()), floor)
    return Lengthening(change=change, noise_floor=floor)


def _logits_lengthened(subject: Subject, batch: PackedBatch, documents: Sequence[int]) -> tuple[torch.Tensor, ...]:
    longer = with_documents_lengthened(batch, documents)
    try:
        with _refusing_ids_beyond_tables():
            logits: tuple[torch.Tensor, ...] = subject.logits(longer).split(list(longer.boundaries.document_lengths))
            return logits
    except (HermeticError, torch.OutOfMemoryError):
        raise
    except FORWARD_FAILURES as error:
        count = longer.boundaries.document_lengths[documents[0]]
        raise ProbeError(
            f"the length-change instrument could not run a document of {count} tokens ({type(error).__name__}: "
            f"{error}); expected room for a document longer than the {max(batch.boundaries.document_lengths)} tokens "
            "of the longest. Probe shorter documents"
        ) from error


def with_documents_lengthened(batch: PackedBatch, documents: Sequence[int]) -> PackedBatch:
    """The same batch with the first of some documents longer by the length of the longest, and others by half of it.

    Their own tokens come again, in order.
    """
    ids = batch.unpack(batch.input_ids)
    longest = max(batch.boundaries.document_lengths)
    for number, document in enumerate(documents):
        size = ids[document].numel() + (longest if number == 0 else -(-longest // 2))
        repeats = -(-size // ids[document].numel())
        ids[document] = ids[document].repeat(repeats)[:size]
    return collate([{"input_ids": part} for part in ids])


@contextmanager
def _refusing_ids_beyond_tables() -> Iterator[None]:
    """Raise where an id is beyond its table: on an accelerator the lookup itself would end the process's device."""

    def before(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        fed = arguments[0] if arguments else None
        if isinstance(module, nn.Embedding) and isinstance(fed, torch.Tensor) and fed.numel():
            largest = int(fed.max())
            if largest >= module.num_embeddings:
                raise IndexError(f"id {largest} in a table of {module.num_embeddings}")

    handle = nn.modules.module.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _without_chance(subject: Subject, batch: PackedBatch) -> Iterator[Subject]:
    """In the subject's own mode with its random draws fixed; in evaluation mode where some cannot be."""
    if not subject.is_random(batch):
        yield subject
        return
    quiet = replace(subject, kept={})
    widths = frozenset(parameter.shape[-1] for parameter in subject.parameters() if parameter.ndim)
    with _FixedDraws(widths):
        fixed = not quiet.is_random(batch)
    if fixed:
        with _FixedDraws(widths):
            yield quiet
    else:
        with subject.evaluation() as quiet:
            yield quiet


class _FixedDraws(TorchDispatchMode):
    """Every random draw gives an end of its range, or one standard deviation; dropout drops nothing.

    Which end is the same for every token, packed or alone: of values that lie along features, an axis as long as a
    parameter's last one, the upper and the lower one in turn; of all others the upper one.
    """

    def __init__(self, widths: frozenset[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.widths = widths

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").split(".")[0]
        if name == "uniform_":
            low = _argument("from", 1, args, kwargs, default=0.0)
            return self._ends(result, low, _argument("to", 2, args, kwargs, default=1.0))
        if name == "normal_":
            mean = _argument("mean", 1, args, kwargs, default=0.0)
            deviation = _argument("std", 2, args, kwargs, default=1.0)
            return self._ends(result, mean - deviation, mean + deviation)
        if name in {"randn", "randn_like"}:
            return self._ends(result, -1.0, 1.0)
        if name in {"bernoulli_", "bernoulli", "rand", "rand_like"}:
            return result.fill_(1)
        if name == "native_dropout":
            return args[0] / (1 - args[1]), torch.ones_like(result[1])
        return result

    def _ends(self, drawn: torch.Tensor, low: float, high: float) -> torch.Tensor:
        drawn.fill_(high)
        if drawn.ndim > 1 and drawn.shape[-1] in self.widths:
            drawn[..., 1::2] = low
        return drawn


def _argument(name: str, place: int, args: Any, kwargs: Any, *, default: float) -> float:
    named = (kwargs or {}).get(name, default)
    return float(args[place] if len(args) > place else named)
