"""A survey as a page of documentation, ``docs/atlas.md``: how to read it, totals, table, reasons."""

from collections.abc import Iterator
from pathlib import Path

from hermetic.atlas.render import (
    HEADS,
    Line,
    cell_of,
    lines_of,
    reasons_of,
    totals_of,
    unsound_of,
    versions_of,
)
from hermetic.atlas.survey import LENGTHS, WAYS, Survey
from hermetic.errors import AtlasError
from hermetic.files import write_text


def require_place(path: Path) -> None:
    """Refuse, before minutes are spent, to write a page where none can be written.

    Raises:
        AtlasError: there is no such folder, or ``path`` is one.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise AtlasError(f"a page cannot be written to {path}; expected the name of a file in a folder that exists")


def write_page(survey: Survey, path: Path) -> None:
    """Write the page, whole or not at all."""
    write_text(path, page(survey))


def page(survey: Survey) -> str:
    """The whole page, in Markdown."""
    return "\n".join([*head(survey), "", *_table(survey), "", *_reasons(survey), ""])


def head(survey: Survey) -> list[str]:
    """What stands above the numbers: all of it follows from the date and the versions."""
    return [
        "# Atlas",
        "",
        _INTRODUCTION.format(lengths=", ".join(map(str, LENGTHS))),
        "",
        f"Measured on {survey.date} with {versions_of(survey)}, on a CPU, in float32. A command writes this page:",
        "",
        "```bash",
        "hermetic atlas --markdown docs/atlas.md",
        "```",
        "",
        _GUIDE,
        "",
        "## The table",
    ]


_INTRODUCTION = """\
What packing does to every type of causal language model that `transformers` can build: as it is shipped, and after
[`hermetic.seal`](seal.md). The models are tiny and have random weights, larger than trained ones so that a leak shows:
two to four layers, one of each kind that the type has, windows and chunks of 4. Documents of {lengths} tokens go
through the [probe](probe.md) in one row."""

_GUIDE = """\
## How to read it

One line is one type with one attention implementation. `eager` and `sdpa` are those of PyTorch alone; kernels that need
a GPU are not in this table, and neither is what a model does with them.

| column | how the model is called |
| --- | --- |
| called correctly | as shipped: positions that restart with each document, no mask, `use_cache=False` |
| all-ones mask | the same and an `attention_mask` of ones, as tokenizers make it |
| default cache | the same in training, and `use_cache` left at its default |
| running positions | the same, and positions that run on through the row |
| sealed | after `hermetic.seal`, with `batch.model_inputs()` |
| leaks first in | as shipped and called correctly: the innermost module that first carries one document into another |
| sealed by | `interface`: hermetic's attention. `native`: the model's own kernels. A class: its modules, unpacked |

| cell | meaning |
| --- | --- |
| ok | the probe found nothing |
| leak | a document reaches another |
| distortion | no document reaches another, and packed ones are not computed as they are alone |
| row length | the same, and only beside documents of other lengths |
| not causal | documents are apart; a token sees later ones of its own document, packed or alone |
| unsupported | the model fails on packed documents |
| failed | the model fails in this way of calling it |
| refused | the seal refused the model, which is as it was |
| changed | the seal changed what a document alone computes: a bug of the seal |
| not built, not run | there is no tiny model of this type here, or it fails on a document alone |

The number is how far a logit moves at most, when another document is swapped or from alone to packed. Logits of these
models are of the order of 10, so sizes compare only with each other; and a leak that moves them by 5 here says that
there is one, not how much it matters in a trained model. What has no verdict of the probe has a reason, in the words
of the error, below the table."""


def _table(survey: Survey) -> Iterator[str]:
    yield from (f"- {total}" for total in totals_of(survey))
    yield from (f"- Sealed and unsound: {_escaped(what)}." for what in unsound_of(survey))
    heads = ["type", "attention", *HEADS.values(), "leaks first in", "sealed by"]
    yield ""
    yield _row(heads)
    yield _row(["---"] * len(heads))
    yield from map(_line, lines_of(survey))


def _line(line: Line) -> str:
    some = next(iter(line.values()))
    shipped, sealed = line.get("correct"), line.get("sealed")
    where = [] if shipped is None or shipped.verdict != "leak" or shipped.where is None else [shipped.where]
    cells = [f"`{some.model_type}`", some.implementation or "", *(cell_of(line.get(way)) for way in WAYS)]
    return _row([*cells, _named(where), _named(() if sealed is None else sealed.how)])


def _named(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _reasons(survey: Survey) -> Iterator[str]:
    yield "## What has no verdict, and why"
    yield ""
    yield from [f"- `{_escaped(what)}`: {_escaped(reason)}" for what, reason in reasons_of(survey)] or ["Nothing."]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
