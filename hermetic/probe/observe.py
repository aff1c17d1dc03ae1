"""What really arrives at the model: positions, masks, caches and boundaries, as its modules see them.

Flags, names and collators mislead; arguments do not. One run is watched, and the first tokens-shaped
``position_ids`` and the arguments of the outermost module that is fed the tokens are kept.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch
from hermetic.probe.subject import Subject
from hermetic.seal.unpack import is_unpacked

CACHES = ("past_key_values", "cache", "cache_params")
"""Names of transformers for a cache that a caller hands in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Arguments that decide about isolation."""

    positions: torch.Tensor | None
    """``[T]`` positions that some module was given; ``None`` when none was seen."""
    outermost: nn.Module | None = None
    """The module that was fed the tokens; ``None`` when the subject runs none."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments by name."""
    makes_cache: bool = False
    """It was left to make a cache."""
    given_cache: bool = False
    """A cache was handed to it, or by what is around a model, such as an adapter, to that model."""

    @property
    def attention_mask(self) -> torch.Tensor | None:
        """The 2-D mask that the outermost module was given."""
        mask = self.arguments.get("attention_mask")
        return mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None


@dataclass(kw_only=True, slots=True)
class _Seen:
    positions: list[torch.Tensor] = field(default_factory=list)
    running_on: list[torch.Tensor] = field(default_factory=list)
    roots: list[tuple[nn.Module, dict[str, Any]]] = field(default_factory=list)
    given_cache: list[nn.Module] = field(default_factory=list)


def observe(subject: Subject, batch: PackedBatch) -> Observation:
    """Watch the first run of the subject over ``batch``."""
    seen = _Seen()
    ids = batch.input_ids
    count = torch.arange(batch.boundaries.num_tokens)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any) -> None:
        if is_given_cache(kwargs) and hasattr(module, "get_input_embeddings"):
            seen.given_cache.append(module)
        positions = None if seen.positions else _flat_positions(kwargs, len(count))
        seen.positions.extend([] if positions is None else [positions])
        fed = args[0] if args else None
        if isinstance(module, nn.Embedding) and isinstance(fed, torch.Tensor) and fed.numel() == len(count):
            flat = fed.detach().flatten().cpu()
            # learned positions that count on through the row; token ids are told apart by value
            if torch.equal(flat - flat[0], count) and not torch.equal(flat, ids[: len(count)].cpu()):
                seen.running_on.append(flat)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.roots.append((module, named_arguments(module, args) | kwargs))  # others' are not kept alive

    # Not one hook on all modules of the process: PyTorch keeps a trace of those that want keyword arguments.
    # An unpacked module is given the positions of a row and runs on others.
    modules = {module for root in subject.modules for module in root.modules() if not is_unpacked(module)}
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    # first of all hooks, for that of a seal takes boundaries away
    handles += [root.register_forward_pre_hook(before, prepend=True, with_kwargs=True) for root in subject.modules]
    try:
        subject.row(batch)
    finally:
        for handle in handles:
            handle.remove()
    outermost, arguments = _fed_tokens(seen.roots, len(count))
    makes_cache = _makes_cache(outermost, arguments)
    return Observation(
        positions=next(iter([*seen.positions, *seen.running_on]), None),
        outermost=outermost,
        arguments=arguments,
        makes_cache=makes_cache,
        given_cache=is_given_cache(arguments) or (bool(seen.given_cache) and not makes_cache),
    )


def restarts(positions: torch.Tensor, batch: PackedBatch) -> bool:
    """Whether positions count by one inside each document and start each at the same value."""
    expected = batch.boundaries.position_ids
    return torch.equal(positions - positions[0], expected)


def is_given_cache(arguments: Mapping[str, Any]) -> bool:
    """Whether a cache is among the arguments of a model."""
    return any(arguments.get(name) is not None for name in CACHES)


def named_arguments(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by the names that the module's forward has for them."""
    kinds = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    names = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind in kinds]
    return dict(zip(names, args, strict=False))


def _fed_tokens(roots: list[tuple[nn.Module, dict[str, Any]]], tokens: int) -> tuple[nn.Module | None, dict[str, Any]]:
    """The first outermost call that gets an integer for each token, else the last one."""
    for module, arguments in roots:
        tensors = (value for value in arguments.values() if isinstance(value, torch.Tensor))
        if any(not value.is_floating_point() and value.numel() >= tokens for value in tensors):
            return module, arguments
    return roots[-1] if roots else (None, {})


def _flat_positions(kwargs: dict[str, Any], tokens: int) -> torch.Tensor | None:
    positions = kwargs.get("position_ids")
    if not isinstance(positions, torch.Tensor) or positions.is_floating_point():
        return None
    plane = positions[0] if positions.ndim == 3 else positions
    return plane.detach().flatten().cpu() if plane.numel() == tokens else None


def _makes_cache(outermost: nn.Module | None, arguments: Mapping[str, Any]) -> bool:
    asked = arguments.get("use_cache")
    config = getattr(outermost, "config", None)
    return bool(getattr(config, "use_cache", False) if asked is None else asked)
