"""Memory that nobody has written holds NaN, so that reading it shows."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let PyTorch fill what it allocates and does not initialise with NaN, in Python and in C++ alike.

    PyTorch does so while its deterministic algorithms are on; both settings are put back at the end. An operation
    that has no deterministic algorithm runs as it is, and its warning is not shown: this is not about determinism.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filling: Any = torch.utils.deterministic  # its one setting is made at run time, where no type checker sees it
    fills = filling.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        filling.fill_uninitialized_memory = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        filling.fill_uninitialized_memory = fills
