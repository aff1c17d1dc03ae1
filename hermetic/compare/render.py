"""A comparison for a terminal: two tables of all arms, and what they say of the loss."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermetic.compare.records import ArmResult, Comparison
from hermetic.compare.wording import (
    COLUMNS,
    COST_COLUMNS,
    LEGEND,
    LOSS_COLUMNS,
    NOT_RUN,
    floor_in_words,
    illusions,
    introduction,
    refusals,
    shown,
    spread_of,
)
from hermetic.data.show_render import printable


def render(comparison: Comparison) -> RenderableType:
    """Every arm has a row in both tables, whether it ran or not."""
    return Group(
        Text(printable(introduction(comparison))),
        _table(comparison, LOSS_COLUMNS, {}),
        _table(comparison, COST_COLUMNS, {"used": lambda arm: f"{arm.utilization:.1%}", "probe": _verdict}),
        *(Text(printable(line), style="red") for line in refusals(comparison)),
        *(Text(line, style="bold") for line in illusions(comparison)),
        Text(f"{LEGEND} {floor_in_words(comparison)}", style="dim"),
    )


def _table(comparison: Comparison, columns: tuple[str, ...], facts: dict[str, Callable[[ArmResult], str]]) -> Table:
    table = Table(padding=(0, 1, 0, 0))  # whole in 80 columns
    table.add_column("arm", no_wrap=True)
    for title in (*(COLUMNS[column] for column in columns), *facts):
        table.add_column(title, justify="right")
    for arm in comparison.arms:
        cells = [shown(column, spread_of(comparison, arm, column)) for column in columns]
        if not arm.runs:
            cells[0] = NOT_RUN
        table.add_row(arm.name, *cells, *(fact(arm) for fact in facts.values()))
    return table


def _verdict(arm: ArmResult) -> str:
    return (arm.verdict or "-").replace("_", " ")
