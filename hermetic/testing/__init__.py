"""Floor 6: conformance suites and seeded leaks, for the tests of others.

Names are resolved on first use: the pytest plugin beside them is imported whenever pytest starts, and costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermetic.testing.assertions import assert_no_leak as assert_no_leak
    from hermetic.testing.attention import check_attention_backend as check_attention_backend
    from hermetic.testing.report import ConformanceReport as ConformanceReport

_HOMES = {
    "ConformanceReport": "hermetic.testing.report",
    "assert_no_leak": "hermetic.testing.assertions",
    "check_attention_backend": "hermetic.testing.attention",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - derived from the one table above, so that the two cannot disagree


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hermetic.testing' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(home), name)
