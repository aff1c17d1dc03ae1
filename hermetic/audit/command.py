"""Audit a command line of a training: of a stack's own program, of a launcher, or of a script with a stack's options.

Algorithm: the program names the stack; options become settings, over those of the configuration that the command
names. Guarantee: nothing runs; an option whose value only a shell would know is unknown, and no default.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermetic.audit.finding import AuditReport, Place
from hermetic.audit.setup import OTHERS, UNKNOWN, Setting, Settings, Stack
from hermetic.audit.stacks import report_of, setup_of
from hermetic.audit.stacks.detect import stack_of
from hermetic.audit.stacks.files import read_text, scalar_of, settings_of_json, settings_of_yaml
from hermetic.audit.stacks.shell import HOLE, REST, Word, commands_of
from hermetic.errors import AuditError

_PROGRAMS: Final[Mapping[str, Stack]] = {
    "trl": "trl",
    "axolotl": "axolotl",
    "llamafactory-cli": "llamafactory",
    "lmf": "llamafactory",
    "swift": "swift",
    "megatron": "swift",
    "tune": "torchtune",
}
_MODULES: Final[Mapping[str, Stack]] = {
    "trl.": "trl",
    "axolotl.": "axolotl",
    "llamafactory.": "llamafactory",
    "swift.": "swift",
    "megatron.": "megatron",
}
_SCRIPTS: Final[tuple[tuple[re.Pattern[str], Stack], ...]] = (
    (re.compile(r"(^|/)trl/scripts/\w+\.py$"), "trl"),
    (re.compile(r"(^|/)swift/cli/\w+\.py$"), "swift"),
    (re.compile(r"(^|/)pretrain_\w+\.py$"), "megatron"),
)
_LAUNCHERS: Final = ("accelerate", "torchrun", "deepspeed", "python", "mpirun", "srun", "uv", "poetry")
_BEFORE_PROGRAMS: Final = {
    *("mpirun", "srun", "uv", "uvx", "poetry", "pixi", "conda", "mamba", "docker", "podman"),
    *("apptainer", "singularity", "accelerate", "torchrun", "deepspeed", "timeout"),
}
_OVERRIDES: Final = {"llamafactory", "torchtune"}
_OVERRIDE: Final = re.compile(r"[A-Za-z_][\w.]*=")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What stands in a command."""

    stack: Stack | None
    settings: Settings
    notes: tuple[str, ...]


def audit_command(
    argv: Sequence[str], *, stack: str | None = None, versions: Mapping[str, str] | None = None
) -> AuditReport:
    """Audit a command line, which is not run.

    Args:
        argv: the program and its arguments, as a shell has split them.
        stack: whose options they are, if the program does not say.
        versions: of packages, such as ``{"trl": "1.16.0"}``.

    Raises:
        AuditError: no stack is known by it, or a configuration that it names cannot be read.

    Example:
        >>> argv = ["trl", "sft", "--packing", "--packing_strategy", "wrapped", "--max_length", "4096"]
        >>> [finding.code for finding in audit_command(argv).findings]
        ['HM120']
    """
    words = tuple(Word(text=word) for word in itertools.dropwhile(_OVERRIDE.match, argv))  # NAME=value before it
    if not words:
        raise AuditError("the command is empty; expected a program and its arguments, after --")
    command = read_command(words, file=None, stack=stack)
    return _report(command, " ".join(argv), stack, versions)


def audit_command_file(
    path: Path, *, stack: str | None = None, versions: Mapping[str, str] | None = None
) -> AuditReport:
    """Audit the training commands of a shell script, which is not run."""
    reports = [
        _report(command, str(path), stack, versions) for command in _of_training(read_text(path), str(path), stack)
    ]
    if not reports:
        raise AuditError(
            f"{path} has no command of a known stack; expected one of {', '.join(_PROGRAMS)}, or a script with its "
            "options. Say whose they are with --stack"
        )
    if len({report.stack for report in reports}) > 1:
        raise AuditError(f"{path} has commands of several stacks; expected those of one. Audit them one by one")
    first = reports[0]
    return AuditReport(
        subject=first.subject,
        kind="command",
        stack=first.stack,
        findings=tuple(dict.fromkeys(finding for report in reports for finding in report.findings)),
        facts=first.facts,
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def _report(command: Command, subject: str, stack: str | None, versions: Mapping[str, str] | None) -> AuditReport:
    found = stack or command.stack or stack_of(command.settings, subject)
    return report_of(
        setup_of(found, command.settings, versions=versions), subject=subject, kind="command", notes=command.notes
    )


def _of_training(text: str, file: str, stack: str | None) -> Iterator[Command]:
    """Commands that a stack is known by; others, such as ``cd`` and ``pip``, are not of training."""
    for words in commands_of(text, file):
        named = _named(words)
        options = any(word.text.startswith("--") for word in words)
        if named is None and not (options and _launches(words)):
            continue
        command = read_command(words, file=file, stack=stack)
        if stack or command.stack or _is_known(command.settings):
            yield command


def _is_known(settings: Settings) -> bool:
    try:
        stack_of(settings, "")
    except AuditError:
        return False
    return True


def _launches(words: tuple[Word, ...]) -> bool:
    return Path(words[0].text).name.startswith(_LAUNCHERS)


def _named(words: tuple[Word, ...]) -> tuple[Stack, int] | None:
    """The stack that a program, a module or a script is of, and where its own arguments begin."""
    for index, word in enumerate(words):
        name = Path(word.text).name
        known = _PROGRAMS.get(name) if index == 0 or _is_started(words, index) else None
        module = words[index - 1].text in {"-m", "--module"} if index else False
        if module:
            known = next((stack for start, stack in _MODULES.items() if word.text.startswith(start)), None)
        if known is None:
            known = next((stack for pattern, stack in _SCRIPTS if pattern.search(word.text)), None)
        if known is not None:
            return known, index + 1
    return None


def _is_started(words: tuple[Word, ...], index: int) -> bool:
    """Whether a word may be the program that another one starts: a subcommand follows it."""
    after = words[index + 1].text if index + 1 < len(words) else ""
    return Path(words[0].text).name in _BEFORE_PROGRAMS and re.fullmatch(r"[a-z]+", after) is not None


def read_command(words: tuple[Word, ...], *, file: str | None, stack: str | None) -> Command:
    """The settings of a command, those of its configuration under them."""
    named = _named(words)
    known = stack if stack is not None else named[0] if named else None
    begin = named[1] if named else _own_script(words)
    overrides = known in _OVERRIDES
    launcher = dict(_options(words[: max(begin - 1, 0)], file, overrides=False))
    own = dict(_options(words[begin:], file, overrides=overrides))
    base = Path(file).parent if file else Path()
    under, notes = _configuration(words[begin:], own, base, known)
    aside, more = _of_accelerate(launcher, base)
    settings = {**aside, **under, **launcher, **own}
    return Command(stack=named[0] if named else None, settings=settings, notes=(*notes, *more))


def _own_script(words: tuple[Word, ...]) -> int:
    """Where the arguments of a script begin that no stack is known by."""
    return next((index + 1 for index, word in enumerate(words) if word.text.endswith(".py")), 0)


def _options(words: Sequence[Word], file: str | None, *, overrides: bool) -> Iterator[tuple[str, Setting]]:
    """``--name value ...``, ``--name=value``, and ``name=value`` where the stack has that; the last one counts."""
    name: Word | None = None
    values: list[str] = []
    for word in words:
        starts = word.text.startswith("--") and len(word.text) > 2
        override = overrides and _OVERRIDE.match(word.text) is not None
        several = word.text == REST
        if several:
            yield OTHERS, _unread()[OTHERS]
        if starts or override or several or re.match(r"-[A-Za-z]", word.text):
            yield from _option(name, values, file)
            name, values = (word if starts or override else None), []
        elif name is not None:
            values.append(word.text)
    yield from _option(name, values, file)


def _option(word: Word | None, values: list[str], file: str | None) -> Iterator[tuple[str, Setting]]:
    if word is None:
        return
    written, joined, value = word.text.partition("=")
    name = written.removeprefix("--").replace("-", "_")
    place = Place(key=written, file=file, line=word.line, column=word.column)
    yield from _flat(name, _plain([value] if joined else values), place)


def _plain(values: list[str]) -> Any:
    if any(HOLE in value for value in values):
        return UNKNOWN
    if not values:
        return True
    if len(values) > 1:
        return [scalar_of(value) for value in values]
    (value,) = values
    if value.startswith("{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return scalar_of(value)


def _flat(name: str, value: Any, place: Place) -> Iterator[tuple[str, Setting]]:
    yield name, Setting(value=value, place=place)
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _flat(f"{name}.{key}", one, place)


def _configuration(
    words: Sequence[Word], own: Settings, base: Path, stack: str | None
) -> tuple[Settings, tuple[str, ...]]:
    """The settings of the file that a command names, with ``--config`` or by itself."""
    named = own.get("config")
    if named is not None and isinstance(named.value, list):
        named = Setting(value=named.value[0], place=named.place)
    name = named.value if named else next(filter(_is_file_name, (word.text for word in words)), None)
    if isinstance(name, str) and HOLE in name:
        name = UNKNOWN
    if name is None or name is UNKNOWN:
        if name is None:
            return {}, ()
        return _unread(), ("The configuration that the command names is not known before it runs.",)
    path = _found(str(name), base)
    if path is None and stack == "torchtune" and not _is_file_name(str(name)):
        return _unread(), (f"The configuration {name} comes with torchtune and was not read; what stands over it was.",)
    if path is None:
        raise AuditError(f"the command names the configuration {name}, which is not there; give its path")
    return _settings_of_file(path), ()


def _unread() -> Settings:
    """Settings that are there and were not read."""
    return {OTHERS: Setting(value=UNKNOWN, place=Place(key=OTHERS))}


def _is_file_name(word: str) -> bool:
    return word.endswith((".yaml", ".yml", ".json")) and not word.startswith("-") and "=" not in word


def _found(name: str, base: Path) -> Path | None:
    """A path from where the script stands, from here, or from a folder above the script, as of a repository's root."""
    folders = (base, Path(), *base.resolve().parents[:3])
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _settings_of_file(path: Path) -> Settings:
    text = read_text(path)
    return settings_of_json(text, str(path)) if path.suffix == ".json" else settings_of_yaml(text, str(path))


def _of_accelerate(launcher: Settings, base: Path) -> tuple[Settings, tuple[str, ...]]:
    """How Accelerate's own configuration splits rows."""
    named = launcher.get("config_file")
    if named is None or not isinstance(named.value, str):
        return {}, ()
    path = _found(named.value, base)
    if path is None:
        return {}, (f"Accelerate's configuration {named.value} is not there, so how it splits rows is not known.",)
    settings = _settings_of_file(path)
    return {name: one for name, one in settings.items() if name.startswith("parallelism_config")}, ()
