"""Whose configuration it is, told by the names in it."""

from hermetic.audit.setup import Settings, Stack
from hermetic.audit.stacks import STACKS, marks
from hermetic.errors import AuditError


def stack_of(settings: Settings, subject: str) -> Stack:
    """The one stack that has most of these settings.

    Raises:
        AuditError: none has any, or several have as many.
    """
    counts = {stack: _count(settings, names) for stack, names in marks().items()}
    most = max(counts.values())
    best = [stack for stack, count in counts.items() if count == most]
    way_out = f"Say whose it is with --stack, one of {', '.join(STACKS)}"
    if not most:
        known = ", ".join(sorted(settings)[:5]) or "nothing"
        raise AuditError(f"{subject} is of no known stack: none has settings such as {known}. {way_out}")
    if len(best) > 1:
        raise AuditError(f"{subject} may be of {' or of '.join(best)}: its settings are known to each. {way_out}")
    return best[0]


def _count(settings: Settings, names: frozenset[str]) -> int:
    """How many settings are this stack's; ``*`` at an end of a name stands for anything."""
    whole = sum(name in settings for name in names if "*" not in name)
    ends = tuple(name[1:] for name in names if name.startswith("*"))
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    parts = sum(bool(ends and name.endswith(ends)) or bool(starts and name.startswith(starts)) for name in settings)
    return whole + parts
