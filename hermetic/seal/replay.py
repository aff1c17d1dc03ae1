"""Which module mixes documents: each recorded call is run again alone, and asked by gradients.

Algorithm: one packed forward is recorded, call by call. A call is then repeated in isolation, with its own
inputs as leaves, and the gradients of each document's outputs at every other document's inputs are taken. That
names a mixing module whatever happened upstream of it.
Guarantee: exact zeros mean that no other document's values took part; nothing of the model is changed.
Price: the activations of one short forward, and per call one forward and ``D`` backward passes of that module.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode  # PyTorch documents it under this name

from hermetic.errors import HermeticError
from hermetic.seal.aligned import Axes, Path, mapped, tensors_in, token_axes
from hermetic.seal.channel import PackedForward, reopened
from hermetic.seal.measure import FORWARD_FAILURES

TOKEN_WISE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)
"""Exactly these classes of torch act on each token alone; asking them would only cost time."""

Arguments = dict[str | int, Any]
"""Of one call: positional ones by number, named ones by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of one module in a recorded forward."""

    module: nn.Module
    arguments: Arguments
    output: Any

    def repeat(self, arguments: Arguments) -> Any:
        """Run the module again on other arguments in the places of the recorded ones."""
        named = {name: value for name, value in arguments.items() if isinstance(name, str)}
        return self.module(*[value for name, value in arguments.items() if not isinstance(name, str)], **named)


@dataclass(kw_only=True, slots=True)
class Recording:
    """The calls of one forward, inner ones before those around them, and where it broke off."""

    calls: list[Call] = field(default_factory=list)
    failed: list[nn.Module] = field(default_factory=list)
    """The modules that an exception went through, innermost first; empty after a forward that ended."""
    error: str = ""
    """What the exception said."""


def recorded(model: nn.Module, run: Callable[[], object]) -> Recording:
    """Record every module's call in one forward, without gradients; a forward that raises is recorded until then."""
    recording = Recording()
    open_calls: list[nn.Module] = []

    def before(module: nn.Module, _args: tuple[Any, ...]) -> None:
        open_calls.append(module)

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        open_calls.pop()
        arguments: Arguments = {}
        arguments.update(enumerate(args))
        arguments.update(kwargs)
        recording.calls.append(Call(module=module, arguments=arguments, output=output))

    handles = [module.register_forward_pre_hook(before) for module in model.modules()]
    handles += [module.register_forward_hook(after, with_kwargs=True) for module in model.modules()]
    try:
        with torch.no_grad():
            run()
    except (HermeticError, *FORWARD_FAILURES) as error:
        recording.failed = open_calls[::-1]
        recording.error = str(error.__cause__ or error)
    finally:
        for handle in handles:
            handle.remove()
    return recording


def axes_of(values: Any, num_slots: int) -> Axes:
    """The token axes of every tensor in a nest."""
    return {path: token_axes(tensor, num_slots, None) for path, tensor in tensors_in(values).items()}


def mixes(call: Call, packed: PackedForward | None, lengths: Sequence[int], axes: Axes) -> bool:
    """Whether this call, repeated alone, carries one stretch of tokens into another; a call that raises does."""
    return carried(call, packed, lengths, axes) != 0.0


def carried(call: Call, packed: PackedForward | None, lengths: Sequence[int], axes: Axes) -> float:
    """Largest gradient of this call, repeated alone, from one stretch of tokens at another; NaN if it raises."""
    try:
        with torch.enable_grad(), reopened(packed):
            leaves, output = _repeated_on_leaves(call, axes)
            return _largest(_reach(leaves, output, lengths, part) for part in range(len(lengths)))
    except (HermeticError, *FORWARD_FAILURES):
        return math.nan


def is_causal(call: Call, axes: Axes, num_slots: int) -> bool:
    """Whether in this call over one document no token reaches an earlier one."""
    try:
        with torch.enable_grad(), reopened(None):
            leaves, output = _repeated_on_leaves(call, axes)
            halves = (num_slots // 2, num_slots - num_slots // 2)
            return _reach(leaves, output, halves, 0) == 0.0
    except (HermeticError, *FORWARD_FAILURES):
        return False


def chooses_tokens(call: Call, axes: Axes, num_slots: int) -> bool:
    """Whether this call over one document takes the best few among something that there is more of in longer ones.

    Pads are among the candidates then, and even if none is taken, which of two equal ones is may hang on their number.
    """
    half = mapped(call.arguments, lambda path, tensor: _beginning(tensor, axes.get(path, ()), num_slots // 2))
    try:
        with torch.no_grad(), reopened(None):
            candidates: list[list[int]] = []
            for arguments in (call.arguments, half):
                with _Choices() as choices:
                    call.repeat(arguments)
                candidates.append(choices.candidates)
    except (HermeticError, *FORWARD_FAILURES):
        return True
    return candidates[0] != candidates[1]


def _beginning(tensor: torch.Tensor, axes: tuple[int, ...], length: int) -> torch.Tensor:
    for axis in axes:
        tensor = tensor.narrow(axis, 0, length)
    return tensor


class _Choices(TorchDispatchMode):
    """Keeps how many candidates each top-k has."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.candidates: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.topk.default:
            named = dict(zip(("self", "k", "dim"), args, strict=False)) | (kwargs or {})
            self.candidates.append(args[0].shape[named.get("dim", -1)])
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Aligned:
    tensor: torch.Tensor
    axis: int


def _repeated_on_leaves(call: Call, axes: Axes) -> tuple[list[_Aligned], list[_Aligned]]:
    leaves: list[_Aligned] = []

    def as_leaf(path: Path, tensor: torch.Tensor) -> torch.Tensor:
        found = axes.get(path, ())
        if not tensor.is_floating_point() or len(found) != 1:
            return tensor
        leaf = tensor.detach().clone().requires_grad_()
        leaves.append(_Aligned(tensor=leaf, axis=found[0]))
        return leaf.clone()  # some modules write to their inputs, which a leaf does not allow

    output = call.repeat(mapped(call.arguments, as_leaf))
    num_slots = leaves[0].tensor.shape[leaves[0].axis] if leaves else -1
    found = [
        _Aligned(tensor=tensor, axis=where[0])
        for tensor in tensors_in(output).values()
        if tensor.is_floating_point()
        and tensor.requires_grad
        and len(where := token_axes(tensor, num_slots, None)) == 1
    ]
    return leaves, found


def _reach(leaves: list[_Aligned], outputs: list[_Aligned], lengths: Sequence[int], part: int) -> float:
    """Largest gradient of the outputs of one stretch of tokens at the inputs of another; NaN where one is NaN."""
    begin = sum(lengths[:part])
    end = begin + lengths[part]
    if not leaves or not outputs:
        return 0.0
    total = torch.stack([_signed_sum(out, begin, end).double().cpu() for out in outputs]).sum()
    inputs = [leaf.tensor for leaf in leaves]
    gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        total, inputs, retain_graph=True, allow_unused=True
    )
    pairs = zip(leaves, gradients, strict=True)
    by_token = [gradient.movedim(leaf.axis, 0) for leaf, gradient in pairs if gradient is not None]
    others = [side for tensor in by_token for side in (tensor[:begin], tensor[end:]) if side.numel()]
    return _largest(float(side.abs().max()) for side in others)


def _largest(values: Iterable[float]) -> float:
    """NaN if one of them is, which no comparison would show."""
    return float(torch.tensor([0.0, *values], dtype=torch.float64).max())


def _signed_sum(out: _Aligned, begin: int, end: int) -> torch.Tensor:
    """Random signs, so that no sum cancels by construction."""
    values = out.tensor.movedim(out.axis, 0)[begin:end]
    generator = torch.Generator().manual_seed(begin)
    signs = torch.randint(0, 2, values.shape, generator=generator).to(values) * 2 - 1
    return (values * signs).sum()
