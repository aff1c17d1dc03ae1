"""The rules of setups together, in the order of their codes."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules import setup_data, setup_isolation, setup_training

SETUP_RULES: Final[tuple[Rule, ...]] = tuple(
    sorted((*setup_isolation.RULES, *setup_training.RULES, *setup_data.RULES), key=lambda rule: rule.code)
)
