"""The command line: formatting only. What is shown is computed below.

Exit code 0 is sound, 1 a finding (a leak, a lost token), 2 wrong usage or bad input.
"""

from typing import Final

from hermetic.cli import audit, compare, data, explain, models, show, training
from hermetic.cli.common import app

__all__ = ["app", "audit", "compare", "data", "explain", "main", "models", "show", "training"]

_IN_HELP: Final = (
    *("demo", "plan", "pack", "inspect", "export", "show"),
    *("audit", "explain", "probe", "doctor", "train", "compare", "atlas"),
)
"""Commands in the order in which one meets them."""

app.registered_commands.sort(key=lambda command: _IN_HELP.index(getattr(command.callback, "__name__", "")))


def main() -> None:
    """The console script ``hermetic``."""
    app()
