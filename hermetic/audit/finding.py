"""What an audit found: plain data, a place in a file, how sure it is, and the way out."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Group

Certainty = Literal["certain", "likely", "depends on version"]
Kind = Literal["configuration", "command", "script", "batch", "folder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where something was read."""

    key: str
    """Name of the setting, argument, call or tensor, as its author wrote it: ``SFTConfig(packing)``."""
    file: str | None = None
    line: int | None = None
    """From 1."""
    column: int | None = None
    """From 1."""

    def __str__(self) -> str:
        before = [part for part in (self.file, self.line and str(self.line), self.column and str(self.column)) if part]
        return " ".join((*([":".join(before)] if before else ()), self.key))


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFinding:
    """One thing that is wrong, or that cannot be told to be right, and the way out."""

    code: str
    """Of the rule; ``hermetic explain CODE`` tells the rest."""
    certainty: Certainty
    what: str
    place: Place
    value: str
    """What stands there, as text."""
    way_out: str
    versions: str | None = None
    """Of which versions this is true, such as ``trl < 1.10``; of every finding that depends on a version."""

    def __post_init__(self) -> None:
        assert self.certainty != "depends on version" or self.versions is not None, self.code  # noqa: S101 - ours


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """What was read, and everything that was found in it."""

    subject: str
    """Path of what was read, or the class of a batch."""
    kind: Kind
    stack: str | None
    """Whose configuration it is, such as ``axolotl``; ``None`` of batches and folders."""
    findings: tuple[AuditFinding, ...]
    facts: tuple[tuple[str, str], ...] = ()
    """What was understood, in the order to show it: ``("packing", "cut and concatenated")``."""
    notes: tuple[str, ...] = ()
    """What could not be read, or has to be known to read the findings."""
    ignored: tuple[tuple[str, int], ...] = ()
    """Codes that were to be ignored, and how many findings each had."""

    @property
    def sound(self) -> bool:
        """Nothing was found; that nothing leaks is for the probe to say."""
        return not self.findings

    def without(self, codes: Iterable[str]) -> "AuditReport":
        """The report with the findings of these codes counted, and no longer among the findings.

        Example:
            >>> AuditReport(subject="s", kind="batch", stack=None, findings=()).without(["HM120"]).ignored
            (('HM120', 0),)
        """
        ignored = {code: sum(one.code == code for one in self.findings) for code in sorted(set(codes))}
        told = ", ".join(f"{count} of {code}" for code, count in ignored.items() if count)
        return replace(
            self,
            findings=tuple(one for one in self.findings if one.code not in ignored),
            notes=(*self.notes, *([f"Findings that were ignored, as asked: {told}."] if told else [])),
            ignored=tuple(ignored.items()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"sound": self.sound, **asdict(self), "facts": dict(self.facts), "ignored": dict(self.ignored)}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False) + "\n"

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "AuditReport":
        """The inverse of ``to_dict``."""
        findings = tuple(
            AuditFinding(**{**finding, "place": Place(**finding["place"])}) for finding in plain["findings"]
        )
        return AuditReport(
            subject=plain["subject"],
            kind=plain["kind"],
            stack=plain["stack"],
            findings=findings,
            facts=tuple(plain["facts"].items()),
            notes=tuple(plain["notes"]),
            ignored=tuple(plain.get("ignored", {}).items()),
        )

    def __rich__(self) -> "Group":
        from hermetic.audit.render import render

        return render(self)
