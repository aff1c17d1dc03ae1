"""The most memory that tensors hold at once during a piece of work.

Algorithm: on CUDA the allocator's own peak. On a CPU each operation of PyTorch is watched: a storage that it made
counts until it is freed, whoever holds it (a variable, autograd, a gradient).
Guarantee: on a CPU the same work has the same peak, to the byte, for nothing but tensors is counted: not what a kernel
takes and gives back inside one operation, and not what the process holds besides.
Price: some microseconds for each operation on a CPU, so only one pass is watched; nothing on CUDA.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

_R = TypeVar("_R")


def peak_memory(work: Callable[[], _R], device: torch.device) -> tuple[_R, int]:
    """Run ``work``; its result, and the bytes that it held at most beyond those that were held before.

    Example:
        Two tensors of 4,000 bytes live at once, and a third after one of them is gone.

        >>> def work():
        ...     first = torch.zeros(1000)
        ...     second = first + 1
        ...     del first
        ...     return second * 2
        >>> peak_memory(work, torch.device("cpu"))[1]
        8000
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        return result, torch.cuda.max_memory_allocated(device) - before
    with _Watch() as watch:
        result = work()
    return result, watch.peak


class _Watch(TorchDispatchMode):
    """Counts the bytes of storages that operations made and nobody has freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch has no types here
        self.live = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._known.setdefault(tensor.untyped_storage(), True)  # it was there before
        result = func(*args, **kwargs or {})
        for tensor in _tensors(result):
            self._count(tensor.untyped_storage())
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known[storage] = True
        size = storage.nbytes()
        self.live += size
        weakref.finalize(storage, self._free, size).atexit = False

    def _free(self, size: int) -> None:
        self.live -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
