"""Artefacts read without running a model: configurations, scripts, batches and packed folders.

What needs NumPy or more is imported with its name, so that rules are told wherever Python starts.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hermetic.audit.finding import AuditFinding, AuditReport, Place
from hermetic.audit.rule import Example, Rule

if TYPE_CHECKING:
    from hermetic.audit.anything import audit
    from hermetic.audit.batch.audit import audit_batch
    from hermetic.audit.command import audit_command
    from hermetic.audit.config import audit_config
    from hermetic.audit.folder import audit_folder
    from hermetic.audit.reading import Reading, readings
    from hermetic.audit.script.report import audit_script

__all__ = [
    "AuditFinding",
    "AuditReport",
    "Example",
    "Place",
    "Reading",
    "Rule",
    "audit",
    "audit_batch",
    "audit_command",
    "audit_config",
    "audit_folder",
    "audit_script",
    "readings",
]

_HOMES = {
    "Reading": "hermetic.audit.reading",
    "audit": "hermetic.audit.anything",
    "audit_batch": "hermetic.audit.batch.audit",
    "audit_command": "hermetic.audit.command",
    "audit_config": "hermetic.audit.config",
    "audit_folder": "hermetic.audit.folder",
    "audit_script": "hermetic.audit.script.report",
    "readings": "hermetic.audit.reading",
}


def __getattr__(name: str) -> Any:
    """A public name, from its home when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
