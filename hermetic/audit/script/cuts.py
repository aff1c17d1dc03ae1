"""Where a script lays documents end to end, cuts them into rows, and keeps nothing of where one starts."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from hermetic.audit.script.cutting import cut_streams, only_measures
from hermetic.audit.script.flow import mentioned, peel
from hermetic.audit.script.packing import is_range, isolates, rows
from hermetic.audit.script.script import BOUNDARIES, Script

_WORDS: Final = BOUNDARIES | {"position_ids"}
_KEPT: Final = re.compile(r"(^|_)(lens|lengths|seq_?lens|starts|ends|edges|offsets|boundaries|spans)$")
"""Names of what is kept of documents that are laid end to end."""


def cuts(script: Script) -> tuple[ast.expr, ...]:
    """Where documents are joined that are then cut without their boundaries, one place for each function and name."""
    if "cuts" not in script.kept:
        script.kept["cuts"] = () if _is_let_be(script) else tuple(_cuts(script))
    kept: tuple[ast.expr, ...] = script.kept["cuts"]
    return kept


def _is_let_be(script: Script) -> bool:
    """A script that only measures, or a sealed model in a script that speaks of boundaries."""
    return only_measures(script) or (script.sealed and _speaks_of_boundaries(script.names.tree))


def _cuts(script: Script) -> Iterator[ast.expr]:
    made = [(row.join.node, row.scope) for row in rows(script) if not isolates(row, script)]
    seen = set()
    for node, scope in (*made, *_joined_columns(script)):
        if not _speaks_of_boundaries(scope) and _is_cut(scope, script):
            seen.add(scope)
            yield node
    if _makes_boundaries(script):
        return
    for stream in cut_streams(script):
        if stream.scope not in seen and not _speaks_of_boundaries(stream.scope):
            yield stream.node


def _makes_boundaries(script: Script) -> bool:
    """Whether boundaries are made anywhere: rows may get theirs after they were cut."""
    return any(not is_range(peel(one.value, script.names).core, script.names) for one in script.slot_values(*_WORDS))


def _joined_columns(script: Script) -> Iterator[tuple[ast.expr, ast.AST]]:
    """``sum(examples[k], [])`` and ``chain(*examples[k])``: the columns of a batch of documents, each end to end."""
    for call in script.calls:
        node = call.node
        summed = call.name == "<sum>" and len(node.args) == 2 and isinstance(node.args[1], ast.List)
        chained = call.name in {"itertools.chain", "itertools.chain.from_iterable"} and len(node.args) == 1
        if not summed and not chained:
            continue
        scope = script.names.function_of(node)
        column = node.args[0].value if isinstance(node.args[0], ast.Starred) else node.args[0]
        if _is_a_column(column, scope, script):
            yield node, scope


def _is_a_column(column: ast.expr, scope: ast.AST, script: Script) -> bool:
    """An entry of a function's parameter: of all of its keys in turn, or its ``input_ids``."""
    if not isinstance(column, ast.Subscript) or not isinstance(column.value, ast.Name):
        return False
    given = script.names.of(column.value.id, column)
    key = column.slice
    named = isinstance(key, ast.Constant) and key.value == "input_ids"
    turn = isinstance(key, ast.Name) and any(one.kind == "loop" for one in script.names.of(key.id, key))
    return (named or turn) and [one.kind for one in given] == ["parameter"] and given[0].node is scope


def _speaks_of_boundaries(scope: ast.AST) -> bool:
    said = (_word(one) for one in ast.walk(scope))
    return any(word is not None and (word in _WORDS or _KEPT.search(word) is not None) for word in said)


def _word(node: ast.AST) -> str | None:
    """The name or the text that a node is."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    return node.id if isinstance(node, ast.Name) else getattr(node, "arg", None) if _is_given(node) else None


def _is_given(node: ast.AST) -> bool:
    return isinstance(node, (ast.arg, ast.keyword))


def _is_cut(scope: ast.AST, script: Script) -> bool:
    """``x[i : i + block]`` for ``i`` in ``range(0, total, block)``, in one function."""
    inside = script.names.inside(scope)
    steps = {
        name
        for node in inside
        if isinstance(node, (ast.For, ast.comprehension)) and _is_stepped(node.iter, script)
        for name in mentioned(node.target)
    }
    slices = (node.slice for node in inside if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice))
    return any(isinstance(one.lower, ast.Name) and one.lower.id in steps and one.upper is not None for one in slices)


def _is_stepped(over: ast.expr, script: Script) -> bool:
    return isinstance(over, ast.Call) and script.names.dotted(over.func) == "<range>" and len(over.args) == 3
