"""Look a rule up by its code, say who finds it, and show it in a terminal.

Price: neither torch nor NumPy is imported, so an explanation is there at once.
"""

import difflib
import inspect
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from hermetic import errors
from hermetic.audit.rule import Door, Example, Rule
from hermetic.audit.rules import TOPICS, rule_of
from hermetic.errors import AuditError, HermeticError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_READ_IN: Final = ("settings", "script", "batch", "folder")
"""What an audit reads to find a rule, by the code's last two digits: twenty for each, from 20 on."""

_ALSO_READ_IN: Final = {
    "HM101": ("script", "batch"),
    "HM102": ("script", "batch"),
    "HM103": ("script", "batch"),
    "HM109": ("batch",),
    "HM201": ("script", "batch"),
    "HM401": ("script", "batch"),
    "HM403": ("script", "batch"),
    "HM501": ("script",),
    "HM602": ("batch",),
    "HM603": ("batch",),
}
"""Where an audit reads what the probe and the doctor measure."""

_DOCTOR_ALONE: Final = {"HM602", "HM603"}
"""Read off a training batch before there is anything to probe."""

_DOORS: Final[dict[Door, str]] = {
    "run": "Python that is run",
    "batch": "Python that makes a batch",
    "script": "a script, read and not run",
    "trl": "settings of TRL",
    "axolotl": "settings of Axolotl",
    "llamafactory": "settings of LLaMA-Factory",
    "swift": "settings of ms-swift",
    "torchtune": "settings of torchtune",
    "megatron": "settings of Megatron Bridge and NeMo",
    "deepspeed": "settings of DeepSpeed",
}


def explain(code: str) -> Rule:
    """The rule of a code, in capitals or not.

    Args:
        code: of a finding, such as ``HM101``.

    Raises:
        AuditError: there is no such rule; names those whose codes are most like it, or the error whose code it is.

    Example:
        >>> explain("HM101").name
        'mask-of-ones'
    """
    rule = rule_of(code.strip().upper())
    error = None if rule else error_of(code)
    if error is not None:
        raise AuditError(
            f"{error.code} is the code of an error, {error.__name__}: {meaning_of(error)} It is no rule; expected a "
            "code of hermetic explain --list"
        )
    if rule is None:
        closest = ", ".join(f"{one.code} ({one.name})" for one in _near(code.strip().upper()))
        raise AuditError(
            f"rule {code!r} is unknown; expected a code of hermetic explain --list"
            + (f". The closest are {closest}" if closest else "")
        )
    return rule


def error_of(code: str) -> type[HermeticError] | None:
    """The error of a code, in capitals or not; ``None`` of what is no code of an error.

    Raises:
        AuditError: it is written as one, and there is no such error.

    Example:
        >>> error_of("HE501").__name__
        'LeakError'
    """
    wanted = code.strip().upper()
    if not re.fullmatch(r"HE[0-9]{3}", wanted):
        return None
    found = {one.code: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, HermeticError)}
    if wanted not in found:
        raise AuditError(f"error {code!r} is unknown; expected a code that docs/errors.md lists, such as HE501")
    return found[wanted]


def meaning_of(error: type[HermeticError]) -> str:
    """What an error says of itself.

    Example:
        >>> meaning_of(error_of("HE501"))
        'The probe found that documents reach each other.'
    """
    return (inspect.getdoc(error) or "").replace("``", "")


def error_as_plain(error: type[HermeticError]) -> dict[str, str]:
    """Plain data for JSON: code, name and meaning of an error."""
    return {"code": error.code, "name": error.__name__, "what": meaning_of(error)}


def render_error(error: type[HermeticError]) -> "Group":
    """What an error says, for a terminal."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(f"{error.code} ", style="bold red").append(error.__name__, style="bold default"),
        Text("an error, which ends a command; no finding of a rule. docs/errors.md has all", style="dim"),
        Text(meaning_of(error)),
    )


def _near(code: str) -> list[Rule]:
    """Up to three rules: of the nearest numbers, or of the nearest spelling where it is no code at all."""
    from hermetic.audit.rules import RULES

    if re.fullmatch(r"HM[0-9]{3}", code):
        return sorted(RULES.values(), key=lambda rule: abs(int(rule.code[2:]) - int(code[2:])))[:3]
    return [RULES[one] for one in difflib.get_close_matches(code, RULES, n=3)]


def topic_of(rule: Rule) -> str:
    """What its hundred is about."""
    return TOPICS[rule.code[:3]]


def found_by(rule: Rule) -> str:
    """Which commands find it, and what an audit reads to find it.

    Example:
        >>> found_by(explain("HM101"))
        'probe, doctor, audit: script, batch'
    """
    place = int(rule.code[-2:]) // 20
    running = () if place else ("doctor",) if rule.code in _DOCTOR_ALONE else ("probe", "doctor")
    read_in = (_READ_IN[place - 1],) if place else _ALSO_READ_IN.get(rule.code, ())
    return ", ".join([*running, *([f"audit: {', '.join(read_in)}"] if read_in else [])])


def read_as(example: Example) -> str:
    """How an example is read: whose file it is, or what becomes of it."""
    parts = [_DOORS[example.door], *([example.file] if example.file else [])]
    return ", ".join([*parts, *(f"with {version}" for version in example.versions)])


def link_of(source: str) -> str | None:
    """Where a source can be read: an issue or pull request, or an address; ``None`` of a file of this repository.

    Example:
        >>> link_of("huggingface/trl#1230")
        'https://github.com/huggingface/trl/issues/1230'
    """
    if source.startswith("https://"):
        return source
    repository, mark, number = source.partition("#")
    return f"https://github.com/{repository}/issues/{number}" if mark else None


def as_plain(rule: Rule) -> dict[str, Any]:
    """Plain data for JSON: all that a rule says, who finds it, and its topic."""
    said = asdict(rule)
    del said["check"]
    return {**said, "topic": topic_of(rule), "found_by": found_by(rule)}


def render(rule: Rule) -> "Group":
    """All that a rule says, for a terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Text | Padding] = [
        Text(f"{rule.code} ", style="bold red").append(rule.name, style="bold default"),
        Text(f"{topic_of(rule)}; found by {found_by(rule)}", style="dim"),
        Text(rule.what),
    ]
    examples = ((f"{how}: {read_as(one)}", one) for how, one in (("Found", rule.bad), ("Sound", rule.good)))
    sections = (
        ("Why", Text(rule.why)),
        *((head, Text(one.text.rstrip(), overflow="fold")) for head, one in examples),
        ("Fix", Text(rule.fix)),
        ("Sources", Text("\n".join(link_of(source) or source for source in rule.sources))),
    )
    for head, body in sections:
        parts += [Text(f"\n{head}", style="bold"), Padding(body, (0, 0, 0, 2), expand=False)]
    return Group(*parts)


def render_list(rules: Iterable[Rule]) -> "Table":
    """Code, name and finder of each rule, topic by topic, for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("code", no_wrap=True, min_width=len("HM100"))
    table.add_column("name", no_wrap=True)
    table.add_column("found by")
    listed = list(rules)
    for rule, after in zip(listed, [*listed[1:], None], strict=True):
        ends = after is not None and topic_of(after) != topic_of(rule)
        table.add_row(rule.code, rule.name, found_by(rule), end_section=ends)
    return table
