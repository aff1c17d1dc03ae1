"""The state around a run: the same for every one, put back for the caller, and watched.

A run that draws nothing need not be repeated to know that it is not random.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch


class Drawing:
    """A forward that notices whether it moves the random state."""

    def __init__(self, forward: Callable[[PackedBatch], Any], device: torch.device) -> None:
        self.forward, self.device = forward, device
        self.drew = False

    def __call__(self, batch: PackedBatch) -> Any:
        """Run it, and see."""
        before = self._states()
        output = self.forward(batch)
        after = self._states()
        known = self.device.type in {"cpu", "cuda"}  # of other devices the state is not read
        self.drew = not known or not all(map(torch.equal, before, after))
        return output

    def _states(self) -> list[torch.Tensor]:
        cuda = torch.cuda.get_rng_state_all() if self.device.type == "cuda" or torch.cuda.is_initialized() else []
        return [torch.get_rng_state(), *cuda]


@contextmanager
def same_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """The random state that ``seed`` gives for the duration; the caller's is put back."""
    # manual_seed reaches every CUDA device that is in use, so every one of them is put back
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() or device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def state_put_back(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Put back what modules without parameters keep: dynamic rotary scaling remembers the longest row it has seen."""
    modules = [module for root in roots for module in root.modules() if not module._parameters]  # noqa: SLF001 - parameters() would look into children
    kept = [(module, dict(module._buffers), dict(vars(module))) for module in modules if module._buffers]  # noqa: SLF001
    try:
        yield
    finally:
        for module, buffers, attributes in kept:
            module._buffers.update(buffers)  # noqa: SLF001
            vars(module).update({name: x for name, x in attributes.items() if isinstance(x, (int, float))})
