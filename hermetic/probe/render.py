"""A report for a terminal of 80 columns: the verdict, which document reaches which, the layers, and the way out."""

import math
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hermetic.markup import Scale, counted, number
from hermetic.probe.wording import headline, measured_pairs, reach_in_words, readings, size_of

if TYPE_CHECKING:
    from hermetic.probe.report import Finding, LayerReading, LeakReport

_MAX_DRAWN = 12
"""Wider matrices do not fit a terminal; the report's numbers hold all of them."""

_NUMBERS_UP_TO = 6
"""Columns of so many documents have room for two digits and an exponent."""

_BAR = 12
_NAME = 30


def render(report: "LeakReport") -> Group:
    """Verdict, who reaches whom, layers, readings, findings, notes and scope, for a terminal of 80 columns."""
    colour = "green" if report.verdict == "sealed" else "red"
    verdict = Text(f"{report.subject}: {report.verdict}\n", style=f"bold {colour}")
    parts: list[Text | Table | Group] = [verdict.append(headline(report), style="not bold default")]
    shown = _shown(report)
    if shown is not None:
        parts.append(_matrix(report, shown))
    if report.layers:
        parts.append(_layers(report.layers))
    parts.append(_readings(report))
    parts += [_finding(finding) for finding in report.findings]
    parts += [explained(finding.code) for finding in report.findings[:1]]
    parts += [Text(f"note: {note}") for note in report.note]
    parts += [] if report.scope is None else [Text(report.scope, style="dim")]
    return Group(*parts)


def explained(code: str) -> Text:
    """Where more about a finding is told, in one quiet line."""
    return Text(f"hermetic explain {code} tells why it is bad, and shows examples", style="dim")


def _shown(report: "LeakReport") -> torch.Tensor | None:
    """The matrix that shows a leak: of logits, unless only the gradients have one."""
    for matrix in (report.influence, report.gradients):
        if matrix is not None and bool(matrix[measured_pairs(report, matrix)].any()):
            return matrix
    return report.gradients if report.influence is None else report.influence


def _matrix(report: "LeakReport", shown: torch.Tensor) -> Group:
    count = len(report.lengths)
    drawn, wide = min(count, _MAX_DRAWN), count > _NUMBERS_UP_TO
    unit = "logit change" if shown is report.influence else "gradient"
    more = ", powers of ten" * wide + f" (first {drawn} of {count})" * (drawn < count)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0 if wide else (0, 1, 0, 0))
    table.add_column("" if wide else "document", justify="right")
    measured = measured_pairs(report, shown)
    for j in range(drawn):
        table.add_column(f"{j}", justify="right")
    for i in range(drawn):
        cells = [
            Text("·") if i == j else _cell(float(shown[i, j]), bool(measured[i, j]), wide=wide) for j in range(drawn)
        ]
        table.add_row(f"{i}" if wide else f"{i} ({counted(report.lengths[i], 'token')})", *cells)
    return Group(Text(f"row: document moved, column: document swapped; {unit}{more}"), table)


def _cell(value: float, measured: bool, *, wide: bool) -> Text:  # noqa: FBT001 - beside the value that it is of
    if not measured:
        return Text("?", style="dim")
    if value == 0.0:
        return Text("0", style="green")
    return Text(f"e{math.floor(math.log10(value)):+d}" if wide else number(value), style="bold red")


def _layers(layers: "tuple[LayerReading, ...]") -> Group:
    scale = Scale.over(layer.influence for layer in layers)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("layer", "", "gradient", "reaches behind a seam"):
        table.add_column(name)
    for layer in layers:
        leaks = scale is not None and layer.influence > 0.0
        length = 1 + round(scale.share(layer.influence) * (_BAR - 1)) if scale is not None and leaks else 0
        size = Text(number(layer.influence), style="bold red" if leaks else "green")
        table.add_row(_short(layer.name), Text("█" * length, style="red"), size, reach_in_words(layer.reach))
    return Group(Text("what each layer carries from one document into another; bars are log"), table)


def _short(name: str) -> str:
    """The end of a long name: numbers and attributes stand there."""
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def _readings(report: "LeakReport") -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, read in readings(report):
        table.add_row(name, Text(read))
    for name, why in report.not_run:
        table.add_row(Text(name, style="yellow"), Text(f"did not run: {why}", style="yellow"))
    return table


def _finding(finding: "Finding") -> Text:
    """Two or three lines: what and how much; where; the way out."""
    text = Text(f"{finding.code} ", style="bold red")
    text.append(f"{finding.what} ({size_of(finding)}) in {finding.where}", style="not bold default")
    return text.append(f"\n      {finding.way_out}", style="not bold dim default")
