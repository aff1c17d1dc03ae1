"""The stacks: what each makes of its settings, and the findings in it.

Each module has ``MARKS``, the names by which a configuration of its stack is known, and ``setup_of``.
"""

import importlib
from collections.abc import Mapping
from typing import Final, get_args

from hermetic.audit.finding import AuditFinding, AuditReport, Kind
from hermetic.audit.setup import Settings, Setup, Stack, Versions
from hermetic.errors import AuditError

STACKS: Final[tuple[Stack, ...]] = get_args(Stack)


def setup_of(stack: str, settings: Settings, *, versions: Versions | None = None) -> Setup:
    """The neutral facts of a stack's settings, its defaults filled in.

    Args:
        stack: such as ``trl``.
        settings: by name; nested ones with dots.
        versions: of the packages, where they are known.

    Raises:
        AuditError: there is no such stack, or a setting has a value that the stack cannot take.
    """
    if stack not in STACKS:
        raise AuditError(f"stack {stack!r} is unknown; expected one of {', '.join(STACKS)}")
    module = importlib.import_module(f"hermetic.audit.stacks.{stack}")
    setup: Setup = module.setup_of(settings, versions=versions or {})
    return setup


def findings_of(setup: Setup) -> tuple[AuditFinding, ...]:
    """What the rules of setups find, in the order of their codes."""
    from hermetic.audit.rules.setup_checks import SETUP_RULES

    return tuple(finding for rule in SETUP_RULES if rule.check is not None for finding in rule.check(setup))


def report_of(setup: Setup, *, subject: str, kind: Kind, notes: tuple[str, ...] = ()) -> AuditReport:
    """A setup's report."""
    return AuditReport(
        subject=subject,
        kind=kind,
        stack=setup.stack,
        findings=findings_of(setup),
        facts=setup.facts,
        notes=(*notes, *setup.notes),
    )


def marks() -> Mapping[Stack, frozenset[str]]:
    """For each stack the names of settings that are its own."""
    return {stack: importlib.import_module(f"hermetic.audit.stacks.{stack}").MARKS for stack in STACKS}
