"""A report as a small coloured table: which document reaches which."""

from typing import TYPE_CHECKING

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from hermetic.probe.report import Finding, LeakReport

_MAX_DRAWN = 12
"""Wider matrices do not fit a terminal; the report's numbers hold all of them."""


def render(report: "LeakReport") -> Group:
    """Verdict, influence matrix and findings, for a terminal of 80 columns."""
    colour = "green" if report.verdict == "sealed" else "red"
    parts: list[Text | Table] = [Text(f"{report.subject}: {report.verdict}", style=f"bold {colour}")]
    reach = report.influence if report.influence is not None else report.gradients
    if reach is not None:
        parts.append(_matrix(report, reach))
    if report.equivalence is not None:
        parts.append(Text(_equivalence_line(report)))
    parts += [Text(f"{name} did not run: {why}", style="yellow") for name, why in report.not_run]
    parts += [_finding(finding) for finding in report.findings]
    return Group(*parts)


def _matrix(report: "LeakReport", reach: torch.Tensor) -> Table:
    what = "logit change" if report.influence is not None else "gradient"
    drawn = min(len(report.lengths), _MAX_DRAWN)
    more = "" if drawn == len(report.lengths) else f" (first {drawn} of {len(report.lengths)})"
    table = Table(title=f"row: document moved, column: document swapped; {what}{more}", title_justify="left")
    table.add_column("document", justify="right")
    for j in range(drawn):
        table.add_column(f"{j}", justify="right")
    for i in range(drawn):
        cells = [Text("·") if i == j else _cell(float(reach[i, j])) for j in range(drawn)]
        table.add_row(f"{i} ({report.lengths[i]} tokens)", *cells)
    return table


def _cell(value: float) -> Text:
    return Text("0", style="green") if value == 0.0 else Text(f"{value:.1e}", style="bold red")


def _equivalence_line(report: "LeakReport") -> str:
    worst = 0.0 if report.equivalence is None else float(report.equivalence.max())
    line = f"packed against alone: logits differ by at most {worst:.1e} (noise floor {report.noise_floor:.1e})"
    if report.gradient_equivalence is not None:
        line += f", parameter gradients by {report.gradient_equivalence:.1e} relative"
    return line


def _finding(finding: "Finding") -> Text:
    """Two or three lines: what and how much; where; the way out."""
    text = Text(f"{finding.code} ", style="bold red")
    text.append(f"{finding.what} ({finding.size:.2g} {finding.unit}) in {finding.where}", style="not bold default")
    return text.append(f"\n      {finding.way_out}", style="not bold dim default")
