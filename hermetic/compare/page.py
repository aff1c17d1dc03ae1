"""A comparison as one page: no network, no script; curves are inline SVG, and all text is escaped.

Guarantee: the same numbers as on the terminal, one row for each arm in each table, and the reason of every arm that
did not run.
Price: some hundred kilobytes, and the time of :mod:`hermetic.markup.plot`.
"""

from hermetic.compare.arms import ARMS
from hermetic.compare.curves import line_of, middles
from hermetic.compare.records import ArmResult, Comparison
from hermetic.compare.wording import (
    COLUMNS,
    LEGEND,
    NOT_RUN,
    PROOF_COLUMNS,
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
    """Two tables, so that neither is wider than a screen: whether an arm trains what padded trains, and the rest."""
    head = ("arm", "probe", *(COLUMNS[column] for column in PROOF_COLUMNS), "used")
    proof = (_proof(comparison, arm) for arm in comparison.arms)
    others = tuple(column for column in COLUMNS if column not in PROOF_COLUMNS)
    more = (row(arm.name, *_numbers(comparison, arm, others), kind="name") for arm in comparison.arms)
    titles = ("arm", *(COLUMNS[column] for column in others))
    return section(
        "Arm by arm",
        table(head, proof, name="Arm by arm", numbers=range(2, len(head))),
        "<h3>Train loss, illusion and cost</h3>",
        table(titles, more, name="Train loss, illusion and cost of each arm", numbers=range(1, len(titles))),
        soft(f"{LEGEND} {floor_in_words(comparison)}"),
    )


def _proof(comparison: Comparison, arm: ArmResult) -> str:
    verdict = (arm.verdict or "-").replace("_", " ")
    look = {"sealed": "ok", "leak": "beyond"}.get(verdict, "")
    cells = (*_numbers(comparison, arm, PROOF_COLUMNS), cell(f"{arm.utilization:.1%}", "number"))
    about = f'<br/><span class="soft">{escaped(arm.about)}</span>'
    return row(arm.name, cell(verdict, look), *cells, kind="name", more=about)


def _numbers(comparison: Comparison, arm: ArmResult, columns: tuple[str, ...]) -> list[str]:
    numbers = [shown(column, spread_of(comparison, arm, column)) for column in columns]
    if not arm.runs:
        numbers[0] = NOT_RUN
    return [cell(number, "number") for number in numbers]


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
