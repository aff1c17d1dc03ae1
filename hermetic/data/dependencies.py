"""Optional packages, imported where they are used.

Guarantee: a missing package is an error that names the extra which brings it. Price: nothing until first use.
"""

import importlib
from typing import Any

from hermetic.errors import MissingDependencyError

__all__ = ["import_optional"]


def import_optional(module: str) -> Any:
    """Import ``module`` of the ``hf`` extra.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"hermetic.data needs the package {module!r}, which cannot be imported ({error}); "
            "expected the extra that brings it: pip install 'hermetic[hf]'"
        ) from error
