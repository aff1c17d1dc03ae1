"""Floor 6: examine the user's own training command at its first batch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermetic.doctor.diagnosis import Diagnosis
    from hermetic.doctor.run import diagnose

__all__ = ["Diagnosis", "diagnose"]


def __getattr__(name: str) -> Any:
    """Load the parent's part when it is asked for: a watched process needs none of it until its first batch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hermetic.doctor.diagnosis import Diagnosis
    from hermetic.doctor.run import diagnose

    return {"Diagnosis": Diagnosis, "diagnose": diagnose}[name]
