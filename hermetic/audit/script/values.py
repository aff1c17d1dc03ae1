"""What an expression is worth, where the text alone tells.

Guarantee: a value is the one that the expression has whenever it runs, or ``UNKNOWN``. What depends on arguments, the
environment, a branch or a function's result is ``UNKNOWN``, and so is a dictionary that anything may have changed.
"""

import ast
from typing import Any, Final

from hermetic.audit.script.names import Names
from hermetic.audit.setup import UNKNOWN

_DEPTH: Final = 20
_LARGEST: Final = 2**63
_HARMLESS: Final = frozenset({"print", "len", "repr", "str", "sorted", "list", "set", "dict", "json.dumps"})
"""Functions that do not change a dictionary that they are given."""


def value_of(node: ast.expr | None, names: Names, *, depth: int = 0) -> Any:
    """The value of literals, of names that stand for them, of ``dict(...)`` and of sums and products of numbers.

    Names of imported things, such as ``torch.bfloat16``, are their dotted names.
    """
    if node is None or depth > _DEPTH:
        return UNKNOWN
    if node not in names.values:
        names.values[node] = _read(node, names, depth)
    return names.values[node]


def _read(node: ast.expr, names: Names, depth: int) -> Any:
    """By the kind of the expression."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [value_of(one, names, depth=depth + 1) for one in node.elts]
    if isinstance(node, ast.Dict) or _is_dict_call(node, names):
        return _mapping(node, names, depth)
    if isinstance(node, (ast.UnaryOp, ast.BinOp)):
        return _computed(node, names, depth)
    return _held(node, names, depth)


def _held(node: ast.expr, names: Names, depth: int) -> Any:
    """Of names, entries and attributes."""
    if isinstance(node, ast.Name):
        return _named(node, names, depth)
    if isinstance(node, ast.Subscript):
        return _item(node, names, depth)
    dotted = names.dotted(node) if isinstance(node, ast.Attribute) else None
    return dotted if dotted is not None and not dotted.startswith("<") else UNKNOWN


def _is_dict_call(node: ast.expr, names: Names) -> bool:
    return isinstance(node, ast.Call) and names.dotted(node.func) == "<dict>" and not node.args


def _mapping(node: ast.expr, names: Names, depth: int) -> Any:
    if isinstance(node, ast.Call):
        pairs: list[tuple[Any, ast.expr]] = [(word.arg, word.value) for word in node.keywords]
    else:
        assert isinstance(node, ast.Dict)  # noqa: S101 - the caller's condition
        pairs = [
            (key and value_of(key, names, depth=depth + 1), value)
            for key, value in zip(node.keys, node.values, strict=True)
        ]
    found: dict[Any, Any] = {}
    for key, value in pairs:
        read = value_of(value, names, depth=depth + 1)
        if key is not None and not isinstance(key, (str, int)):
            return UNKNOWN
        if key is not None:
            found[key] = read
        elif isinstance(read, dict):
            found |= read
        else:
            return UNKNOWN
    return found


def _named(node: ast.Name, names: Names, depth: int) -> Any:
    plain = names.definition(node.id, node)
    if plain is not None:
        found = value_of(plain, names, depth=depth + 1)
        return UNKNOWN if isinstance(found, dict) and _may_change(node.id, names) else found
    dotted = names.dotted(node)
    return dotted if dotted is not None and not dotted.startswith("<") else UNKNOWN


def _may_change(name: str, names: Names) -> bool:
    """Whether a dictionary's own entries are set, or it is handed to a function that may set them."""
    if any(one.startswith((f"{name}[", f"{name}.")) for here in names.bindings.values() for one in here):
        return True
    handed = (
        call
        for call in names.nodes
        if isinstance(call, ast.Call) and any(isinstance(one, ast.Name) and one.id == name for one in call.args)
    )
    return any((names.dotted(call.func) or "").strip("<>") not in _HARMLESS for call in handed)


def _computed(node: ast.UnaryOp | ast.BinOp, names: Names, depth: int) -> Any:
    if isinstance(node, ast.UnaryOp):
        return _signed(node.op, value_of(node.operand, names, depth=depth + 1))
    left, right = (value_of(one, names, depth=depth + 1) for one in (node.left, node.right))
    if isinstance(left, dict) and isinstance(right, dict) and isinstance(node.op, ast.BitOr):
        return left | right
    return _arithmetic(node.op, left, right)


def _signed(op: ast.unaryop, value: Any) -> Any:
    if isinstance(op, ast.Not) and isinstance(value, (bool, int, str)):
        return not value
    if isinstance(op, ast.USub) and isinstance(value, (int, float)):
        return -value
    return UNKNOWN


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    numbers = all(isinstance(one, (int, float)) and abs(one) < _LARGEST for one in (left, right))
    if not numbers:
        return left + right if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, str) else UNKNOWN
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.FloorDiv) and right:
        return left // right
    return UNKNOWN


def _item(node: ast.Subscript, names: Names, depth: int) -> Any:
    whole, key = value_of(node.value, names, depth=depth + 1), value_of(node.slice, names, depth=depth + 1)
    return whole.get(key, UNKNOWN) if isinstance(whole, dict) and isinstance(key, (str, int)) else UNKNOWN
