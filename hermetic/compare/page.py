"""A comparison as one page: no network, no script; curves are inline SVG, and all text is escaped.

Guarantee: the same numbers as on the terminal, one row for each arm, and the reason of every arm that did not run.
Price: some hundred kilobytes, and the time of :mod:`hermetic.markup.plot`.
"""

from hermetic.compare.arms import ARMS
from hermetic.compare.curves import line_of, middles
from hermetic.compare.records import ArmResult, Comparison
from hermetic.compare.wording import (
    COLUMNS,
    LEGEND,
    NOT_RUN,
    advice,
    floor_in_words,
    headline,
    illusions,
    introduction,
    refusals,
    shown,
    spread_of,
)
from hermetic.markup import Lines, Section, Verdict, cell, document, escaped, row, section, soft, table


def page(comparison: Comparison) -> str:
    """The comparison as the text of an HTML file.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    sections = (_to_do, _refusals, _table, _illusions, _curves)
    return document(_verdict(comparison), [section_of(comparison) for section_of in sections])


def _verdict(comparison: Comparison) -> Verdict:
    look, word, sentence = headline(comparison)
    return Verdict(
        kind="compare",
        subject=f"{comparison.model} on {comparison.data}: {len(comparison.arms)} ways to lay out the same documents",
        look=look,
        word=word,
        sentence=sentence,
        facts=introduction(comparison),
    )


def _to_do(comparison: Comparison) -> Section:
    return section("What to do", *(f"<p>{escaped(line)}</p>" for line in advice(comparison)))


def _refusals(comparison: Comparison) -> Section | None:
    lines = refusals(comparison)
    found = "".join(f'<div class="finding"><p>{escaped(line)}</p></div>' for line in lines)
    return section("What did not run", found) if lines else None


def _table(comparison: Comparison) -> Section:
    head = ("arm", "probe", *COLUMNS.values(), "used")
    lines = (_row(comparison, arm) for arm in comparison.arms)
    whole = table(head, lines, name="Arm by arm", numbers=range(2, len(head)))
    return section("Arm by arm", whole, soft(f"{LEGEND} {floor_in_words(comparison)}"))


def _row(comparison: Comparison, arm: ArmResult) -> str:
    numbers = [shown(column, spread_of(comparison, arm, column)) for column in COLUMNS]
    if not arm.runs:
        numbers[0] = NOT_RUN
    verdict = (arm.verdict or "-").replace("_", " ")
    look = {"sealed": "ok", "leak": "beyond"}.get(verdict, "")
    cells = [cell(number, "number") for number in (*numbers, f"{arm.utilization:.1%}")]
    about = f'<br/><span class="soft">{escaped(arm.about)}</span>'
    return row(arm.name, cell(verdict, look), *cells, kind="name", more=about)


def _illusions(comparison: Comparison) -> Section | None:
    lines = illusions(comparison)
    return section("The loss illusion", *(f"<p>{escaped(line)}</p>" for line in lines)) if lines else None


def _curves(comparison: Comparison) -> Section | None:
    drawn = [arm for arm in comparison.arms if arm.runs]
    if not drawn:
        return None
    names = ", ".join(arm.name for arm in drawn)
    lines = [line_of(arm.name, ARMS.index(arm.name), [run.losses for run in arm.runs]) for arm in drawn]
    about = (
        "Train loss as each arm lays out its rows: the mean of the seeds, in a band from the lowest to the highest. "
        "Losses of arms whose documents see each other are not to be compared with the others: part of them is the "
        "illusion."
    )
    plot = Lines(
        name=f"train loss of {names} over {comparison.steps:,} steps",
        about=about,
        points=middles(len(drawn[0].runs[0].losses)),
        lines=lines,
        across="optimizer step",
        up="nats per supervised token",
    )
    return section("Training", plot.figure())
