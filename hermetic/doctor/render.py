"""A diagnosis for a terminal: what was caught, what it does, what to do."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from hermetic.doctor.diagnosis import Diagnosis
    from hermetic.probe import Finding

_HEADS = {
    "sealed": "sound: the documents of a row do not reach each other",
    "leak": "leak: the documents of a row reach each other",
    "distortion": "distortion: no document reaches another, but packing changes what is computed",
    "row_length_dependent": "no document reaches another, but what is computed depends on the length of the row",
    "not_causal": "a token sees later tokens of its own document",
    "unsupported": "the model cannot run packed rows",
    "one_document_per_row": "sound: one document per row, not packed, so there is no neighbour to reach",
    "no_boundaries": "no boundaries in the data: a whole row is one document to the model",
    "contradictory": "the call contradicts itself about where documents start",
}


def render(diagnosis: "Diagnosis") -> Group:
    """Headline, the batch, the probe's picture, findings with their ways out, remarks."""
    colour = "green" if diagnosis.sound else "red"
    parts: list[RenderableType] = [Text(_headline(diagnosis), style=f"bold {colour}"), Text(_batch(diagnosis))]
    if diagnosis.report is not None:
        parts.append(diagnosis.report)
    shown = () if diagnosis.report is None else diagnosis.report.findings
    parts += [_finding(finding) for finding in diagnosis.findings if finding not in shown]
    parts += [Text(f"- {note}", style="dim") for note in diagnosis.notes]
    parts.append(Text("The command was ended at its first training batch; no optimizer step was taken.", style="dim"))
    return Group(*parts)


def _headline(diagnosis: "Diagnosis") -> str:
    head = _HEADS[diagnosis.verdict]
    if diagnosis.verdict == "leak" and all(finding.code.startswith("HM4") for finding in diagnosis.findings):
        head = "leak: a document learns to predict tokens of the next one"
    if diagnosis.findings and head.startswith("sound: "):
        head = f"not sound: {diagnosis.findings[0].what}; otherwise {head.removeprefix('sound: ')}"
    return f"{diagnosis.model}: {head}"


def _batch(diagnosis: "Diagnosis") -> str:
    text = f"first training batch: {diagnosis.rows} x {diagnosis.slots} tokens"
    if not diagnosis.documents:
        return text
    text += f", {len(diagnosis.documents)} documents of {min(diagnosis.documents)} to {max(diagnosis.documents)} tokens"
    if diagnosis.source is None:
        return f"{text}; nothing says where documents start, so each row counts as one"
    how = f"inferred from {diagnosis.source}" if diagnosis.inferred else f"given as {diagnosis.source}"
    return f"{text}; boundaries {how}"


def _finding(finding: "Finding") -> Text:
    text = Text(f"{finding.code} ", style="bold red")
    text.append(f"{finding.what} ({finding.size:.4g} {finding.unit}) in {finding.where}", style="not bold default")
    return text.append(f"\n      {finding.way_out}", style="not bold dim default")
