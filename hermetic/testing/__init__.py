"""Floor 6: conformance and seeded leaks, for the tests of others.

Names are resolved on first use: the pytest plugin beside them is imported whenever pytest starts, and costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermetic.testing.assertions import assert_no_leak as assert_no_leak

__all__ = ["assert_no_leak"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hermetic.testing' has no attribute {name!r}; public names: {', '.join(__all__)}")
    from hermetic.testing import assertions

    return getattr(assertions, name)
