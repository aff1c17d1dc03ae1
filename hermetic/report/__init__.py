"""Floor 7: what was packed, probed, diagnosed, audited or compared, as one HTML file that needs nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hermetic.report.audit import audit_page
    from hermetic.report.doctor import doctor_page
    from hermetic.report.pack import pack_page
    from hermetic.report.write import page_of, require_place, write_page, write_report

__all__ = ["audit_page", "doctor_page", "pack_page", "page_of", "require_place", "write_page", "write_report"]

_HOMES: Final = {
    "audit_page": "audit",
    "doctor_page": "doctor",
    "pack_page": "pack",
    "page_of": "write",
    "require_place": "write",
    "write_page": "write",
    "write_report": "write",
}


def __getattr__(name: str) -> Any:
    """Load a page when it is asked for: that of an audit needs neither torch nor NumPy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"hermetic.report.{_HOMES[name]}"), name)
