"""A model of low precision, run in float32 as it is: for leaks that its own rounding hides.

Algorithm: between the model and PyTorch, each bfloat16 or float16 argument of a function becomes float32, each request
for such a dtype becomes one for float32, and tensors claim to be float32 where their dtype is asked for. So activations
flow in float32 from the embedding on, whatever a model casts to in between, and under autocast too.
Guarantee: it is the model's function on the model's own weights, which are exact in float32. No parameter is replaced
or written to, no module changed; what modules remember of a run (buffers, attributes) is put back.
Price: a cast of each weight at each use, thrown away after it. For a backward, autograd keeps the parameter and casts
it again, not the copy. Parameters whose gradients are wanted have float32 leaves, which are as large as the gradients.
Blind to: what is wrong in a kernel of low precision only, for other kernels run; the model's own dtype is probed too.
Cannot run: kernels of others that refuse float32, or read half-precision weights behind PyTorch's back.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

LOW = (torch.bfloat16, torch.float16)
"""The dtypes whose rounding may hide a leak."""

_GETTERS_OF_VALUES = {"T", "mT", "H", "mH", "real"}
"""Attributes that hold a tensor's own values; all others say something about it."""

_ABOUT = {"__hash__", "__len__", "__repr__", "__format__", "__deepcopy__", "__reduce_ex__", "__dir__", "__set__"} | {
    *("size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "storage_offset", "get_device"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_same_size", "is_shared", "is_pinned", "data_ptr"),
    *("storage", "untyped_storage", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
    *("requires_grad_", "share_memory_", "detach_"),
}
"""Functions that ask something of a tensor, or do something to it, that is not its values."""

_MOVES = {
    *("__getitem__", "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "transpose", "t", "permute"),
    *("movedim", "swapaxes", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "chunk", "split", "unbind"),
    *("select", "narrow", "detach", "contiguous", "unfold"),
}
"""Functions that move values without computing with them: what they give is cast where it is used."""

_IN_PLACE = {
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"),
    *("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}

_TO_LOW = {"bfloat16", "half"}


class Float32(TorchFunctionMode):
    """While it is entered, functions of PyTorch compute in float32 where they were asked for less."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.leaves: dict[int, torch.Tensor] = {}
        """In place of parameters, by their ``id``."""
        self._casts: dict[int, torch.Tensor] = {}
        """What was cast for the function that is running, by where the copy lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` on what its arguments are in float32."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args)
        if name in _ABOUT:
            return func(*args, **kwargs)
        if name == "backward":
            return self._backward(func, args, kwargs)
        if name in _MOVES:
            return func(*self._mapped(args, self._leaf), **kwargs)
        if name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
            return self._written(func, args, kwargs)
        if name in _TO_LOW:
            func = torch.Tensor.float
        outer, self._casts = self._casts, {}
        try:
            with self._no_autocast():
                result = func(*self._mapped(args, self._wide), **self._mapped(kwargs, self._wide))
                return self._mapped(result, self._wide) if name == "embedding" else result
        finally:
            self._casts = outer

    def _attribute(self, func: Any, args: Any) -> Any:
        which = func.__self__.__name__
        if which == "dtype":
            return _wide_dtype(func(*args))
        return func(*self._mapped(args, self._leaf)) if which in _GETTERS_OF_VALUES else func(*args)

    def _backward(self, func: Any, args: Any, kwargs: Any) -> None:
        """Run a backward with this mode on: checkpoints run the model again inside of it."""
        call = inspect.signature(func).bind(*args, **kwargs).arguments
        tensors = _as_tuple(call.get("self", call.get("tensors")))
        gradients = _as_tuple(call.get("gradient", call.get("grad_tensors"))) or (None,) * len(tensors)
        filled = tuple(torch.ones_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True))
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - all that is public asks this mode again
        create = bool(call.get("create_graph"))
        keep = create if call.get("retain_graph") is None else call["retain_graph"]
        with self:
            engine.run_backward(
                tensors,
                filled,
                keep,
                create,
                _as_tuple(call.get("inputs")),
                allow_unreachable=True,
                accumulate_grad=True,
            )

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Write into the first argument, which keeps its dtype."""
        target = args[0] if args else None
        if not isinstance(target, torch.Tensor) or not target.is_floating_point():
            return func(*args, **kwargs)
        dtype = target.dtype

        def fitting(value: Any) -> Any:
            value = self._leaf(value)
            differs = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != dtype
            return value.to(dtype) if differs and LOW_OR_WIDE.issuperset({value.dtype, dtype}) else value

        return func(target, *self._mapped(args[1:], fitting), **self._mapped(kwargs, fitting))

    def _leaf(self, value: Any) -> Any:
        return self.leaves.get(id(value), value) if isinstance(value, torch.Tensor) else value

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return _wide_dtype(value)
        value = self._leaf(value)
        if not isinstance(value, torch.Tensor) or value.dtype not in LOW:
            return value
        wide = value.float()
        if not value.requires_grad:
            self._casts[wide.untyped_storage().data_ptr()] = value
        return wide

    def _mapped(self, value: Any, change: Callable[[Any], Any]) -> Any:
        if type(value) in {tuple, list}:
            return type(value)(self._mapped(one, change) for one in value)
        if type(value) is dict:
            return {name: self._mapped(one, change) for name, one in value.items()}
        return change(value)

    def _no_autocast(self) -> Any:
        kind = self.device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()

    def pack(self, saved: torch.Tensor) -> Any:
        """What autograd keeps of a tensor: of a copy in float32, the weight that it was made from."""
        source = self._casts.get(saved.untyped_storage().data_ptr()) if saved.numel() else None
        if source is None:
            return saved
        return source, saved.size(), saved.stride(), saved.storage_offset()

    @staticmethod
    def unpack(kept: Any) -> torch.Tensor:
        """The tensor again."""
        if isinstance(kept, torch.Tensor):
            return kept
        source, size, stride, offset = kept
        again: torch.Tensor = source.detach().float().as_strided(size, stride, offset)
        return again


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


LOW_OR_WIDE = {*LOW, torch.float32}


def _wide_dtype(dtype: Any) -> Any:
    return torch.float32 if dtype in LOW else dtype


@contextmanager
def in_float32(roots: Sequence[nn.Module], device: torch.device) -> Iterator[Float32]:
    """Run what is inside in float32, as this module says; ``roots`` are the modules that run."""
    mode = Float32(device)
    with _nothing_remembered(roots), torch.compiler.set_stance("force_eager"), mode:
        yield mode


@contextmanager
def _nothing_remembered(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Put back the tensors that modules keep, such as tables made in the dtype of what they were given."""
    modules = {module for root in roots for module in root.modules()}
    kept = [(module, dict(module._buffers), dict(vars(module))) for module in modules]  # noqa: SLF001 - buffers() follows children
    try:
        yield
    finally:
        for module, buffers, attributes in kept:
            module._buffers.clear()  # noqa: SLF001
            module._buffers.update(buffers)  # noqa: SLF001
            _put_back(vars(module), attributes)


def _put_back(found: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [name for name, value in found.items() if isinstance(value, torch.Tensor) and name not in before]:
        del found[name]
    found.update({name: value for name, value in before.items() if isinstance(value, torch.Tensor)})


@contextmanager
def gathering(mode: Float32 | None, parameters: Sequence[nn.Parameter]) -> Iterator[list[torch.Tensor]]:
    """Yield leaves to hold the gradients of parameters: the parameters themselves, or float32 in their place.

    Functions that get their parameters past PyTorch's still give their gradients to the parameters.
    """
    if mode is None:
        yield list(parameters)
        return
    leaves = [parameter.detach().float().requires_grad_() for parameter in parameters]
    mode.leaves.update((id(parameter), leaf) for parameter, leaf in zip(parameters, leaves, strict=True))
    try:
        with saved_tensors_hooks(mode.pack, mode.unpack):
            yield leaves
    finally:
        mode.leaves.clear()
