"""An audit for a terminal: the verdict, what was found and what to do, what was understood.

Guarantee: what comes from a file is shown as text; what would steer the terminal is shown as an escape.
"""

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from hermetic.audit.finding import AuditFinding, AuditReport, Certainty, Place
from hermetic.audit.wording import CERTAINTIES, TO_THE_DOCTOR, UNJUDGED, alike, counts_in_words, judged

_COLOURS: Final[dict[Certainty, str]] = {"certain": "red", "likely": "yellow", "depends on version": "yellow"}
_MOST_PLACES: Final = 4


def render(report: AuditReport) -> Group:
    """Headline, findings with their ways out, facts, notes."""
    parts: list[RenderableType] = [_headline(report)]
    parts += [_finding(places) for places in alike(report.findings)]
    if report.findings:
        parts.append(Text(f"hermetic explain {report.findings[0].code} tells why it is bad, and shows examples", "dim"))
    parts += _facts(report)
    parts += [Text(f"- {_shown(note)}", style="dim") for note in report.notes]
    return Group(*parts)


def _headline(report: AuditReport) -> Text:
    what = f"{report.kind} of {report.stack}" if report.stack else report.kind
    if report.sound:
        if not judged(report):
            return Text(f"{_shown(report.subject)}: nothing found in this {what}: {UNJUDGED}; {TO_THE_DOCTOR}", "bold")
        count = sum(number for _, number in report.ignored)
        nothing = f"nothing found but {count} ignored" if count else "nothing found"
        return Text(f"{_shown(report.subject)}: sound: {nothing} in this {what}", style="bold green")
    found = {finding.certainty for finding in report.findings}
    colour = _COLOURS[next(kind for kind in CERTAINTIES if kind in found)]
    number, told = len(report.findings), counts_in_words(report.findings)
    return Text(
        f"{_shown(report.subject)}: {number:,} finding{'s' * (number > 1)} in this {what}: {told}",
        style=f"bold {colour}",
    )


def _finding(same: list[AuditFinding]) -> Text:
    first = same[0]
    text = Text(f"{first.code} ", style=f"bold {_COLOURS[first.certainty]}")
    text.append(_certainty(first), style=_COLOURS[first.certainty])
    text.append(f": {_shown(first.what)}", style="not bold default")
    for finding in same[:_MOST_PLACES]:
        text.append(f"\n      {_place(finding.place)} = {_shown(finding.value)}", style="not bold default")
    if len(same) > _MOST_PLACES:
        text.append(f"\n      and {len(same) - _MOST_PLACES} more places", style="not bold default")
    return text.append(f"\n      {_shown(first.way_out)}", style="not bold dim default")


def _certainty(finding: AuditFinding) -> str:
    if finding.certainty == "depends on version":
        return f"depends on version, {_shown(finding.versions or '')}"
    return finding.certainty


def _place(place: Place) -> str:
    return _shown(str(place))


def _facts(report: AuditReport) -> list[RenderableType]:
    width = max((len(name) for name, _ in report.facts), default=0)
    return [Text(f"{_shown(name):<{width}}  {_shown(value)}", style="dim") for name, value in report.facts]


def _shown(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
