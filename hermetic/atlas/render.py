"""A survey for a terminal and as a page of documentation: one line for each type and attention implementation."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hermetic.atlas.survey import LENGTHS, WAYS, Row, Survey

Line = dict[str, Row]
"""The rows of one type and implementation, by way."""

_HEADS = {
    "correct": "called correctly",
    "all_ones_mask": "all-ones mask",
    "default_cache": "default cache",
    "running_positions": "running positions",
    "sealed": "sealed",
}
_WORDS = {"sealed": "ok", "row_length_dependent": "row length", "not_causal": "not causal", "not_built": "not built"}


def lines_of(survey: Survey) -> list[Line]:
    """The rows of each type and implementation together, in the survey's order."""
    lines: dict[tuple[str, str | None], Line] = {}
    for row in survey.rows:
        lines.setdefault((row.model_type, row.implementation), {})[row.way] = row
    return list(lines.values())


def render(survey: Survey) -> RenderableType:
    """The table for a terminal of 100 columns, what could not be measured, and the totals."""
    table = Table("type", "attention", *_HEADS.values(), title=f"{_versions(survey)}; {survey.date}")
    for line in lines_of(survey):
        some = next(iter(line.values()))
        table.add_row(some.model_type, some.implementation, *(_coloured(line.get(way)) for way in WAYS))
    reasons = (f"{what}: {reason}" for what, reason in _reasons(survey))
    return Group(table, *map(Text, reasons), *map(Text, _totals(survey)))


def _coloured(row: Row | None) -> Text:
    return Text(_cell(row), style="green" if row is not None and row.verdict == "sealed" else "red")


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    word = _WORDS.get(row.verdict, row.verdict)
    return word if row.size is None or row.verdict == "sealed" else f"{word} {row.size:.1g}"


def _versions(survey: Survey) -> str:
    return ", ".join(f"{name} {number}" for name, number in survey.versions)


def _totals(survey: Survey) -> Iterator[str]:
    types = {row.model_type for row in survey.rows}
    built = types - {row.model_type for row in survey.rows if row.verdict == "not_built"}
    yield f"{len(built)} of {len(types)} types were built and run."
    for way, head in _HEADS.items():
        good = built - {row.model_type for row in survey.rows if row.way == way and row.verdict != "sealed"}
        yield f"{head}: {len(good)} of {len(built)} keep documents apart in every attention implementation."


def _reasons(survey: Survey) -> Iterator[tuple[str, str]]:
    """What has no verdict of the probe and why, each reason once for a type."""
    told = set()
    for row in survey.rows:
        key = (row.model_type, row.verdict, row.reason)
        if row.reason is not None and key not in told:
            told.add(key)
            yield f"{row.model_type}, {_WORDS.get(row.verdict, row.verdict)}", row.reason


def page(survey: Survey) -> str:
    """``docs/atlas.md``: the same table in Markdown, with what was measured and how to read it."""
    heads = ["type", "attention", *_HEADS.values(), "leaks first in"]
    body = [_markdown_line(line) for line in lines_of(survey)]
    reasons = [f"- `{_escaped(what)}`: {_escaped(reason)}" for what, reason in _reasons(survey)]
    return "\n".join(
        [
            "# Atlas",
            "",
            _INTRODUCTION.format(lengths=", ".join(map(str, LENGTHS))),
            "",
            f"Measured on {survey.date} with {_versions(survey)}, on a CPU, in float32.",
            "",
            *(f"- {total}" for total in _totals(survey)),
            "",
            _row(heads),
            _row(["---"] * len(heads)),
            *body,
            "",
            "## What has no verdict, and why",
            "",
            *(reasons or ["Nothing."]),
            "",
        ]
    )


_INTRODUCTION = """\
What packing does to every type of causal language model that `transformers` can build, on tiny models with random
weights: two to four layers, one of each kind, windows and chunks of 4. Documents of {lengths} tokens go through
`hermetic.probe` in one row.

The columns are ways to call a model. *Called correctly* is as it is shipped, with positions that restart, no mask and
`use_cache=False`. Three columns make one mistake each: an all-ones `attention_mask`; `use_cache` left at its default,
in training; positions that run on through the row. *Sealed* is after `hermetic.seal`. The number is how far a logit
moves at most when another document is swapped, or from alone to packed; weights are larger than trained ones, so that
a leak shows, and sizes compare only with each other. `ok` means that the probe found nothing. Kernels that need a GPU
are not installed, so what a model does with them is not in this table."""


def _markdown_line(line: Line) -> str:
    some = next(iter(line.values()))
    shipped = line.get("correct")
    where = shipped.where if shipped is not None and shipped.verdict == "leak" else None
    cells = [f"`{some.model_type}`", some.implementation or "", *(_cell(line.get(way)) for way in WAYS)]
    return _row([*cells, "" if where is None else f"`{where}`"])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
