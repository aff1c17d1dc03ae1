"""Every rule there is, by its code.

Guarantee: codes and names are unique, and each code's hundred is a topic; a module of rules that says otherwise cannot
be imported. Importing the rules imports neither torch nor NumPy, so they can be told wherever Python starts.
Price: some milliseconds, for the rules are text.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules import (
    batch_isolation,
    batch_overflow,
    batch_positions,
    batch_reading,
    batch_targets,
    folder_data,
    measured_calls,
    measured_isolation,
    measured_positions,
    measured_reading,
    measured_state,
    measured_targets,
    measured_weights,
    script_boundaries,
    script_isolation,
    script_lengths,
    script_weights,
    setup_data,
    setup_isolation,
    setup_training,
)

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
    batch_isolation,
    batch_overflow,
    batch_positions,
    batch_reading,
    batch_targets,
    folder_data,
    measured_calls,
    measured_isolation,
    measured_positions,
    measured_reading,
    measured_state,
    measured_targets,
    measured_weights,
    script_boundaries,
    script_isolation,
    script_lengths,
    script_weights,
    setup_data,
    setup_isolation,
    setup_training,
)


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


RULES: Final[Mapping[str, Rule]] = by_code(rule for module in _MODULES for rule in module.RULES)
"""All rules, ordered by code."""
