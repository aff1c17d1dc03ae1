"""A diagnosis for a terminal: what was caught, what it does, what to do."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from hermetic.doctor.wording import ENDED, batch_in_words, headline
from hermetic.probe.render import explained
from hermetic.probe.wording import size_of

if TYPE_CHECKING:
    from hermetic.doctor.diagnosis import Diagnosis
    from hermetic.probe import Finding


def render(diagnosis: "Diagnosis") -> Group:
    """Headline, the batch, the probe's picture, findings with their ways out, remarks."""
    colour = "green" if diagnosis.sound else "red"
    head = ": ".join(part for part in (diagnosis.model, *headline(diagnosis)) if part)
    parts: list[RenderableType] = [Text(head, style=f"bold {colour}"), Text(batch_in_words(diagnosis))]
    if diagnosis.report is not None:
        parts.append(diagnosis.report)
    shown = () if diagnosis.report is None else diagnosis.report.findings
    parts += [_finding(finding) for finding in diagnosis.findings if finding not in shown]
    parts += [explained(finding.code) for finding in diagnosis.findings[:1] if not shown]
    parts += [Text(f"- {note}", style="dim") for note in diagnosis.notes]
    parts.append(Text(ENDED, style="dim"))
    return Group(*parts)


def _finding(finding: "Finding") -> Text:
    text = Text(f"{finding.code} ", style="bold red")
    text.append(f"{finding.what} ({size_of(finding)}) in {finding.where}", style="not bold default")
    return text.append(f"\n      {finding.way_out}", style="not bold dim default")
