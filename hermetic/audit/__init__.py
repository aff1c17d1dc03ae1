"""Artefacts read without running a model: configurations, scripts, batches and packed folders."""

from hermetic.audit.finding import AuditFinding, AuditReport, Place
from hermetic.audit.rule import Example, Rule

__all__ = ["AuditFinding", "AuditReport", "Example", "Place", "Rule"]
