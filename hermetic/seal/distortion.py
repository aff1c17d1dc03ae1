"""Which module computes something else for a packed document than for the document alone, without any leak.

Positions that count through the row, or that are scaled by the longest document in it, change what a document
gets without carrying another's content. Calls of a packed forward are compared with those of each document
alone; and modules that turn positions into numbers are asked whether another document's length moves them.
"""

import copy
from collections.abc import Iterator, Sequence

import torch

from hermetic.errors import HermeticError
from hermetic.seal.aligned import Path, mapped, tensors_in
from hermetic.seal.measure import FORWARD_FAILURES
from hermetic.seal.replay import Call, axes_of

_FAR = 1 << 20
"""Tokens by which the length instrument lengthens a document: beyond any context that a model was scaled for."""


def distorted(packed: Sequence[Call], alone: Sequence[Sequence[Call]], lengths: Sequence[int]) -> Iterator[Call]:
    """The calls of a packed forward, in order, whose inputs agree with those alone and whose outputs do not."""
    counterparts = [_by_module(calls) for calls in alone]
    seen: dict[int, int] = {}
    for call in packed:
        occurrence = seen.get(id(call.module), 0)
        seen[id(call.module)] = occurrence + 1
        others = [
            found[id(call.module)][occurrence : occurrence + 1] for found in counterparts if id(call.module) in found
        ]
        if len(others) != len(lengths) or not all(others):
            continue
        matched = [other[0] for other in others]
        inputs = _agree(call.arguments, [other.arguments for other in matched], lengths)
        if inputs and not _agree(call.output, [other.output for other in matched], lengths):
            yield call


def restarts(call: Call, alone: Call, num_slots: int) -> dict[Path, int]:
    """The arguments that count by one through the whole row, and where they start in a document alone."""
    found: dict[Path, int] = {}
    axes = axes_of(call.arguments, num_slots)
    single = tensors_in(alone.arguments)
    for path, tensor in tensors_in(call.arguments).items():
        if tensor.is_floating_point() or len(axes[path]) != 1 or path not in single or not single[path].numel():
            continue
        steps = tensor.diff(dim=axes[path][0])
        if bool((steps == 1).all()):
            found[path] = int(single[path].flatten()[0])
    return found


def is_coupled_by_length(call: Call, lengths: Sequence[int]) -> bool:
    """Whether making one document very long changes what this module computes for another.

    Only modules without parameters are asked, as a copy on the CPU: they turn positions into numbers, and one
    that looks positions up in a table is content with an error.
    """
    if next(call.module.parameters(), None) is not None:
        return False
    axes = axes_of(call.arguments, sum(lengths))
    positions = [
        path
        for path, tensor in tensors_in(call.arguments).items()
        if not tensor.is_floating_point() and tensor.dtype != torch.bool and len(axes[path]) == 1
    ]
    if not positions:
        return False
    module = copy.deepcopy(call.module).to("cpu")

    def moved(path: Path, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().cpu().clone()
        if path in positions:
            tensor.movedim(axes[path][0], 0)[-lengths[-1] :] += _FAR
        return tensor

    here = Call(module=module, arguments=mapped(call.arguments, lambda _, x: x.detach().cpu()), output=None)
    try:
        with torch.no_grad():
            before = here.repeat(here.arguments)
            after = here.repeat(mapped(call.arguments, moved))
    except (HermeticError, *FORWARD_FAILURES):
        return False
    kept = sum(lengths[:-1])
    return not _same_beginning(before, after, kept, sum(lengths))


def _by_module(calls: Sequence[Call]) -> dict[int, list[Call]]:
    found: dict[int, list[Call]] = {}
    for call in calls:
        found.setdefault(id(call.module), []).append(call)
    return found


def _agree(packed: object, alone: Sequence[object], lengths: Sequence[int]) -> bool:
    """Whether every floating tensor that lies along the tokens holds what it holds for each document alone."""
    axes = axes_of(packed, sum(lengths))
    single = [tensors_in(values) for values in alone]
    for path, tensor in tensors_in(packed).items():
        if not tensor.is_floating_point() or len(axes[path]) != 1:
            continue
        parts = tensor.split(list(lengths), dim=axes[path][0])
        for part, found in zip(parts, single, strict=True):
            if path in found and not _close(part, found[path]):
                return False
    return True


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree to half of their digits: what roundings do is less, what positions do is more."""
    if one.shape != other.shape:
        return True  # nothing to compare: a table of positions for the whole row, for one
    one, other = one.detach(), other.detach()
    size = float(other.abs().max()) if other.numel() else 0.0
    return (
        bool((one.double() - other.double()).abs().max() <= size * torch.finfo(one.dtype).eps ** 0.5)
        if one.numel()
        else True
    )


def _same_beginning(before: object, after: object, kept: int, num_slots: int) -> bool:
    axes = axes_of(before, num_slots)
    later = tensors_in(after)
    return all(
        len(axes[path]) != 1
        or torch.equal(tensor.narrow(axes[path][0], 0, kept), later[path].narrow(axes[path][0], 0, kept))
        for path, tensor in tensors_in(before).items()
    )
