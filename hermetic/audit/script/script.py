"""What a script does that has to do with packing: its calls, and the values that it gives by name.

A *slot* is a place where a value gets the name that a model or a kernel knows it by: a keyword of a call, a key of a
dictionary, an entry that is set (``batch["labels"] = ...``), a positional argument of a kernel whose order is known, a
variable of that name. Slots of one call or one dictionary belong together.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from hermetic.audit.finding import AuditFinding, Certainty
from hermetic.audit.script.names import Names, names_of, spot
from hermetic.audit.script.source import Source
from hermetic.audit.script.values import value_of

EDGES: Final = frozenset(
    {
        *("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"),
        *("cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seq_q", "cu_seq_k"),
    }
)
"""Names of cumulative lengths."""

NUMBERS: Final = frozenset(
    {
        "seq_idx",
        "document_ids",
        "document_id",
        "doc_ids",
        "doc_id",
        "segment_ids",
        "segment_id",
        "sequence_id",
        "sequence_ids",
    }
)
"""Names of the document that each token is of."""

LONGEST: Final = frozenset(
    {"max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_length_q", "max_length_k", "max_q", "max_k"}
)
"""Names of the length of the longest document."""

IGNORED: Final = -100
"""The label of a token that is not trained."""

BOUNDARIES: Final = EDGES | NUMBERS
SLOTS: Final = BOUNDARIES | LONGEST | {"input_ids", "labels", "attention_mask", "position_ids"}

_ORDER: Final = {
    "flash_attn_varlen_func": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    "flash_attn_varlen_qkvpacked_func": ("qkv", "cu_seqlens", "max_seqlen"),
    "flash_attn_varlen_kvpacked_func": ("q", "kv", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    "varlen_attn": ("q", "k", "v", "cu_seq_q", "cu_seq_k", "max_q", "max_k"),
}
"""Positional arguments of attention kernels."""

VARLEN: Final = frozenset(_ORDER)
"""Attention kernels that are told where documents start."""

FLASH_VARLEN: Final = VARLEN - {"varlen_attn"}
"""Those of flash attention, which take lengths of 32 bits alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call, by the name that its module gives the function."""

    name: str
    node: ast.Call
    keywords: dict[str, ast.expr]
    spread: tuple[ast.expr, ...]
    """What is given with ``**``."""

    @property
    def short(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One value under a name that a model or kernel knows."""

    key: str
    value: ast.expr
    node: ast.AST
    """Where it is written."""
    owner: tuple[object, ...]
    """The same for slots of one call or one dictionary."""
    how: str
    """``call``, ``entry`` of a dictionary, ``grow`` of an entry that is added to, or ``variable``."""
    call: Call | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A script as the rules look at it."""

    source: Source
    names: Names
    calls: tuple[Call, ...]
    slots: tuple[Slot, ...]
    kept: dict[str, Any] = field(default_factory=dict, compare=False)
    """What was worked out, so that each rule need not do it again."""

    def named(self, *shorts: str, of: tuple[str, ...] = ()) -> Iterator[Call]:
        """Calls of functions with these last names, imported from these packages (by default from any)."""
        for call in self.calls:
            if call.short in shorts and (not of or call.name.startswith(of)):
                yield call

    def value(self, node: ast.expr | None) -> Any:
        """What an expression is worth, or ``UNKNOWN``."""
        return value_of(node, self.names)

    def slot_values(self, *keys: str) -> Iterator[Slot]:
        """Slots of these names."""
        return (slot for slot in self.slots if slot.key in keys)

    def beside(self, slot: Slot, *keys: str) -> Iterator[Slot]:
        """Slots of these names in the same call or dictionary."""
        return (one for one in self.slots if one.owner == slot.owner and one.key in keys)

    def imports(self, *packages: str) -> bool:
        """Whether anything of one of these packages is imported."""
        every = (one for here in self.names.bindings.values() for found in here.values() for one in found)
        modules = [one.dotted for one in every if one.dotted] + self.names.stars
        return any(module.partition(".")[0] in packages for module in modules)

    @property
    def sealed(self) -> bool:
        """Whether a model is sealed."""
        return any(call.name in {"hermetic.seal", "hermetic.seal.seal"} for call in self.calls)

    @property
    def ignores_labels(self) -> bool:
        """Whether -100, or a name that is known to stand for it, is written anywhere."""
        return any(
            (isinstance(node, ast.UnaryOp) and self.value(node) == IGNORED)
            or (isinstance(node, ast.Name) and "ignore" in node.id.lower())
            or (isinstance(node, ast.Attribute) and "ignore" in node.attr.lower())
            for node in self.names.nodes
        )

    def finding(
        self, code: str, node: ast.AST, key: str, *, what: str, way_out: str, certainty: Certainty, value: str = ""
    ) -> AuditFinding:
        """A finding at a node; its value is the text that stands there, in one line."""
        text = value or " ".join(self.source.text(node).split())
        return AuditFinding(
            code=code,
            certainty=certainty,
            what=what,
            place=self.source.place(node, key),
            value=text if len(text) <= 120 else f"{text[:117]}...",
            way_out=way_out,
        )


def script_of(source: Source) -> Script:
    """Read a source once."""
    names = names_of(source.tree)
    calls = tuple(_call(node, names) for node in names.nodes if isinstance(node, ast.Call))
    by_node = {call.node: call for call in calls}
    slots = tuple(slot for node in names.nodes for slot in _slots(node, names, by_node))
    return Script(source=source, names=names, calls=calls, slots=slots)


def _call(node: ast.Call, names: Names) -> Call:
    return Call(
        name=names.dotted(node.func) or "<>",
        node=node,
        keywords={word.arg: word.value for word in node.keywords if word.arg is not None},
        spread=tuple(word.value for word in node.keywords if word.arg is None),
    )


def _slots(node: ast.AST, names: Names, calls: dict[ast.Call, Call]) -> Iterator[Slot]:
    if isinstance(node, ast.Call):
        yield from _given(node, names, calls[node])
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in SLOTS:
                yield Slot(key=key.value, value=value, node=value, owner=_owner(node, names), how="entry")
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _set(target, node.value, names)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _set(node.target, node.value, names)
    elif isinstance(node, ast.AugAssign):
        yield from _added(node.target, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "extend":
        yield from _added(node.func.value, names)


def _given(node: ast.Call, names: Names, call: Call) -> Iterator[Slot]:
    """Arguments of a call; ``dict(...)`` makes a dictionary."""
    is_dict = call.name == "<dict>"
    owner = _owner(node, names) if is_dict else (node,)
    order = _ORDER.get(call.short, ())
    pairs = [*zip(order, node.args, strict=False), *call.keywords.items()]
    for key, value in pairs:
        if key in SLOTS:
            how = "entry" if is_dict else "call"
            yield Slot(key=key, value=value, node=value, owner=owner, how=how, call=None if is_dict else call)


def _owner(node: ast.AST, names: Names) -> tuple[object, ...]:
    """The variable that a dictionary is assigned to, if it is; later entries are set by that name."""
    parent = names.parents.get(node)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and (name := spot(parent.targets[0])):
        return (names.function_of(node), name)
    return (node,)


def _added(target: ast.expr, names: Names) -> Iterator[Slot]:
    """An entry of a known name that grows: ``row["input_ids"] += document``."""
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value in SLOTS:
        root = spot(target.value)
        if root is not None:
            owner = (names.function_of(target), root)
            yield Slot(key=str(target.slice.value), value=target, node=target, owner=owner, how="grow")


def _set(target: ast.expr, value: ast.expr, names: Names) -> Iterator[Slot]:
    """An entry or a variable of a known name."""
    scope = names.function_of(target)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value in SLOTS:
        root = spot(target.value)
        if root is not None:
            yield Slot(key=str(target.slice.value), value=value, node=value, owner=(scope, root), how="entry")
    elif isinstance(target, ast.Name) and target.id in SLOTS:
        yield Slot(key=target.id, value=value, node=value, owner=(scope,), how="variable")
