"""Text of YAML and JSON as settings with their places. Nothing is constructed but plain data.

Algorithm: YAML is composed to nodes, which know their lines, and only scalars of the core tags are resolved; a tag that
would make an object is an error. JSON is walked by its decoder. Nested names are joined with dots.
Guarantee: whatever the text is, this gives settings or an :class:`~hermetic.errors.AuditError` that names the line.
Aliases are followed within bounds, so that a small file cannot become a large one. Price: some milliseconds.
"""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from hermetic.audit.finding import Place
from hermetic.audit.setup import Setting
from hermetic.errors import AuditError

LARGEST: Final = 2**18
"""Bytes of a file."""
_MOST: Final = 5_000
"""Settings of a file, aliases followed."""
_DEEPEST: Final = 64

_CORE: Final = "tag:yaml.org,2002:"
_SCALARS: Final = {f"{_CORE}{kind}" for kind in ("null", "bool", "int", "float", "str")}
_AS_TEXT: Final = {f"{_CORE}{kind}" for kind in ("timestamp", "value")}
_MERGE: Final = f"{_CORE}merge"

Named = dict[str, Setting]


def read_text(path: Path) -> str:
    """The text of a small file in UTF-8.

    Raises:
        AuditError: there is none, or it is too large or in another encoding.
    """
    try:
        found = path.stat()
        data = path.read_bytes() if stat.S_ISREG(found.st_mode) and found.st_size <= LARGEST else None
    except (OSError, ValueError) as error:
        raise AuditError(f"{path} cannot be read: {error}; expected a configuration") from error
    if data is None:
        what = f"has {found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "is no file that can be read whole"
        raise AuditError(
            f"{path} {what}; expected a configuration, of at most {LARGEST} bytes. Name the configuration, not the data"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AuditError(f"{path} is not UTF-8 at byte {error.start}; expected text. Save it as UTF-8") from error
    if not text.strip():
        raise AuditError(f"{path} is empty; expected a configuration")
    return text


class _Settings:
    """Settings as they are found, counted."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: Named = {}
        self.visited = 0

    def add(self, name: str, value: Any, line: int, column: int) -> None:
        self.found[name] = Setting(value=value, place=Place(key=name, file=self.file, line=line, column=column))

    def visit(self, depth: int, line: int) -> None:
        self.visited += 1
        if self.visited > _MOST or depth > _DEEPEST:
            how = f"more than {_MOST} settings" if self.visited > _MOST else f"more than {_DEEPEST} levels"
            raise AuditError(f"{self.file}:{line} has {how}, aliases followed; expected a configuration of a training")


def settings_of_yaml(text: str, file: str) -> Named:
    r"""Settings of one YAML document whose top is a mapping.

    Raises:
        AuditError: it is no YAML, or something else than one mapping; a key stands there twice; a tag would make an
            object; aliases make it too large.

    Example:
        >>> settings_of_yaml("a:\n  b: 1\n", "f.yaml")["a.b"].place.line
        2
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise AuditError(f"{file} is no YAML: {_said(error)}; expected one mapping of settings") from error
    except RecursionError as error:
        raise AuditError(f"{file} is nested too deeply; expected a configuration of a training") from error
    if not isinstance(root, yaml.MappingNode):
        raise AuditError(f"{file} is not a mapping of settings; expected lines such as packing: true")
    collected = _Settings(file)
    _walk_mapping(root, "", collected, 0)
    return collected.found


def _said(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}, {problem}" if mark else problem


def _walk_mapping(node: yaml.MappingNode, prefix: str, into: _Settings, depth: int) -> dict[str, Any]:
    _expect(node, f"{_CORE}map", into)
    values: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for key, _ in _pairs(node, into, depth):
        name = _name(key, into)
        line = key.start_mark.line + 1
        if name in seen:
            raise AuditError(f"{into.file}:{line} sets {prefix}{name} a second time, after line {seen[name]}; keep one")
        seen[name] = line
    for key, value in (*_merged(node, into, depth), *_pairs(node, into, depth)):
        name = _name(key, into)
        place = (key.start_mark.line + 1, key.start_mark.column + 1)
        _forget(f"{prefix}{name}", into)
        values[name] = _value(value, f"{prefix}{name}", into, depth + 1, place)
    return values


def _forget(name: str, into: _Settings) -> None:
    """What was merged in under this name is replaced whole."""
    if name in into.found:
        for below in [one for one in into.found if one == name or one.startswith(f"{name}.")]:
            del into.found[below]


def _pairs(node: yaml.MappingNode, into: _Settings, depth: int) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    for key, value in node.value:
        into.visit(depth, key.start_mark.line + 1)
        if key.tag != _MERGE:
            yield key, value


def _merged(node: yaml.MappingNode, into: _Settings, depth: int) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """What ``<<`` brings in: the first of several mappings wins, so it comes last."""
    for key, value in node.value:
        if key.tag != _MERGE:
            continue
        into.visit(depth, key.start_mark.line + 1)
        several = list(value.value) if isinstance(value, yaml.SequenceNode) else [value]
        for one in reversed(several):
            if not isinstance(one, yaml.MappingNode):
                raise AuditError(f"{into.file}:{key.start_mark.line + 1} merges what is no mapping; expected an alias")
            yield from _merged(one, into, depth + 1)
            yield from _pairs(one, into, depth + 1)


def _name(key: yaml.Node, into: _Settings) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise AuditError(
            f"{into.file}:{key.start_mark.line + 1} has a key that is no text; expected a name. Fill in a template "
            "before it is audited"
        )
    return str(key.value)


def _value(node: yaml.Node, name: str, into: _Settings, depth: int, place: tuple[int, int]) -> Any:
    into.visit(depth, node.start_mark.line + 1)
    value: Any
    if isinstance(node, yaml.MappingNode):
        value = _walk_mapping(node, f"{name}.", into, depth)
    elif isinstance(node, yaml.SequenceNode):
        _expect(node, f"{_CORE}seq", into)
        value = [
            _value(one, f"{name}.{index}", into, depth + 1, (one.start_mark.line + 1, one.start_mark.column + 1))
            for index, one in enumerate(node.value)
        ]
    else:
        value = _scalar(node, into)
    into.add(name, value, *place)
    return value


def _expect(node: yaml.Node, tag: str, into: _Settings) -> None:
    if node.tag != tag:
        raise AuditError(
            f"{into.file}:{node.start_mark.line + 1} has the tag {node.tag}, which makes an object; expected plain "
            "YAML. Nothing was made"
        )


def _scalar(node: yaml.Node, into: _Settings) -> Any:
    if node.tag in _AS_TEXT:
        return node.value
    if node.tag not in _SCALARS:
        _expect(node, f"{_CORE}str", into)
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, OverflowError, yaml.YAMLError):
        return node.value


def scalar_of(text: str) -> Any:
    """A word of a command line, as YAML would have it: ``true``, ``4096``, or the text itself.

    Example:
        >>> scalar_of("true"), scalar_of("4096"), scalar_of("bfd")
        (True, 4096, 'bfd')
    """
    node = yaml.ScalarNode(yaml.resolver.Resolver().resolve(yaml.ScalarNode, text, (True, False)), text)  # type: ignore[no-untyped-call] # no stubs
    if node.tag not in _SCALARS or not text:
        return text
    return _scalar(node, _Settings(""))


def settings_of_json(text: str, file: str) -> Named:
    r"""Settings of a JSON object.

    Raises:
        AuditError: it is no JSON, or no object; a key stands there twice.

    Example:
        >>> settings_of_json('{"a":\n {"b": 1}}', "f.json")["a.b"].place.line
        2
    """
    walk = _Json(text, file)
    end = walk.value("", walk.skip(0), 0, (1, 1))[1]
    if walk.skip(end) != len(text):
        raise walk.error("something follows the object", walk.skip(end))
    if not text.lstrip().startswith("{"):
        raise AuditError(f"{file} is no JSON object; expected settings by name")
    return walk.into.found


class _Json:
    """A walk over JSON that knows where it is; numbers, texts and names are left to the decoder of Python."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.into = _Settings(file)
        self.decoder = json.JSONDecoder()

    def skip(self, at: int) -> int:
        while at < len(self.text) and self.text[at] in " \t\r\n":
            at += 1
        return at

    def place(self, at: int) -> tuple[int, int]:
        return self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)

    def error(self, what: str, at: int) -> AuditError:
        line, column = self.place(at)
        return AuditError(f"{self.into.file}:{line}:{column} is no JSON: {what}; expected one object of settings")

    def value(self, name: str, at: int, depth: int, place: tuple[int, int]) -> tuple[Any, int]:
        self.into.visit(depth, place[0])
        opening = self.text[at : at + 1]
        value: Any
        if opening == "{":
            value, end = self._object(name, at, depth)
        elif opening == "[":
            value, end = self._array(name, at, depth)
        else:
            value, end = self._scalar(at)
        if name:
            self.into.add(name, value, *place)
        return value, end

    def _scalar(self, at: int) -> tuple[Any, int]:
        try:
            return self.decoder.raw_decode(self.text, at)
        except (ValueError, RecursionError) as error:
            raise self.error(getattr(error, "msg", str(error)), at) from error

    def _object(self, prefix: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self.skip(at + 1)
        while self.text[at : at + 1] != "}":
            key, end = self._scalar(at)
            if not isinstance(key, str):
                raise self.error("a name has to be a text", at)
            if key in found:
                raise self.error(f"{key!r} stands there twice", at)
            colon = self.skip(end)
            if self.text[colon : colon + 1] != ":":
                raise self.error("a colon is missing", colon)
            name = f"{prefix}.{key}" if prefix else key
            found[key], end = self.value(name, self.skip(colon + 1), depth + 1, self.place(at))
            at = self._next(end, "}")
        return found, at + 1

    def _array(self, prefix: str, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self.skip(at + 1)
        while self.text[at : at + 1] != "]":
            value, end = self.value(f"{prefix}.{len(found)}", at, depth + 1, self.place(at))
            found.append(value)
            at = self._next(end, "]")
        return found, at + 1

    def _next(self, end: int, closing: str) -> int:
        """Where the next item begins, or the bracket that closes."""
        at = self.skip(end)
        if self.text[at : at + 1] == ",":
            at = self.skip(at + 1)
            if self.text[at : at + 1] != closing:
                return at
            raise self.error("a comma before the end", at)
        if self.text[at : at + 1] != closing:
            raise self.error(f"a comma or {closing} is missing", at)
        return at
