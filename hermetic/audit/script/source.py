"""A script as text: a Python file as Python itself would decode it, or the code cells of a notebook.

Guarantee: whatever the file holds, this gives a syntax tree or an :class:`~hermetic.errors.AuditError` that names the
file, the line and the way out. Nothing is imported, compiled or run.
Price: one parse; files above ``LARGEST`` bytes are refused, for no training script is as long.
"""

import ast
import io
import json
import re
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermetic.audit.finding import Place
from hermetic.errors import AuditError

LARGEST: Final = 2**20
"""Bytes of a file."""

_LINES: Final = re.compile(r"\r\n|\r|\n")
_MAGIC: Final = re.compile(r"^\s*[%!?]|^\s*[\w., ]+=\s*[%!]|^\s*[\w.]+\?{1,2}\s*$")
_GOES_ON: Final = re.compile(r"\\\s*$")
"""The end of a line that the next one belongs to."""

_CELL_OF_ANOTHER_LANGUAGE: Final = re.compile(r"^\s*%%(?!time|capture|prun|timeit)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The text of a script, and where its lines stand."""

    file: str
    lines: tuple[str, ...]
    tree: ast.Module
    cells: tuple[tuple[int, int], ...] = ()
    """Of a notebook: number of a cell, from 1, and the line of the joined text it begins at, from 1."""

    def text(self, node: ast.AST) -> str:
        """What stands at a node; columns of a syntax tree count bytes."""
        first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0
        lines = [line.encode() for line in self.lines[first - 1 : last]]
        if lines:
            lines[-1] = lines[-1][: getattr(node, "end_col_offset", None)]
            lines[0] = lines[0][getattr(node, "col_offset", 0) :]
        return b"\n".join(lines).decode(errors="ignore")

    def place(self, node: ast.AST, key: str) -> Place:
        """Where a node stands; lines of a notebook count from the start of their cell."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        column = len(self.lines[line - 1].encode()[:column].decode(errors="ignore")) + 1  # ast counts bytes
        number, line = _in_a_cell(self.cells, line)
        if number is not None:
            key = f"cell {number}: {key}"
        return Place(key=key, file=self.file, line=line, column=column)


def _in_a_cell(cells: tuple[tuple[int, int], ...], line: int) -> tuple[int | None, int]:
    """The cell of a line, if there are cells, and the line in it."""
    inside = [(number, start) for number, start in cells if start <= line]
    return (inside[-1][0], line - inside[-1][1] + 1) if inside else (None, line)


def read_source(path: str | Path) -> Source:
    """Read and parse a ``.py`` file or the code cells of an ``.ipynb``.

    Raises:
        AuditError: the file cannot be read or decoded, is too large, or is not Python 3.
    """
    path = Path(path)
    try:
        about = path.stat()
        size = about.st_size
        regular = stat.S_ISREG(about.st_mode)  # a pipe may never end
        data = path.read_bytes() if regular and size <= LARGEST else b""
    except (OSError, ValueError) as error:
        raise AuditError(f"script {path} cannot be read: {error}; expected a Python file or a notebook") from error
    if not regular:
        raise AuditError(f"script {path} cannot be read: it is no regular file; expected a Python file or a notebook")
    if size > LARGEST:
        raise AuditError(
            f"script {path} has {size} bytes; expected a training script of at most {LARGEST}. Audit the file that "
            "builds the trainer"
        )
    if path.suffix == ".ipynb":
        return _source(str(path), *_cells(path, data))
    return _source(str(path), _decoded(path, data))


def source_of_text(text: str, *, file: str = "script.py") -> Source:
    """The same of text in memory, for the examples of rules.

    Raises:
        AuditError: it is not Python 3.
    """
    return _source(file, text)


def _decoded(path: Path, data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, ValueError, LookupError) as error:  # some codecs raise ValueError, which UnicodeError is too
        raise AuditError(
            f"script {path} cannot be decoded: {error}; expected UTF-8, or a line such as # -*- coding: latin-1 -*- "
            "that names its encoding"
        ) from error


def _source(file: str, text: str, cells: tuple[tuple[int, int], ...] = ()) -> Source:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings are the script's own affair
            tree = ast.parse(text)
    except SyntaxError as error:
        raise AuditError(_not_python(file, error, cells)) from error
    except (RecursionError, MemoryError) as error:
        raise AuditError(f"script {file} is nested too deeply to be parsed; expected code that Python runs") from error
    except ValueError as error:
        raise AuditError(f"script {file} is no text: {error}; expected a Python file or a notebook") from error
    return Source(file=file, lines=tuple(_LINES.split(text)), tree=tree, cells=cells)


def _not_python(file: str, error: SyntaxError, cells: tuple[tuple[int, int], ...]) -> str:
    line = (error.text or "").strip()
    old = re.match(r"(print|exec)\s+[^=(\s]|except\s+\w+\s*,\s*\w+\s*:|raise\s+\w+\s*,", line)
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    hint = (
        "This is Python 2; convert it, or audit the configuration"
        if old
        else f"Repair it, or, if it needs a Python newer than {ours}, run the audit with that one"
    )
    number, at = _in_a_cell(cells, error.lineno or 1)
    cell = "" if number is None else f", cell {number}"
    where = "" if error.lineno is None else f", line {at}"
    return f"script {file}{cell}{where}: {error.msg}; expected what Python {ours} can parse. {hint}"


def _cells(path: Path, data: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AuditError(f"notebook {path} is no JSON: {error}; expected a notebook as Jupyter saves it") from error
    texts, starts, line = [], [], 1
    for number, text in _code(path, notebook):
        starts.append((number, line))
        texts.append(text)
        line += len(_LINES.split(text))
    return "\n".join(texts), tuple(starts)


def _code(path: Path, notebook: Any) -> Iterator[tuple[int, str]]:
    """Code cells as Python, without lines for the shell and for IPython."""
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise AuditError(
            f"notebook {path} has no list of cells; expected version 4 of the format. Convert an older one with "
            "jupyter nbconvert --to notebook"
        )
    if (language := _language(notebook)) not in {"python", ""}:
        raise AuditError(f"notebook {path} is written in {language}; expected one in Python")
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        written = cell.get("source", "")
        text = "".join(map(str, written)) if isinstance(written, list) else str(written)
        if _CELL_OF_ANOTHER_LANGUAGE.match(text):
            continue
        yield number, text if _is_python(text) else "\n".join(_without_magic(_LINES.split(text)))


def _language(notebook: dict[str, Any]) -> str:
    """What a notebook says of its language; empty if it says nothing."""
    about: Any = notebook.get("metadata")
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        inside = about.get(key) if isinstance(about, dict) else None
        if isinstance(inside, dict) and isinstance(said := inside.get(name), str):
            return said.strip().lower()
    return ""


def _is_python(text: str) -> bool:
    """Whether a cell is Python already, as one is with a line that begins with an operator."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _without_magic(lines: list[str]) -> Iterator[str]:
    """A line for the shell or for IPython becomes ``pass``, so that a block that holds it alone stays a block.

    Lines that such a line goes on to become empty, so that all others keep their numbers.
    """
    goes_on = False
    for line in lines:
        magic = bool(_MAGIC.match(line))
        if goes_on:
            yield ""
        else:
            yield line[: len(line) - len(line.lstrip())] + "pass" if magic else line
        goes_on = (goes_on or magic) and bool(_GOES_ON.search(line))
