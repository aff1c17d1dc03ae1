"""Words of a shell script with their places, and nothing run.

Algorithm: one regular expression finds words, quotes included; ``shlex`` takes the quotes off. Variables that the
script sets to plain text are put in; what only a shell would know becomes :data:`HOLE`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hermetic.errors import AuditError

HOLE: Final = "\0"
"""Stands in a word for what is not known before it runs."""

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\r]+|\\\r?\n|\#[^\n]*|(?:\d*(?:>>?|<)|&>>?)(?:&\d|[ \t]*[^\s;&|()<>]+))
      |(?P<end>\n|;|&&|\|\||[|&()])
      |(?P<word>(?:\$\([^()]*\)|`[^`]*`|[^\s"'`\\;&|()]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""",
    re.VERBOSE | re.DOTALL,
)
_HERE: Final = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n(?P<body>.*?)^[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE)
_VARIABLE: Final = re.compile(
    r"'[^']*'|\\.|(?P<run>\$\([^()]*\)|`[^`]*`)|\$(?:(?P<bare>[A-Za-z_]\w*|[@*#?\d])|\{(?P<name>\w+)(?::?-(?P<else>[^}]*))?[^}]*\})",
    re.DOTALL,
)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One word of a command; of a command line that was handed over, without a place."""

    text: str
    line: int | None = None
    column: int | None = None


def commands_of(text: str, file: str) -> Iterator[tuple[Word, ...]]:
    r"""The commands of a script, in order, their words without quotes.

    Raises:
        AuditError: a quote is not closed.

    Example:
        >>> [word.text for word in next(commands_of('A=1\nrun --a "$A" \\\n --b $B', "f.sh"))]
        ['run', '--a', '1', '--b', '\x00']
    """
    variables: dict[str, str] = {}
    for words in _split(_HERE.sub(_blank, text), file):
        expanded = tuple(_expanded(word, variables, file) for word in words)
        rest = _after_assignments(expanded, variables)
        if rest:
            yield rest


def _blank(here: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", here[0])


def _split(text: str, file: str) -> Iterator[tuple[Word, ...]]:
    words: list[Word] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        if token is None:
            raise AuditError(f"{file}:{line}:{column} opens a quote that nothing closes; expected a command line")
        if token["word"] is not None:
            words.append(Word(text=re.sub(r"\\\r?\n", "", token["word"]), line=line, column=column))
        elif token["end"] is not None and words:
            yield tuple(words)
            words = []
        at = token.end()
    if words:
        yield tuple(words)


def _expanded(word: Word, variables: dict[str, str], file: str) -> Word:
    def put_in(found: re.Match[str]) -> str:
        name = found["bare"] or found["name"]
        if found["run"]:
            return HOLE
        if name is None:
            return found[0]
        otherwise = found["else"]
        known = otherwise is not None and "$" not in otherwise and "`" not in otherwise
        return variables.get(name, otherwise if known else HOLE)

    text = _VARIABLE.sub(put_in, word.text)
    try:
        return Word(text="".join(shlex.split(text)), line=word.line, column=word.column)
    except ValueError as error:
        raise AuditError(f"{file}:{word.line}:{word.column} cannot be split: {error}; quote it") from error


def _after_assignments(words: tuple[Word, ...], variables: dict[str, str]) -> tuple[Word, ...]:
    """The words after ``NAME=value``, which are remembered."""
    for index, word in enumerate(words):
        assignment = _ASSIGNMENT.fullmatch(word.text)
        if assignment is not None:
            variables[assignment["name"]] = assignment["value"]
        elif word.text not in {"export", "env", "exec", "nohup", "time", "sudo", "set", "local", "readonly"}:
            return words[index:]
    return ()
