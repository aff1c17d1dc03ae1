"""Python training scripts, read by their syntax trees; nothing of them runs."""

from hermetic.audit.script.report import audit_script

__all__ = ["audit_script"]
