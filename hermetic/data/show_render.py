r"""Shown rows for a terminal, which no document can reach: text is only ever text here.

Guarantee: nothing of a document is read as markup, colour or control. Whatever would not print as itself (escape
sequences, other control characters, marks that reverse the direction of writing) is shown as an escape such as
``\x1b``, a line's end as an arrow. Supervised tokens have a bar at the left, so that they are told apart without
colour, too, and in any width. Price: one pass over what is shown.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hermetic.data.show import ShownDocument, ShownRow, ShownRows, ShownToken

__all__ = ["RenderedRows", "printable"]

_SUPERVISED: Final = "green"
_UNSUPERVISED: Final = "dim"
_SPECIAL: Final = "bold magenta"
_ESCAPED: Final = "reverse"
_SEAM: Final = "cyan"
_GUTTERS: Final = {True: Text("▌ ", style=_SUPERVISED), False: Text("  ")}
_LINE_END: Final = "↵"
_NOT_PRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Text with every character that would not print as itself escaped.

    Example:
        ``"a\x1b[31mb"`` becomes ``a\x1b[31mb``, ten characters that print.
    """
    return "".join(_escape(character) or character for character in text)


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _NOT_PRINTABLE:
        return ""
    if character == "\t":
        return "\\t"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedRows:
    """Shown rows, for ``rich.console.Console.print``."""

    shown: ShownRows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _legend(self.shown)
        for row in self.shown.rows:
            yield Text(f"\n{_title(self.shown, row)}", style="bold", overflow="fold")
            for document in row.documents:
                yield Text(_seam(document), style=_SEAM, overflow="fold")
                yield from _body(console, document, options.max_width)


def _legend(shown: ShownRows) -> Iterator[Text]:
    yield Text.assemble(_GUTTERS[True], ("supervised: the loss is computed on these tokens", _SUPERVISED))
    yield Text.assemble(_GUTTERS[False], ("not supervised: only read", _UNSUPERVISED))
    if any(token.special for row in shown.rows for document in row.documents for token in document.tokens):
        yield Text.assemble(
            _GUTTERS[False], ("<name>", _SPECIAL), ", a token of the vocabulary and no text of a document"
        )
    yield Text.assemble(
        _GUTTERS[False], ("\\x1b", _ESCAPED), f", a character that does not print; {_LINE_END}, a line's end"
    )


def _title(shown: ShownRows, row: ShownRow) -> str:
    tokens = sum(len(document.tokens) for document in row.documents)
    return (
        f"row {row.row:,} of {shown.rows_in_all:,}: {tokens:,} of {shown.capacity:,} tokens, "
        f"{len(row.documents):,} documents"
    )


def _seam(document: ShownDocument) -> str:
    supervised = sum(token.supervised for token in document.tokens)
    role = f", {document.role}" if document.role else ""
    return (
        f"── document {document.document:,}, {printable(document.where)}{role}: {len(document.tokens):,} tokens, "
        f"{supervised:,} supervised"
    )


def _body(console: Console, document: ShownDocument, width: int) -> Iterator[Text]:
    """The lines of a document, each with its bar, folded to the width; a change of supervision starts a new line."""
    for supervised, run in groupby(document.tokens, key=lambda token: token.supervised):
        for line in _lines(list(run), _SUPERVISED if supervised else _UNSUPERVISED):
            for part in line.wrap(console, max(1, width - 2), overflow="fold", tab_size=1):
                yield Text.assemble(_GUTTERS[supervised], part)


def _lines(run: Sequence[ShownToken], style: str) -> list[Text]:
    lines = [Text(style=style)]
    for token in run:
        if token.text is None:
            lines[-1].append(f"{token.id} ")
        elif token.special:
            lines[-1].append(printable(token.text), style=_SPECIAL)
        else:
            _append(lines, token.text, style)
    return lines if len(lines) == 1 or lines[-1] else lines[:-1]


def _append(lines: list[Text], text: str, style: str) -> None:
    """Add plain text to the last line; a line's end starts the next one."""
    for character in text:
        if character == "\n":
            lines[-1].append(_LINE_END, style=_ESCAPED)
            lines.append(Text(style=style))
        elif escape := _escape(character):
            lines[-1].append(escape, style=_ESCAPED)
        else:
            lines[-1].append(character)
