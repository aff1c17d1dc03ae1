"""Look a rule up by its code, and say who finds it."""

import difflib

from hermetic.audit.rule import Rule
from hermetic.audit.rules import RULES
from hermetic.errors import AuditError

_FINDERS = ("probe, doctor", "audit of a configuration", "audit of a script", "audit of a batch", "audit of a folder")
"""By the code's last two digits, twenty for each."""

_DOCTOR_ALONE = {"HM602", "HM603"}
"""Read off a training batch before there is anything to probe."""


def explain(code: str) -> Rule:
    """The rule of a code, in capitals or not.

    Args:
        code: of a finding, such as ``HM101``.

    Raises:
        AuditError: there is no such rule; names those whose codes are most like it.

    Example:
        >>> explain("HM101").name
        'mask-of-ones'
    """
    rule = RULES.get(code.strip().upper())
    if rule is None:
        near = difflib.get_close_matches(code.strip().upper(), RULES, n=3)
        closest = ", ".join(f"{one} ({RULES[one].name})" for one in near)
        raise AuditError(
            f"rule {code!r} is unknown; expected a code of hermetic explain --list"
            + (f". The closest are {closest}" if near else "")
        )
    return rule


def found_by(rule: Rule) -> str:
    """Which command finds it, by the code's place in its hundred.

    Example:
        >>> found_by(explain("HM101"))
        'probe, doctor'
    """
    return "doctor" if rule.code in _DOCTOR_ALONE else _FINDERS[int(rule.code[-2:]) // 20]
