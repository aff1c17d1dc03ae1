"""Where values come from: documents that are laid end to end, positions, masks of ones, cumulative lengths.

Algorithm: an expression is peeled of what leaves its content alone (``torch.tensor(x)``, ``x.to(...)``, ``x[None]``,
a name that stands for it), and what is left is compared with the few ways in which such values are written.
Guarantee: conservative. What is not recognised is nothing; a list that grows turn by turn is no row of documents.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from hermetic.audit.script.names import Binding, Names

_DEPTH: Final = 20
_SAME: Final = frozenset(
    {
        "torch.tensor",
        "torch.as_tensor",
        "torch.LongTensor",
        "torch.IntTensor",
        "torch.from_numpy",
        "numpy.array",
        "numpy.asarray",
        "<list>",
        "<tuple>",
    }
)
"""Functions that keep the content of their first argument."""

_SAME_METHODS: Final = frozenset(
    {
        *("to", "long", "int", "type", "astype", "numpy", "tolist"),
        *("cuda", "cpu", "pin_memory", "clone", "copy", "contiguous", "detach"),
        *("unsqueeze", "squeeze", "view", "reshape", "flatten"),
    }
)
"""Methods that keep the content of what they are called on."""

JOINS: Final = frozenset(
    {"torch.cat", "torch.concat", "torch.concatenate", "torch.hstack", "numpy.concatenate", "numpy.hstack"}
)
_PER_TOKEN: Final = frozenset({"input_ids", "ids", "tokens", "token_ids", "labels", "attention_mask", "position_ids"})
_DOCUMENTS: Final = re.compile(
    r"(^|_)(docs?|documents?|texts?|corpus|samples?|sequences?|examples?|batch|features?|items)$"
)
"""Names of collections of documents."""

_TURNS: Final = re.compile(
    r"messages?|turns?|conversations?|chat|dialog|parts?|segments?|chunks?|pieces?|spans?|rounds?"
)
"""Names of collections of pieces of one document."""

_BATCHES: Final = re.compile(r"(^|_)(data)?(loaders?|dl|batches)$")
"""Names of collections of batches, whose documents lie side by side already."""

Loop = ast.For | ast.AsyncFor | ast.comprehension


@dataclass(frozen=True, kw_only=True, slots=True)
class Peeled:
    """What is left of an expression, and what was taken off."""

    core: ast.expr
    around: tuple[ast.expr, ...]
    """From the outside in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Join:
    """One value for each document (or each document's values), laid end to end."""

    element: ast.expr
    loop: Loop
    """Over documents."""
    how: Literal["list", "tensor"]
    """A list of tokens cannot be anything but a row; tensors may have been stacked as rows."""
    node: ast.expr


def peel(node: ast.expr, names: Names, *, through_names: bool = True) -> Peeled:
    """Take off what leaves the content of an expression alone."""
    around: list[ast.expr] = []
    for _ in range(_DEPTH):
        inner = _inside(node, names, through_names=through_names)
        if inner is None:
            break
        around.append(node)
        node = inner
    return Peeled(core=node, around=tuple(around))


def _inside(node: ast.expr, names: Names, *, through_names: bool) -> ast.expr | None:
    if isinstance(node, ast.Name):
        return names.definition(node.id, node) if through_names else None
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts[0] if len(node.elts) == 1 and not isinstance(node.elts[0], ast.Starred) else None
    if isinstance(node, ast.Subscript):
        return node.value if _keeps_all(node.slice) else None
    return _kept_by_a_call(node, names) if isinstance(node, ast.Call) else None


def _kept_by_a_call(node: ast.Call, names: Names) -> ast.expr | None:
    if names.dotted(node.func) in _SAME and node.args:
        return node.args[0]
    return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_METHODS else None


def _keeps_all(index: ast.expr) -> bool:
    """``[None]``, ``[:, None]``, ``[:n]``: new axes and ends that are cut off."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(part, ast.Constant) and (part.value is None or part.value is Ellipsis))
        or (isinstance(part, ast.Slice) and part.lower is None and part.step is None)
        for part in parts
    )


def mentioned(node: ast.AST) -> set[str]:
    """Names that an expression reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def loop_names(loop: Loop) -> set[str]:
    """Names that a loop binds."""
    return mentioned(loop.target)


def collection(loop: Loop, names: Names) -> ast.expr:
    """What is iterated over, without ``enumerate``, ``zip``, ``tqdm`` and ``range(len(...))``."""
    over = loop.iter
    for _ in range(_DEPTH):
        if not isinstance(over, ast.Call) or not over.args:
            break
        short = (names.dotted(over.func) or "").strip("<>").rpartition(".")[2]
        if short not in {"enumerate", "zip", "tqdm", "range", "len", "list", "iter", "sorted"}:
            break
        over = over.args[0]
    return over


def collection_name(loop: Loop, names: Names) -> str:
    """The last name of what is iterated over."""
    over = collection(loop, names)
    if isinstance(over, ast.Attribute):
        return over.attr
    if isinstance(over, ast.Subscript) and isinstance(over.slice, ast.Constant):
        return str(over.slice.value)
    return over.id if isinstance(over, ast.Name) else ""


def joined(node: ast.expr, names: Names) -> Join | None:
    """The documents' tokens, or what belongs to them, that an expression lays end to end."""
    peeled = peel(node, names)
    core = peeled.core
    if isinstance(core, ast.Name):
        return _grown(core.id, core, names)
    if isinstance(core, ast.Subscript) and isinstance(core.slice, ast.Constant) and isinstance(core.value, ast.Name):
        return _grown(f"{core.value.id}[{core.slice.value!r}]", core, names)
    if isinstance(core, ast.ListComp) and len(core.generators) > 1:
        return _nested(core)
    if isinstance(core, ast.Call) and core.args:
        return _called(core, names)
    return None


def _nested(core: ast.ListComp) -> Join | None:
    """``[token for document in documents for token in document]``."""
    last = core.generators[-1]
    if isinstance(core.elt, ast.Name) and core.elt.id in loop_names(last):
        return Join(element=last.iter, loop=core.generators[-2], how="list", node=core)
    return None


def _called(core: ast.Call, names: Names) -> Join | None:
    name, argument = names.dotted(core.func) or "", core.args[0]
    chained = name in {"itertools.chain.from_iterable", "more_itertools.flatten"} or (
        name == "itertools.chain" and isinstance(argument, ast.Starred)
    )
    if chained or (name == "<sum>" and len(core.args) == 2 and isinstance(core.args[1], ast.List)):
        return _each(argument, names, core, how="list")
    return _each(argument, names, core, how="tensor") if name in JOINS else None


def _each(argument: ast.expr, names: Names, node: ast.expr, *, how: Literal["list", "tensor"]) -> Join | None:
    """The element of a collection that is joined: of a comprehension, or what a list was appended."""
    inner = peel(argument, names).core
    if isinstance(inner, (ast.ListComp, ast.GeneratorExp)) and len(inner.generators) == 1:
        return Join(element=inner.elt, loop=inner.generators[0], how=how, node=node)
    if isinstance(inner, ast.Name):
        grown = _growth(inner.id, inner, names)
        if grown is not None and grown.method == "append" and (loop := loop_around(grown.node, names)):
            assert grown.value is not None  # noqa: S101 - append has an argument
            return Join(element=grown.value, loop=loop, how=how, node=node)
    return None


def _grown(name: str, at: ast.expr, names: Names) -> Join | None:
    """``row += document`` or ``row.extend(document)`` in a loop."""
    grown = _growth(name, at, names)
    if grown is None or grown.value is None or (grown.kind == "grow" and grown.method != "extend"):
        return None
    loop = loop_around(grown.node, names)
    return None if loop is None else Join(element=grown.value, loop=loop, how="list", node=at)


def _growth(name: str, at: ast.expr, names: Names) -> Binding | None:
    """The one statement that a list grows by, which begins empty."""
    found = names.of(name, at)
    grown = [one for one in found if one.kind in {"augment", "grow"}]
    begun = [one for one in found if one not in grown]
    empty = [one for one in begun if one.kind == "assign" and isinstance(one.value, ast.List) and not one.value.elts]
    return grown[0] if len(grown) == 1 and len(begun) == len(empty) and (empty or "[" in name) else None


def loop_around(node: ast.AST, names: Names) -> ast.For | ast.AsyncFor | None:
    """The innermost loop statement around a node, in its function."""
    for one in names.above(node):
        if isinstance(one, (ast.For, ast.AsyncFor)):
            return one
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
    return None


def of_turns(loop: Loop, names: Names) -> bool:
    """Whether a loop is over the turns or the pieces of one document, by its names."""
    over = collection_name(loop, names).lower()
    return bool(_TURNS.search(over)) or any(_TURNS.fullmatch(name.lower()) for name in loop_names(loop))


def of_batches(loop: Loop, names: Names) -> bool:
    """Whether a loop is over batches, by the name of what gives them."""
    return bool(_BATCHES.search(collection_name(loop, names).lower()))


def over_documents(join: Join, names: Names) -> bool:
    """Whether what is laid end to end are documents, and not the turns or the pieces of one."""
    over = collection_name(join.loop, names)
    if of_batches(join.loop, names) or of_turns(join.loop, names):
        return False
    element = _first(join.element, names)
    entry = isinstance(element, (ast.Subscript, ast.Attribute)) and _key(element) in _PER_TOKEN
    if entry and _root(element) in loop_names(join.loop):
        return True
    documents = bool(_DOCUMENTS.search(over.lower())) or over_token_ids(join.loop, names)
    return documents and bool(mentioned(element) & loop_names(join.loop))


def over_token_ids(loop: Loop, names: Names) -> bool:
    """Whether a loop is over the token ids of many texts, ``tokenizer(texts)["input_ids"]``: each is a document."""
    over = peel(collection(loop, names), names).core
    return isinstance(over, (ast.Subscript, ast.Attribute)) and _key(over) == "input_ids"


def _first(element: ast.expr, names: Names) -> ast.expr:
    """Of ``ids + [eos]`` the ids."""
    for _ in range(_DEPTH):
        element = peel(element, names).core
        if not (isinstance(element, ast.BinOp) and isinstance(element.op, ast.Add)):
            break
        element = element.left
    return element


def _key(node: ast.Subscript | ast.Attribute) -> object:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.slice.value if isinstance(node.slice, ast.Constant) else None


def _root(node: ast.expr) -> str | None:
    for _ in range(_DEPTH):
        if not isinstance(node, (ast.Subscript, ast.Attribute)):
            break
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def expanded(node: ast.expr, names: Names) -> Iterator[ast.AST]:
    """All nodes of an expression and of what its names stand for."""
    waiting: list[ast.expr] = [node]
    seen: set[ast.expr] = set()
    while waiting and len(seen) < 500:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for one in ast.walk(current):
            yield one
            if isinstance(one, ast.Name) and (plain := names.definition(one.id, one)) is not None:
                waiting.append(plain)
