"""Every rule there is, by its code.

Guarantee: codes and names are unique, and each code's hundred is a topic; a module of rules that says otherwise cannot
be imported. Importing the rules imports neither torch nor NumPy, so they can be told wherever Python starts.
Price: some milliseconds, for the rules are text, and only when ``RULES`` is asked for.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hermetic.audit.rule import Rule

TOPICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "HM1": "isolation",
        "HM2": "positions and lengths",
        "HM3": "state",
        "HM4": "targets",
        "HM5": "weights",
        "HM6": "what cannot be read or run",
        "HM7": "data and overflow",
        "HM8": "parallel training",
    }
)
"""What the hundreds of the codes are about."""

_MODULES: Final = (
    "batch_isolation",
    "batch_overflow",
    "batch_positions",
    "batch_reading",
    "batch_targets",
    "folder_data",
    "measured_calls",
    "measured_isolation",
    "measured_positions",
    "measured_reading",
    "measured_state",
    "measured_targets",
    "measured_weights",
    "script_boundaries",
    "script_isolation",
    "script_lengths",
    "script_weights",
    "setup_data",
    "setup_isolation",
    "setup_training",
)


_KINDS: Final = ("measured", "setup", "script", "batch", "folder")
"""What the names of modules start with, by their codes' last two digits: twenty for each."""


def by_code(rules: Iterable[Rule]) -> Mapping[str, Rule]:
    """Rules by code, in the order of the codes; two of one code or of one name are an error of ours."""
    ordered = sorted(rules, key=lambda rule: rule.code)
    for part in ("code", "name"):
        values = [getattr(rule, part) for rule in ordered]
        twice = sorted({value for value in values if values.count(value) > 1})
        assert not twice, f"two rules have the {part} {', '.join(twice)}"  # noqa: S101 - rules are ours
    strange = [rule.code for rule in ordered if rule.code[:3] not in TOPICS]
    assert not strange, f"{', '.join(strange)} belong to no topic; expected {', '.join(TOPICS)}"  # noqa: S101 - likewise
    return MappingProxyType({rule.code: rule for rule in ordered})


if TYPE_CHECKING:
    RULES: Mapping[str, Rule]
    """All rules, ordered by code."""


@functools.cache
def _rules(kind: str = "") -> Mapping[str, Rule]:
    """The rules of modules whose names start so."""
    names = (name for name in _MODULES if name.startswith(kind))
    return by_code(rule for name in names for rule in import_module(f"{__name__}.{name}").RULES)


def rule_of(code: str) -> Rule | None:
    """The rule of a code, for which no modules are imported but those of its kind; ``None`` if there is none."""
    return _rules(_KINDS[int(code[-2:]) // 20]).get(code) if re.fullmatch(r"HM[0-9]{3}", code) else None


def __getattr__(name: str) -> Any:
    """``RULES``, when they are first asked for: an audit of a configuration needs only those of configurations."""
    if name != "RULES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _rules()
