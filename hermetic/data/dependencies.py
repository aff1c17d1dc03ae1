"""Optional packages, imported where they are used.

Guarantee: a missing package is an error that names what brings it. Price: nothing until first use.
"""

import importlib
from typing import Any

from hermetic.errors import MissingDependencyError

__all__ = ["import_optional"]


def import_optional(module: str, *, install: str = "hermetic[hf]") -> Any:
    """Import ``module``, which ``pip install`` of ``install`` brings.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"hermetic.data needs the package {module!r}, which cannot be imported ({error}); "
            f"expected what brings it: pip install '{install}'"
        ) from error
