"""Who a name is: scopes, bindings and imports of a module, without running it.

Algorithm: one walk over the tree notes each node's parent and, in each scope, everything that binds or changes a name
or a spot (``batch["labels"]``, ``model.config.use_cache``). A name stands for an expression only where one plain
assignment is all that ever happens to it; otherwise it stands for nothing, and nothing is concluded.
Guarantee: what :meth:`Names.definition` gives is what the name holds whenever it is read after it was assigned, as far
as the text of this file can say. Walks have no recursion over the tree, so no nesting is too deep for them.
Price: linear in the number of nodes.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Kind = Literal["assign", "augment", "grow", "loop", "parameter", "import", "define", "other"]
Scope: TypeAlias = ast.AST

GROW: Final = frozenset({"append", "extend", "insert", "update", "pop", "setdefault", "clear", "remove", "popitem"})
"""Methods that change what a name holds."""

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES: Final = (ast.Module, ast.ClassDef, *_FUNCTIONS, *_COMPREHENSIONS)
_DEPTH: Final = 40
"""Of chains of names, attributes and definitions; what is longer is not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """One thing that happens to a name."""

    kind: Kind
    node: ast.AST
    value: ast.expr | None = None
    """What is assigned, added, appended or iterated over."""
    dotted: str | None = None
    """Of an import: what is imported."""
    method: str | None = None
    """Of a method that changes it: ``append``."""


@dataclass(kw_only=True, slots=True)
class Names:
    """The names of a module, by the scope that binds them."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    scopes: dict[ast.AST, ast.AST] = field(default_factory=dict)
    """The scope of each node."""
    nodes: list[ast.AST] = field(default_factory=list)
    """All of them, in the order of a breadth-first walk."""
    bindings: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    """Modules of which everything was imported."""
    within: dict[ast.AST, list[ast.AST]] = field(default_factory=dict)
    """The nodes of each function, once :meth:`inside` was asked."""
    values: dict[ast.AST, Any] = field(default_factory=dict)
    """What expressions were found to be worth, for none is read twice."""

    def scope_of(self, node: ast.AST) -> Scope:
        """The innermost scope around a node."""
        return self.scopes.get(node, self.tree)

    def function_of(self, node: ast.AST) -> Scope:
        """The function around a node, or the module; comprehensions and classes belong to what is around them."""
        scope = self.scope_of(node)
        while not isinstance(scope, (ast.Module, *_FUNCTIONS)):
            scope = self.scope_of(scope)
        return scope

    def inside(self, function: Scope) -> list[ast.AST]:
        """The nodes whose function this is, in the order of the walk."""
        if not self.within:
            for node in self.nodes:
                self.within.setdefault(self.function_of(node), []).append(node)
        return self.within.get(function, [])

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parents of a node, from the inside out."""
        current = self.parents.get(node)
        while current is not None:
            yield current
            current = self.parents.get(current)

    def of(self, name: str, at: ast.AST) -> list[Binding]:
        """Everything that happens to a name or a spot that is read at a node, in the scope that it belongs to."""
        scope = first = self.scope_of(at)
        root = re.split(r"[\[.]", name, maxsplit=1)[0]
        while True:
            here = self.bindings.get(scope, {})
            if (root in here or name in here) and (scope is first or not isinstance(scope, ast.ClassDef)):
                return here.get(name, [])
            if scope is self.tree:
                return []
            scope = self.scope_of(scope)

    def definition(self, name: str, at: ast.AST) -> ast.expr | None:
        """The expression that a name stands for; ``None`` unless one assignment is all that happens to it."""
        found = self.of(name, at)
        return found[0].value if len(found) == 1 and found[0].kind == "assign" else None

    def dotted(self, node: ast.AST | None, *, depth: int = 0) -> str | None:
        """A name as its module calls it: ``F.pad`` is ``torch.nn.functional.pad``.

        What this file made itself begins with ``<``: ``<model>.forward``.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < _DEPTH:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ".".join(["<>", *reversed(parts)]) if parts else None
        return ".".join([self._root(node, depth), *reversed(parts)])

    def _root(self, node: ast.Name, depth: int) -> str:
        found = self.of(node.id, node)
        imports = [one.dotted for one in found if one.kind == "import" and one.dotted]
        if imports and all(one.kind == "import" or _is_none(one.value) for one in found):
            return imports[0]
        if not found and self.stars:
            return f"{self.stars[-1]}.{node.id}"
        plain = self.definition(node.id, node)
        if isinstance(plain, (ast.Name, ast.Attribute)) and depth < _DEPTH:  # names may turn in circles
            return self.dotted(plain, depth=depth + 1) or f"<{node.id}>"
        return f"<{node.id}>"


def _is_none(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def names_of(tree: ast.Module) -> Names:
    """Walk a module once."""
    names = Names(tree=tree)
    names.nodes = list(ast.walk(tree))
    for node in names.nodes:
        scope = node if isinstance(node, _SCOPES) else names.scopes[node]
        for child in ast.iter_child_nodes(node):
            names.parents[child], names.scopes[child] = node, scope
    changes = []
    for node in names.nodes:
        for name, binding in _bindings(node):
            if binding.kind == "grow" or not name.isidentifier():
                changes.append((name, binding))
            else:
                names.bindings.setdefault(_home(names, node, binding), {}).setdefault(name, []).append(binding)
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == "*" for alias in node.names):
            names.stars.append(node.module)
    for name, binding in changes:
        names.bindings.setdefault(_owner(names, name, binding.node), {}).setdefault(name, []).append(binding)
    return names


def _owner(names: Names, name: str, node: ast.AST) -> Scope:
    """The scope that binds the root of what is changed."""
    root, scope = re.split(r"[\[.]", name, maxsplit=1)[0], names.scope_of(node)
    while scope is not names.tree and root not in names.bindings.get(scope, {}):
        scope = names.scope_of(scope)
    return scope


def _home(names: Names, node: ast.AST, binding: Binding) -> Scope:
    """The scope that a binding belongs to: parameters to their function, a walrus to the function around it."""
    if isinstance(node, _FUNCTIONS) and binding.kind == "parameter":
        return node
    if isinstance(node, ast.comprehension):
        return names.parents[node]
    if isinstance(node, ast.NamedExpr):
        return names.function_of(node)
    return names.scope_of(node)


def spot(target: ast.AST) -> str | None:
    """A target as text: ``batch``, ``batch['labels']``, ``model.config.use_cache``; ``None`` of anything else."""
    after: list[str] = []
    while len(after) < _DEPTH:
        if isinstance(target, ast.Name):
            return target.id + "".join(reversed(after))
        if isinstance(target, ast.Attribute):
            after.append(f".{target.attr}")
            target = target.value
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            after.append(f"[{target.slice.value!r}]")
            target = target.value
        else:
            return None
    return None


def _bindings(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    """What one node binds or changes."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from _imports(node)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value, node)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield from _targets(node.target, node.value, node)
    elif isinstance(node, ast.AugAssign):
        yield from _one(node.target, Binding(kind="augment", node=node, value=node.value))
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _each(node.target, Binding(kind="loop", node=node, value=node.iter))
    elif isinstance(node, _FUNCTIONS):
        yield from _parameters(node)
    else:
        yield from _others(node)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name, Binding(kind="define", node=node)


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Binding]]:
    before = f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        whole = before + alias.name
        bound = alias.asname or (alias.name if before else alias.name.partition(".")[0])
        yield bound, Binding(kind="import", node=node, dotted=whole if alias.asname or before else bound)


def _targets(target: ast.expr, value: ast.expr, node: ast.AST) -> Iterator[tuple[str, Binding]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield from _one(target, Binding(kind="assign", node=node, value=value))
    elif isinstance(value, (ast.Tuple, ast.List)) and _match(target, value):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _targets(inner, part, node)
    else:
        yield from _each(target, Binding(kind="other", node=node, value=value))


def _match(target: ast.Tuple | ast.List, value: ast.Tuple | ast.List) -> bool:
    both = [*target.elts, *value.elts]
    return len(target.elts) == len(value.elts) and not any(isinstance(one, ast.Starred) for one in both)


def _one(target: ast.expr, binding: Binding) -> Iterator[tuple[str, Binding]]:
    """A name or a spot; changing a spot that is no constant key changes its root in some way."""
    name = spot(target)
    if name is not None:
        yield name, binding
        return
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
        if (root := spot(target)) is not None:
            yield root, Binding(kind="grow", node=binding.node, value=binding.value, method="[]")
            return


def _each(target: ast.expr, binding: Binding) -> Iterator[tuple[str, Binding]]:
    for inner in ast.walk(target):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id, binding
        elif isinstance(inner, (ast.Subscript, ast.Attribute)) and isinstance(inner.ctx, ast.Store):
            yield from _one(inner, binding)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[tuple[str, Binding]]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    for argument in every:
        if argument is not None:
            yield argument.arg, Binding(kind="parameter", node=node)


def _others(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GROW:
        value = node.args[-1] if node.args else None
        yield from _one(node.func.value, Binding(kind="grow", node=node, value=value, method=node.func.attr))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _each(node.optional_vars, Binding(kind="other", node=node))
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, Binding(kind="other", node=node)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _one(target, Binding(kind="other", node=node))
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        for name in node.names:
            yield name, Binding(kind="other", node=node)
    elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name, Binding(kind="other", node=node)
