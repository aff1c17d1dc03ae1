"""A comparison as one page: no network, no script; curves are inline SVG, and all text is escaped.

Guarantee: the same numbers as on the terminal, one row for each arm, and the reason of every arm that did not run.
Price: some tens of kilobytes.
"""

from importlib import resources

from hermetic.compare.arms import ARMS
from hermetic.compare.curves import Curve, chart, swatch
from hermetic.compare.records import ArmResult, Comparison
from hermetic.compare.wording import (
    COLUMNS,
    LEGEND,
    NOT_RUN,
    floor_in_words,
    illusions,
    introduction,
    refusals,
    shown,
    spread_of,
)
from hermetic.markup import cell, document, escaped, section, soft, table

_FACTS = ("used", "probe")


def page(comparison: Comparison) -> str:
    """The comparison as the text of an HTML file."""
    style = resources.files("hermetic.compare").joinpath("page.css").read_text(encoding="utf-8")
    title = f"{comparison.model} on {comparison.data}: {len(comparison.arms)} ways to lay out the same documents"
    head = f"<header><h1>{escaped(title)}</h1>{soft(introduction(comparison))}</header>"
    sections = (_refusals(comparison), _table(comparison), _illusions(comparison), _curves(comparison))
    return document(title, [head, *sections], style=style)


def _refusals(comparison: Comparison) -> str:
    lines = refusals(comparison)
    found = "".join(f'<div class="finding"><p>{escaped(line)}</p></div>' for line in lines)
    return section("What did not run", found) if lines else ""


def _table(comparison: Comparison) -> str:
    head = ("arm", *COLUMNS.values(), *_FACTS)
    rows = table(head, (_row(comparison, arm) for arm in comparison.arms))
    return section("Arm by arm", rows, soft(f"{LEGEND} {floor_in_words(comparison)}"))


def _row(comparison: Comparison, arm: ArmResult) -> str:
    numbers = [shown(column, spread_of(comparison, arm, column)) for column in COLUMNS]
    if not arm.runs:
        numbers[0] = NOT_RUN
    verdict = (arm.verdict or "-").replace("_", " ")
    look = {"sealed": "ok", "leak": "beyond"}.get(verdict, "")
    name = f'<td class="name"><code>{escaped(arm.name)}</code> <span class="soft">{escaped(arm.about)}</span></td>'
    cells = "".join(cell(number, "number") for number in (*numbers, f"{arm.utilization:.1%}"))
    return f"<tr>{name}{cells}{cell(verdict, look)}</tr>"


def _illusions(comparison: Comparison) -> str:
    lines = illusions(comparison)
    return section("The loss illusion", *(f"<p>{escaped(line)}</p>" for line in lines)) if lines else ""


def _curves(comparison: Comparison) -> str:
    drawn = [arm for arm in comparison.arms if arm.runs]
    if not drawn:
        return ""
    curves = [Curve(name=arm.name, look=ARMS.index(arm.name), seeds=[run.losses for run in arm.runs]) for arm in drawn]
    name = f"train loss of {', '.join(arm.name for arm in drawn)} over {comparison.steps} steps"
    legend = "".join(f"<span>{swatch(curve.look)}{escaped(curve.name)}</span>" for curve in curves)
    how = (
        "Train loss in nats per supervised token, as each arm lays out its rows, over optimizer steps: the mean of the "
        "seeds, in a band from the lowest to the highest. Losses of arms whose documents see each other are not to be "
        "compared with the others: part of them is the illusion."
    )
    picture = f'<figure>{chart(curves, name=name, steps=comparison.steps)}<div class="legend">{legend}</div></figure>'
    return section("Training", soft(how), picture)
