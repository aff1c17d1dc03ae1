"""A survey for a terminal: one line for each type and attention implementation.

``page`` makes a page of documentation of the same cells.
"""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermetic.atlas.survey import WAYS, Row, Survey

Line = dict[str, Row]
"""The rows of one type and implementation, by way."""

HEADS = {
    "correct": "called correctly",
    "all_ones_mask": "all-ones mask",
    "default_cache": "default cache",
    "running_positions": "running positions",
    "sealed": "sealed",
}
"""What the columns of the ways are called."""

_WORDS = {"sealed": "ok", "row_length_dependent": "row length"}


def render(survey: Survey) -> RenderableType:
    """The table for a terminal of 100 columns, what has no verdict, the sealed models that fail, and the totals."""
    table = Table("type", "attention", *HEADS.values(), title=f"{versions_of(survey)}; {survey.date}")
    for line in lines_of(survey):
        some = next(iter(line.values()))
        table.add_row(some.model_type, some.implementation, *(_coloured(line.get(way)) for way in WAYS))
    reasons = [f"{what}: {reason}" for what, reason in reasons_of(survey)]
    unsound = [f"sealed and unsound: {what}" for what in unsound_of(survey)]
    return Group(table, *map(Text, [*reasons, *unsound, *totals_of(survey)]))


def lines_of(survey: Survey) -> list[Line]:
    """The rows of each type and implementation together, in the survey's order."""
    lines: dict[tuple[str, str | None], Line] = {}
    for row in survey.rows:
        lines.setdefault((row.model_type, row.implementation), {})[row.way] = row
    return list(lines.values())


def cell_of(row: Row | None) -> str:
    """One verdict, with its size where something moved; empty for a way that was not measured."""
    if row is None:
        return ""
    return word_of(row) if row.size is None or row.verdict == "sealed" else f"{word_of(row)} {row.size:.1g}"


def word_of(row: Row) -> str:
    """A verdict as it is shown."""
    return _WORDS.get(row.verdict, row.verdict.replace("_", " "))


def versions_of(survey: Survey) -> str:
    """What was measured with what."""
    return ", ".join(f"{name} {number}" for name, number in survey.versions)


def totals_of(survey: Survey) -> Iterator[str]:
    """How many types keep documents apart, in each way."""
    types = {row.model_type for row in survey.rows}
    ran = types - {row.model_type for row in survey.rows if row.verdict in {"not_built", "not_run"}}
    yield f"{len(ran)} of {len(types)} types were built and run."
    for way, head in HEADS.items():
        if any(row.way == way for row in survey.rows):
            good = ran - {row.model_type for row in survey.rows if row.way == way and row.verdict != "sealed"}
            yield f"{head}: {len(good)} of {len(ran)} are ok in every attention implementation."


def reasons_of(survey: Survey) -> Iterator[tuple[str, str]]:
    """What has no verdict of the probe and why, each reason once for a type."""
    told = set()
    for row in survey.rows:
        key = (row.model_type, row.verdict, row.reason)
        if row.reason is not None and key not in told:
            told.add(key)
            yield f"{row.model_type}, {word_of(row)}", row.reason


def unsound_of(survey: Survey) -> Iterator[str]:
    """The sealed models that are not what the seal promises, and in what."""
    for row in survey.unsound:
        where = "" if row.where is None else f", {row.where}"
        yield f"{row.model_type} ({row.implementation}): {cell_of(row)}{where}"


def _coloured(row: Row | None) -> Text:
    return Text(cell_of(row), style="green" if row is not None and row.verdict == "sealed" else "red")
