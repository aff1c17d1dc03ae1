"""The parts that pages are made of: no network, no script, all text escaped, and XML at the same time.

Algorithm: a page is a verdict, the sections in their order with a list of them, and one style. The verdict says in
words what its colour and its sign say.
Guarantee: a page holds its style and asks for nothing else; it follows the reader's light or dark theme; whatever may
be wider than a phone scrolls by itself, and can be reached by the keyboard.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Final, Literal

from hermetic.markup.heatmap import PATTERNS
from hermetic.markup.text import escaped

Look = Literal["good", "bad", "unsure"]

_VERSION: Final[str] = import_module("hermetic").__version__
"""A plain import of the root, which names what stands above, would be a circle to type checkers."""

_SIGNS: Final[dict[Look, str]] = {
    "good": '<path d="M7 12.5l3.5 3.5L17 9"/>',
    "bad": '<path d="M8 8l8 8M16 8l-8 8"/>',
    "unsure": '<path d="M12 6.5v7M12 17v.5"/>',
}


_PLACES: Final = 5
"""Of a finding, that are not folded away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What stands at the top of a page."""

    kind: str
    """Of which command it is the report: ``probe``."""
    subject: str
    look: Look
    word: str
    """The verdict in a word or two."""
    sentence: str
    facts: str = ""
    """What was looked at, small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Markup under a heading."""

    title: str
    body: str


def document(verdict: Verdict, sections: Iterable[Section | None], *, style: str = "") -> str:
    """The text of an HTML file.

    Args:
        verdict: what stands first.
        sections: in their order; ``None`` is left out.
        style: CSS that follows the common one.
    """
    common = resources.files("hermetic.markup").joinpath("page.css").read_text(encoding="utf-8")
    shown = [section for section in sections if section is not None]
    body = "\n".join(_section(section, number) for number, section in enumerate(shown, start=1))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{escaped(f'{verdict.word}: {verdict.subject}')}</title><style>\n{common}{style}</style></head>\n"
        f'<body>{PATTERNS}<a class="skip" href="#details">Skip to the details</a>\n{_header(verdict)}\n'
        f'{_contents(shown)}\n<main id="details" tabindex="-1">\n{body}\n</main>\n'
        f'<footer class="soft">Made by hermetic {escaped(_VERSION)}. '
        "This file is complete: nothing in it is loaded from elsewhere.</footer>\n</body></html>\n"
    )


def _header(verdict: Verdict) -> str:
    facts = soft(verdict.facts) if verdict.facts else ""
    return (
        f'<header><p class="kind">hermetic {escaped(verdict.kind)}</p><h1>{escaped(verdict.subject)}</h1>'
        f'<div class="verdict {verdict.look}">{_sign(verdict.look)}<div><p class="word">{escaped(verdict.word)}</p>'
        f'<p class="sentence">{escaped(verdict.sentence)}</p></div></div>{facts}</header>'
    )


def _sign(look: Look) -> str:
    """A tick, a cross or an exclamation mark in a disc."""
    return (
        f'<svg class="sign" viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="12"/>{_SIGNS[look]}</svg>'
    )


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < 2:
        return ""
    entries = (
        f'<li><a href="#section-{number}">{escaped(section.title)}</a></li>'
        for number, section in enumerate(sections, start=1)
    )
    return f'<nav aria-label="On this page"><ul>{"".join(entries)}</ul></nav>'


def _section(section: Section, number: int) -> str:
    return (
        f'<section id="section-{number}" aria-labelledby="heading-{number}">'
        f'<h2 id="heading-{number}">{escaped(section.title)}</h2>\n{section.body}</section>'
    )


def section(title: str, *parts: str) -> Section:
    """Markup under a heading."""
    return Section(title=title, body="".join(parts))


def soft(text: str) -> str:
    """A paragraph that explains."""
    return f'<p class="soft">{escaped(text)}</p>'


def scrolling(markup: str, *, name: str) -> str:
    """Markup that scrolls by itself where it is too wide, also by the keyboard; ``name`` says what it is."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(name)}">{markup}</div>'


def table(head: Sequence[str], rows: Iterable[str], *, name: str, numbers: Collection[int] = ()) -> str:
    """A table of rows of cells, which scrolls where it is too wide.

    Args:
        head: titles of the columns.
        rows: from :func:`row`.
        name: what the table is, for those who cannot see where it stands.
        numbers: columns whose titles stand at the right, above numbers.
    """
    names = "".join(
        f'<th scope="col"{_classed("number" if at in numbers else "")}>{escaped(title)}</th>'
        for at, title in enumerate(head)
    )
    whole = f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return scrolling(whole, name=name)


def row(head: str, *cells: str, kind: str = "", more: str = "", line: str = "") -> str:
    """A row of a table.

    Args:
        head: what the row is of.
        cells: from :func:`cell`.
        kind: classes of the first cell.
        more: markup that follows ``head`` in its cell.
        line: classes of the row.
    """
    return f'<tr{_classed(line)}><th scope="row"{_classed(kind)}>{escaped(head)}{more}</th>{"".join(cells)}</tr>'


def cell(text: str, kind: str = "") -> str:
    """One cell of a row; ``kind`` are classes of the style."""
    return f"<td{_classed(kind)}>{escaped(text)}</td>"


def _classed(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def facts(pairs: Iterable[tuple[str, str]], *, name: str) -> str:
    """Names and what was found of them, as a table of two columns."""
    rows = (row(key, cell(value, "text")) for key, value in pairs)
    return scrolling(f'<table class="facts"><tbody>{"".join(rows)}</tbody></table>', name=name)


def finding(
    *, code: str, what: str, way_out: str, where: Sequence[str] = (), more: str = "", tag: str = "", look: Look = "bad"
) -> str:
    """One thing that is wrong, what to do about it, and where it is.

    Args:
        code: stable, of the rule; empty where there is none.
        what: in a sentence.
        way_out: what to do.
        where: places, as one writes them.
        more: what has to be known of it, small.
        tag: a word on how sure it is.
        look: ``unsure`` of what may be meant, or may not be wrong.
    """
    name = f'<span class="code">{escaped(code)}</span> ' if code else ""
    name += f'<span class="tag">{escaped(tag)}</span> ' if tag else ""
    return (
        f'<div class="finding {look}"><h3>{name}{escaped(what)}</h3>{_places(where)}'
        f'{soft(more) if more else ""}<p class="do">{escaped(way_out)}</p></div>'
    )


def _places(where: Sequence[str]) -> str:
    """The first few, and the others when they are asked for."""
    first, others = where[:_PLACES], where[_PLACES:]
    shown = _codes(first) if first else ""
    return shown + (hidden(f"{len(others)} more places", _codes(others)) if others else "")


def _codes(where: Sequence[str]) -> str:
    return f'<p class="where">{", ".join(f"<code>{escaped(place)}</code>" for place in where)}</p>'


def hidden(summary: str, markup: str) -> str:
    """Markup that is unfolded by the reader."""
    return f"<details><summary>{escaped(summary)}</summary>{markup}</details>"


def ornament(shapes: str, *, width: int) -> str:
    """A picture of a line's height beside words that say the same, as in a legend; shapes are 14 pixels high."""
    return f'<svg viewBox="0 0 {width} 14" width="{width}" height="14" aria-hidden="true">{shapes}</svg>'
