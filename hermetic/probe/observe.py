"""What really arrives at the model: positions, masks and cache flags, as its modules see them.

Flags, names and collators mislead; arguments do not. One run is watched, and the first tokens-shaped
``position_ids`` and the outermost module's ``attention_mask`` and ``use_cache`` are kept.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch
from hermetic.probe.subject import Subject
from hermetic.seal.unpack import is_unpacked


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Arguments that decide about isolation."""

    positions: torch.Tensor | None
    """``[T]`` positions that some module was given; ``None`` when none was seen."""
    attention_mask: torch.Tensor | None
    """The 2-D mask that the outermost module was given."""
    caches: bool
    """The outermost module was left to make a cache."""


def observe(subject: Subject, batch: PackedBatch) -> Observation:
    """Watch the first run of the subject over ``batch``."""
    given: list[torch.Tensor] = []
    last: list[tuple[nn.Module, dict[str, Any]]] = []
    running_on: list[torch.Tensor] = []
    ids = batch.input_ids
    count = torch.arange(batch.boundaries.num_tokens)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        last[:] = [(module, kwargs)]  # the outermost returns last; what others were given is not kept alive
        positions = None if given else _flat_positions(kwargs, len(count))
        given.extend([] if positions is None else [positions])
        fed = args[0] if args else None
        if isinstance(module, nn.Embedding) and isinstance(fed, torch.Tensor) and fed.numel() == len(count):
            flat = fed.detach().flatten().cpu()
            # learned positions that count on through the row; token ids are told apart by value
            if torch.equal(flat - flat[0], count) and not torch.equal(flat, ids[: len(count)].cpu()):
                running_on.append(flat)

    # Not one hook on all modules of the process: PyTorch keeps a trace of those that want keyword arguments.
    # An unpacked module is given the positions of a row and runs on others.
    modules = {module for root in subject.modules for module in root.modules() if not is_unpacked(module)}
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        subject.row(batch)
    finally:
        for handle in handles:
            handle.remove()
    outermost, outer_arguments = last[0] if last else (None, {})
    mask = outer_arguments.get("attention_mask")
    return Observation(
        positions=next(iter([*given, *running_on]), None),
        attention_mask=mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None,
        caches=_caches(outermost, outer_arguments),
    )


def restarts(positions: torch.Tensor, batch: PackedBatch) -> bool:
    """Whether positions count by one inside each document and start each at the same value."""
    expected = batch.boundaries.position_ids
    return torch.equal(positions - positions[0], expected)


def _flat_positions(kwargs: dict[str, Any], tokens: int) -> torch.Tensor | None:
    positions = kwargs.get("position_ids")
    if not isinstance(positions, torch.Tensor) or positions.is_floating_point():
        return None
    plane = positions[0] if positions.ndim == 3 else positions
    return plane.detach().flatten().cpu() if plane.numel() == tokens else None


def _caches(outermost: nn.Module | None, kwargs: dict[str, Any]) -> bool:
    asked = kwargs.get("use_cache")
    config = getattr(outermost, "config", None)
    return bool(getattr(config, "use_cache", False) if asked is None else asked)
