"""Audit a configuration file of a training stack.

Algorithm: YAML or JSON become settings, a shell script the settings of its commands; the names in them say whose they
are, and that stack's module says what they come to. Guarantee: nothing is run or constructed, and torch is not
imported. Price: some milliseconds for a configuration.
"""

from collections.abc import Mapping
from pathlib import Path

from hermetic.audit.command import audit_command_file
from hermetic.audit.finding import AuditReport
from hermetic.audit.stacks import report_of, setup_of
from hermetic.audit.stacks.detect import stack_of
from hermetic.audit.stacks.files import read_text, settings_of_json, settings_of_yaml
from hermetic.errors import AuditError

YAML = {".yaml", ".yml"}
COMMANDS = {".sh", ".bash", ".zsh", ".txt", ".slurm", ".sbatch", ""}


def audit_config(
    path: str | Path, *, stack: str | None = None, versions: Mapping[str, str] | None = None
) -> AuditReport:
    """Audit a configuration, or a shell script that starts a training.

    Args:
        path: ``.yaml``, ``.yml`` and ``.json``; ``.sh``, ``.txt`` and names without an ending hold command lines.
        stack: whose it is, if it could be several's: ``trl``, ``axolotl``, ``llamafactory``, ``swift``,
            ``torchtune``, ``megatron``, ``deepspeed``.
        versions: of packages, such as ``{"trl": "1.16.0"}``; without one, what depends on it says so.

    Returns:
        What was understood, and what was found.

    Raises:
        AuditError: it cannot be read, is of no known stack or may be of several, or a setting has a value that its
            stack cannot take.

    Example:
        >>> audit_config("train.yaml").sound  # doctest: +SKIP
        True
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in COMMANDS:
        return audit_command_file(path, stack=stack, versions=versions)
    if suffix not in YAML | {".json"}:
        raise AuditError(f"{path} has the ending {suffix}; expected .yaml, .yml, .json, .sh, .txt or a script in .py")
    text = read_text(path)
    settings = settings_of_json(text, str(path)) if suffix == ".json" else settings_of_yaml(text, str(path))
    found = stack or stack_of(settings, str(path))
    return report_of(setup_of(found, settings, versions=versions), subject=str(path), kind="configuration")
