"""The parts that pages are made of: no network, no script, all text escaped, and XML at the same time.

Guarantee: a page holds its style and asks for nothing else; it follows the reader's light or dark theme.
"""

from collections.abc import Iterable, Sequence
from importlib import resources

from hermetic.markup.heatmap import PATTERNS
from hermetic.markup.text import escaped


def document(title: str, sections: Iterable[str], *, style: str = "") -> str:
    """The text of an HTML file; ``style`` is CSS that follows the common one."""
    common = resources.files("hermetic.markup").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{escaped(title)}</title><style>\n{common}{style}</style></head>\n<body>{PATTERNS}\n{body}\n"
        "</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Markup under a heading."""
    return f"<section><h2>{escaped(title)}</h2>\n{''.join(parts)}</section>"


def soft(text: str) -> str:
    """A paragraph that explains."""
    return f'<p class="soft">{escaped(text)}</p>'


def table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table of rows of cells, which scrolls where it is too wide."""
    names = "".join(f"<th>{escaped(name)}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def cell(text: str, kind: str = "") -> str:
    """One cell of a row; ``kind`` are classes of the style."""
    return f'<td class="{kind}">{escaped(text)}</td>' if kind else f"<td>{escaped(text)}</td>"
