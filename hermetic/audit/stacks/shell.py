"""Words of a shell script with their places, and nothing run.

Algorithm: one regular expression finds words, quotes included; ``shlex`` takes the quotes off. Variables and arrays
that the script sets to plain text are put in, split into words where a shell would; what only a shell would know
becomes :data:`HOLE`, or :data:`REST` where it may be any number of options.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from hermetic.errors import AuditError

HOLE: Final = "\0"
"""Stands in a word for what is not known before it runs."""
REST: Final = "\0*"
"""A word that stands for options, however many, that are not known: ``"$@"``, ``$EXTRA_ARGS``."""

_RUN: Final = r"[$<>]\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`"
"""What is run for its output, or computed: ``$(...)``, ``$((...))``, ``<(...)``."""
_TOKEN: Final = re.compile(
    rf"""(?P<word>{_RUN})
      |(?P<skip>[ \t\r]+|\\\r?\n|\#[^\n]*|(?:\d*(?:>>?|<)|&>>?)(?:&\d|[ \t]*[^\s;&|()<>]+))
      |(?P<end>\n|;|&&|\|\||[|&()])
      |(?P<array>[A-Za-z_]\w*\+?=)\(
      |(?P<text>(?:{_RUN}|[^\s"'`\\;&|()]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+)""",
    re.VERBOSE | re.DOTALL,
)
_HERE: Final = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n(?P<body>.*?)^[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE)
_VARIABLE: Final = re.compile(
    rf"'[^']*'|\\.|(?P<run>{_RUN})|\$(?:(?P<bare>[A-Za-z_]\w*|[@*#?\d])|\{{(?P<name>\w+)(?::?-(?P<else>[^}}]*))?[^}}]*\}})",
    re.DOTALL,
)
_WHOLE: Final = re.compile(
    r"(?P<quote>\"?)\$(?:(?P<bare>[A-Za-z_]\w*|[@*])|\{(?P<name>\w+)(?P<every>\[[@*]\])?\})(?P=quote)"
)
_MANY: Final = re.compile(r"arg|opt(?!im)|flag|extra|overrides", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>.*)", re.DOTALL)
_BEFORE: Final = {
    *("export", "env", "exec", "nohup", "time", "sudo", "set", "local", "readonly", "declare", "eval"),
    *("if", "then", "elif", "else", "while", "until", "do", "{", "!"),
}
_SHELLS: Final = {"bash", "sh", "zsh"}

_Variables = dict[str, tuple[str, ...]]
"""What the script has set; of what is no array, one text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """One word of a command; of a command line that was handed over, without a place."""

    text: str
    line: int | None = None
    column: int | None = None
    array: tuple["Word", ...] | None = None
    """Of ``NAME=(...)``, the words in it."""


def commands_of(text: str, file: str) -> Iterator[tuple[Word, ...]]:
    r"""The commands of a script, in order, their words without quotes.

    Raises:
        AuditError: a quote or an array is not closed.

    Example:
        >>> [word.text for word in next(commands_of('A=(--a 1)\nrun "${A[@]}" \\\n --b $B', "f.sh"))]
        ['run', '--a', '1', '--b', '\x00']
    """
    yield from _commands(_HERE.sub(_blank, text), file, {})


def _commands(text: str, file: str, variables: _Variables) -> Iterator[tuple[Word, ...]]:
    for words in _split(text, file):
        expanded = tuple(one for word in words for one in _expanded(word, variables, file))
        rest = _after_assignments(expanded, variables)
        inner = _inner(rest)
        if inner is not None:
            for command in _commands(inner.text, file, variables):
                yield tuple(replace(word, line=inner.line, column=inner.column) for word in command)
        elif rest:
            yield rest


def _inner(words: tuple[Word, ...]) -> Word | None:
    """The text that a shell within is to run: ``bash -c '...'``."""
    names = [word.text.rpartition("/")[2] for word in words]
    for index in range(len(words) - 2):
        if names[index] in _SHELLS and re.fullmatch(r"-\w*c", names[index + 1]):
            return words[index + 2]
    return None


def _blank(here: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", here[0])


def _split(text: str, file: str) -> Iterator[tuple[Word, ...]]:
    words: list[Word] = []
    array: list[Word] | None = None
    name = Word(text="")
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        if token is None:
            raise AuditError(f"{file}:{line}:{column} opens a quote that nothing closes; expected a command line")
        found = token["word"] or token["text"]
        if token["array"] is not None:
            name, array = Word(text=token["array"], line=line, column=column), []
        elif found is not None:
            word = Word(text=re.sub(r"\\\r?\n", "", found), line=line, column=column)
            (words if array is None else array).append(word)
        elif array is not None and token["end"] == ")":
            words.append(replace(name, array=tuple(array)))
            array = None
        elif array is None and token["end"] is not None and words:
            yield tuple(words)
            words = []
        at = token.end()
    if array is not None:
        raise AuditError(f"{file}:{name.line}:{name.column} opens an array that nothing closes; expected )")
    if words:
        yield tuple(words)


def _expanded(word: Word, variables: _Variables, file: str) -> tuple[Word, ...]:
    """A word as the words that it is once variables are put in."""
    if word.array is not None:
        return (replace(word, array=tuple(one for part in word.array for one in _expanded(part, variables, file))),)
    whole = _WHOLE.fullmatch(word.text)
    if whole is not None and (whole["every"] or whole["bare"] in {"@", "*"} or not whole["quote"]):
        return tuple(replace(word, text=text) for text in _several(whole, variables))
    return (replace(word, text=_put_in(word, variables, file)),)


def _several(whole: re.Match[str], variables: _Variables) -> tuple[str, ...]:
    """The words of a variable that stands by itself, without quotes or as all of an array."""
    name = whole["bare"] or whole["name"]
    if name in variables and whole["every"]:
        return variables[name]
    if name in variables:
        return tuple(" ".join(variables[name][:1]).split())
    return (REST if whole["every"] or name in {"@", "*"} or _MANY.search(name) else HOLE,)


def _put_in(word: Word, variables: _Variables, file: str) -> str:
    def value(found: re.Match[str]) -> str:
        name = found["bare"] or found["name"]
        if found["run"]:
            return HOLE
        if name is None:
            return found[0]
        otherwise = found["else"]
        known = otherwise is not None and "$" not in otherwise and "`" not in otherwise
        return " ".join(variables[name]) if name in variables else otherwise if known else HOLE

    try:
        return "".join(shlex.split(_VARIABLE.sub(value, word.text)))
    except ValueError as error:
        raise AuditError(f"{file}:{word.line}:{word.column} cannot be split: {error}; quote it") from error


def _after_assignments(words: tuple[Word, ...], variables: _Variables) -> tuple[Word, ...]:
    """The words after ``NAME=value`` and ``NAME=(...)``, which are remembered."""
    for index, word in enumerate(words):
        assignment = _ASSIGNMENT.fullmatch(word.text)
        if assignment is not None:
            _assign(assignment, word, variables)
        elif word.text not in _BEFORE:
            return words[index:]
    return ()


def _assign(assignment: re.Match[str], word: Word, variables: _Variables) -> None:
    before = variables.get(assignment["name"], ()) if assignment["more"] else ()
    if word.array is not None:
        variables[assignment["name"]] = (*before, *(one.text for one in word.array))
    else:
        variables[assignment["name"]] = ("".join(before[:1]) + assignment["value"], *before[1:])
