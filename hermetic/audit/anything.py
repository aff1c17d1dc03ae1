"""One door for everything that can be audited."""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from hermetic.audit.finding import AuditReport
from hermetic.errors import AuditError

_SCRIPTS: Final = {".py", ".ipynb"}
_BEGINNING: Final = 4096
_BATCHES: Final = {".safetensors", ".npz", ".arrow", ".feather", ".ipc", ".parquet", ".jsonl", ".npy", ".pt"}
"""Endings that no configuration has; the last two are refused by name."""

_VALUES: Final = re.compile(rb'"(?:input_ids|position_ids|cu_seqlens|labels)"\s*:\s*\[')


def audit(
    subject: Any,
    *,
    stack: str | None = None,
    versions: Mapping[str, str] | None = None,
    tokenizer: str | PathLike[str] | None = None,
    duplicates: bool = False,
) -> AuditReport:
    """Read a configuration, a script, a batch or a packed folder, and say what is wrong with it. Nothing runs.

    Args:
        subject: the path of a configuration (YAML, JSON, a shell script), of a Python script or notebook, of a file
            with a batch, or of a folder that ``hermetic pack`` made; a batch itself (a mapping of arrays or tensors,
            a ``PackedBatch``); or a list of words, which is a command line.
        stack: of a configuration or command, whose it is, if it could be several's.
        versions: of packages, such as ``{"trl": "1.16.0"}``; of a configuration, command or script.
        tokenizer: of a packed folder, the one that should have made its rows: a folder or a model id.
        duplicates: of a packed folder, whether to look for near-duplicates that share a row, which needs rensa.

    Returns:
        Facts, findings and notes; ``report.sound`` if nothing was found.

    Raises:
        AuditError: it cannot be read, is nothing of these, or came with an option that says nothing of it.
        DataError: the tokenizer cannot be loaded.
        MissingDependencyError: of a packed folder, datasets is not installed, or for duplicates rensa.

    Example:
        >>> report = audit(["trl", "sft", "--packing", "--packing_strategy", "wrapped", "--max_length", "4096"])
        >>> report.findings[0].code
        'HM120'
    """
    is_path = isinstance(subject, (str, PathLike))
    if is_path and Path(subject).is_dir():
        require_unset("a packed folder", stack=stack, versions=versions)
        from hermetic.audit.folder import audit_folder

        return audit_folder(subject, tokenizer=tokenizer, duplicates=duplicates)
    require_folder_unset(tokenizer=tokenizer, duplicates=duplicates)
    if is_path:
        return _audit_file(Path(subject), stack=stack, versions=versions)
    if isinstance(subject, (list, tuple)) and all(isinstance(word, str) for word in subject):
        from hermetic.audit.command import audit_command

        return audit_command(subject, stack=stack, versions=versions)
    require_unset("a batch", stack=stack, versions=versions)
    from hermetic.audit.batch.audit import audit_batch

    return audit_batch(subject)


def require_unset(what: str, *, stack: str | None, versions: Mapping[str, str] | None = None) -> None:
    """Refuse what would be ignored.

    Raises:
        AuditError: a stack or versions were given.
    """
    if stack is not None:
        raise AuditError(f"stack is {stack!r}, and {what} is of no stack; expected none, or a configuration or command")
    if versions:
        named = ", ".join(f"{package}=={version}" for package, version in versions.items())
        raise AuditError(f"versions are {named}, and {what} is judged without; expected none")


def require_folder_unset(*, tokenizer: str | PathLike[str] | None, duplicates: bool) -> None:
    """Refuse, of what is no folder, what only the audit of a packed folder looks at.

    Raises:
        AuditError: a tokenizer was given, or duplicates were asked for.
    """
    if tokenizer is not None:
        raise AuditError(f"tokenizer is {tokenizer!s}, and only a packed folder is checked with one; expected none")
    if duplicates:
        raise AuditError(
            "duplicates are looked for in a packed folder only; expected duplicates=False (no --duplicates)"
        )


def _audit_file(path: Path, *, stack: str | None, versions: Mapping[str, str] | None) -> AuditReport:
    suffix = path.suffix.lower()
    if suffix in _SCRIPTS:
        require_unset("a script", stack=stack)
        from hermetic.audit.script.report import audit_script

        return audit_script(path, versions=versions)
    if suffix in _BATCHES or (suffix == ".json" and _holds_tokens(path)):
        require_unset("a batch", stack=stack, versions=versions)
        from hermetic.audit.batch.audit import audit_batch

        return audit_batch(path)
    if not path.exists():
        raise AuditError(f"{path} is not there; expected a configuration, a script, a batch or a packed folder")
    from hermetic.audit.config import audit_config

    return audit_config(path, stack=stack, versions=versions)


def _holds_tokens(path: Path) -> bool:
    """A JSON file with a batch has a tensor's name with a list near its beginning; a configuration has none."""
    if not path.is_file():  # a pipe would not end
        return False
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except OSError:
        return False
    return _VALUES.search(beginning) is not None
