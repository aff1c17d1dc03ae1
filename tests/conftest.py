"""What every test shares: one thread, one source of examples, the GPU contract, memory poisoned on demand.

One thread, because how a sum is split over threads moves its last bits: with one, a bit-exact claim means the
same on every machine, and the tiny tensors of these tests are faster without hand-overs. The price falls on
large products only, and those live in benchmarks.
"""

import os
from collections.abc import Callable

import hypothesis
import pytest
import torch

torch.set_num_threads(1)

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a GPU test that was asked for where it cannot run: a skip would read as a pass."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.fail(
            f"{item.name} needs a CUDA device and torch {torch.__version__} sees none; "
            "run it on a machine with one, or leave GPU tests out with -m 'not gpu'",
            pytrace=False,
        )


def _poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def allocate_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        memory = allocate(*args, **kwargs)
        if memory.is_floating_point() or memory.is_complex():
            with torch.no_grad():
                memory.fill_(float("nan"))
        return memory

    return allocate_poisoned


@pytest.fixture
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what torch.empty, empty_like and new_empty return with NaN: a read before a write then shows."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))
