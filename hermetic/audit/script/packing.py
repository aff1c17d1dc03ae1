"""Whether and how a script packs: the evidence that the rules ask for before they say anything.

Evidence is one of: token ids of several documents laid end to end (a *row*), a collator that flattens, a packer by
name. Rows that are meant to be isolated have positions that restart, or boundaries, beside them.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hermetic.audit.script.flow import Join, joined, loop_names, mentioned, over_documents, over_token_ids, peel
from hermetic.audit.script.names import Names, Scope
from hermetic.audit.script.script import BOUNDARIES, Call, Script, Slot

FLATTENING: Final = ("DataCollatorWithFlattening", "pack_dataset", "PackedDataset", "pack_sources")
_OF_HERMETIC: Final = (
    *("PackedSFTTrainer", "PackedDPOTrainer", "SealedTrainer", "PackedCollator", "row_loader"),
    *("PackedDataset", "pack_sources", "plan_rows", "plan_rows_by_domain", "collate", "collate_rows"),
)
"""What of hermetic makes packed rows, or takes them."""

_RANGES: Final = frozenset({"torch.arange", "numpy.arange", "<range>"})
_COUNTS: Final = frozenset({"Counter", "len", "set", "max", "min", "sum", "unique", "bincount"})
"""Functions that tokens are given to for their statistics."""

_FLASH: Final = ("flash_attention", "flash_attn", "kernels-community/flash", "kernels-community/vllm-flash")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Token ids of several documents, laid end to end."""

    join: Join
    scope: Scope
    """The function that makes it."""
    slot: Slot | None = None


def rows(script: Script) -> tuple[Row, ...]:
    """All rows that a script makes of documents."""
    if "rows" not in script.kept:
        script.kept["rows"] = _rows(script) if _speaks_of_tokens(script) else ()
    kept: tuple[Row, ...] = script.kept["rows"]
    return kept


def _speaks_of_tokens(script: Script) -> bool:
    """Whether token ids are called by their name anywhere, or a tokenizer is."""
    return any(
        (isinstance(node, ast.Constant) and node.value == "input_ids")
        or (isinstance(node, (ast.Name, ast.keyword)) and getattr(node, "id", getattr(node, "arg", "")) == "input_ids")
        or (isinstance(node, ast.Attribute) and node.attr in {"input_ids", "encode"})
        for node in script.names.nodes
    )


def _rows(script: Script) -> tuple[Row, ...]:
    found: dict[ast.expr, Row] = {}
    for slot in script.slot_values("input_ids"):
        join = joined(slot.value, script.names)
        if join is not None and over_documents(join, script.names) and _is_row(join, slot.value, script):
            scope = script.names.function_of(slot.node)
            found[join.element] = Row(join=join, scope=scope, slot=slot)
    for join in _loose(script):
        scope = script.names.function_of(join.node)
        if join.element not in found and over_documents(join, script.names) and _is_row(join, join.node, script):
            found[join.element] = Row(join=join, scope=scope)
    return tuple(found.values())


def _loose(script: Script) -> Iterator[Join]:
    """Token ids that are laid end to end and not (yet) called ``input_ids``."""
    for node in script.names.nodes:
        if isinstance(node, (ast.Call, ast.ListComp)):
            join = joined(node, script.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            join = joined(node, script.names) if script.names.definition(node.id, node) is None else None
        else:
            continue
        if join is not None and _is_token_ids(join, script.names) and not _is_counted(node, script):
            yield join


def _is_counted(node: ast.expr, script: Script) -> bool:
    """Whether tokens are looked at and no row is made of them."""
    parent = script.names.parents.get(node)
    name = script.names.dotted(parent.func) if isinstance(parent, ast.Call) else None
    return (name or "").strip("<>").rpartition(".")[2] in _COUNTS


def _is_token_ids(join: Join, names: Names) -> bool:
    """Whether the elements are called token ids, or come out of a tokenizer."""
    core = peel(join.element, names).core
    core = core.left if isinstance(core, ast.BinOp) else core
    core = peel(core, names).core
    if isinstance(core, ast.Name):
        return core.id in loop_names(join.loop) and over_token_ids(join.loop, names)
    if isinstance(core, ast.Call):
        return isinstance(core.func, ast.Attribute) and core.func.attr == "encode"
    key = core.slice.value if isinstance(core, ast.Subscript) and isinstance(core.slice, ast.Constant) else None
    return key == "input_ids" or (isinstance(core, ast.Attribute) and core.attr == "input_ids")


def _is_row(join: Join, value: ast.expr, script: Script) -> bool:
    """A list of tokens is a row; of tensors something else has to say so, for they may be rows that were stacked."""
    if join.how == "list":
        return True
    if isinstance(join.node, ast.Call) and script.value(_axis(join.node)) in (1, -1):
        return True
    if any(_adds_an_axis(one, script) for one in peel(value, script.names).around):
        return True
    scope = script.names.function_of(join.node)
    return bool(boundary_names(scope, script.names)) or any(
        restarts(slot.value, script.names) and script.names.function_of(slot.node) is scope
        for slot in script.slot_values("position_ids")
    )


def _axis(call: ast.Call) -> ast.expr | None:
    given = [word.value for word in call.keywords if word.arg in {"dim", "axis"}]
    return given[0] if given else (call.args[1] if len(call.args) > 1 else None)


def _adds_an_axis(node: ast.expr, script: Script) -> bool:
    if isinstance(node, (ast.List, ast.Tuple)):
        return True
    if isinstance(node, ast.Subscript):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        return isinstance(first, ast.Constant) and first.value is None
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze"
    return method and isinstance(node, ast.Call) and bool(node.args) and script.value(node.args[0]) == 0


def boundary_names(scope: Scope, names: Names) -> set[str]:
    """Names of boundaries that a function reads, is given or makes."""
    found = set(names.bindings.get(scope, {})) & BOUNDARIES
    return found | {node.id for node in names.inside(scope) if isinstance(node, ast.Name) and node.id in BOUNDARIES}


def is_range(node: ast.expr, names: Names) -> bool:
    """``range(...)`` and ``arange(...)``."""
    return isinstance(node, ast.Call) and names.dotted(node.func) in _RANGES


def restarts(node: ast.expr, names: Names) -> bool:
    """Whether positions begin anew with each document: a range for each, laid end to end."""
    join = joined(node, names)
    if join is None:
        return False
    core = peel(join.element, names).core
    return is_range(core, names) and bool(mentioned(core) & mentioned(join.loop.target))


def isolates(row: Row, script: Script) -> bool:
    """Whether the maker of a row means to keep its documents apart: positions that restart, or boundaries."""
    if boundary_names(row.scope, script.names):
        return True
    keys = ("position_ids", *BOUNDARIES)
    return any(
        script.names.function_of(slot.node) is row.scope
        and (slot.key != "position_ids" or restarts(slot.value, script.names))
        for slot in script.slot_values(*keys)
    )


def flattening(script: Script) -> tuple[Call, ...]:
    """Calls of collators and packers that lay documents end to end."""
    padding_free = (
        call
        for call in script.named("DataCollatorForLanguageModeling", of=("trl",))
        if script.value(call.keywords.get("padding_free")) is True
    )
    return (*script.named(*FLATTENING), *padding_free)


def hermetic_rows(script: Script) -> tuple[tuple[str, int], ...]:
    """What of hermetic's own packs in a script, by name and line: its calls, and classes that are made from its own."""
    found = {call.short: call.node.lineno for call in script.named(*_OF_HERMETIC, of=("hermetic",))}
    for node in script.names.nodes:
        if isinstance(node, ast.ClassDef):
            bases = [script.names.dotted(base) or "" for base in node.bases]
            own = (one.rpartition(".")[2] for one in bases if one.startswith("hermetic"))
            found |= {short: node.lineno for short in own if short in _OF_HERMETIC}
    return tuple(sorted(found.items(), key=lambda one: one[1]))


def packs(script: Script) -> bool:
    """Whether anything shows that rows hold several documents; tokens alone may be laid end to end to be looked at."""
    told = any(row.slot is not None or isolates(row, script) for row in rows(script))
    return bool(flattening(script)) or told or packs_by_trl(script)


def packs_by_trl(script: Script) -> bool:
    """``packing=True`` or ``padding_free=True`` of a TRL configuration."""
    configurations = (call for call in script.calls if call.name.startswith("trl") and call.short.endswith("Config"))
    return any(
        script.value(call.keywords.get(key)) is True for call in configurations for key in ("packing", "padding_free")
    )


def implementations(script: Script) -> set[object]:
    """Every ``attn_implementation`` that is given; ``UNKNOWN`` among them where one cannot be read."""
    keys = {"attn_implementation", "_attn_implementation"}
    given = [word.value for call in script.calls for word in call.node.keywords if word.arg in keys]
    setters = [call.node.args[0] for call in script.named("set_attn_implementation") if call.node.args]
    spots = (
        one
        for here in script.names.bindings.values()
        for name, found in here.items()
        for one in found
        if name.endswith("._attn_implementation")
    )
    return {_hashable(script.value(value)) for value in (*given, *setters, *(one.value for one in spots))}


def _hashable(value: object) -> object:
    return value if not isinstance(value, (dict, list)) else str(value)


def may_be_flash(script: Script) -> bool:
    """Whether attention is, or might be, one that goes by lengths instead of masks."""
    return any(not isinstance(one, str) or one.startswith(_FLASH) for one in implementations(script))


def own_models(script: Script, *, wrappers: bool = True) -> set[str]:
    """Names of torch modules that the script defines, with or without Lightning's, which wrap another."""
    known = {"Module", "PreTrainedModel"} | ({"LightningModule"} if wrappers else set())
    found = set()
    for node in script.names.nodes:
        if isinstance(node, ast.ClassDef):
            bases = {(script.names.dotted(base) or "").rpartition(".")[2] for base in node.bases}
            found |= {node.name} if bases & known else set()
    return found


def builds_transformers_model(script: Script) -> bool:
    """Whether a causal language model of transformers is made: from a checkpoint, a configuration or its class."""
    return any(
        call.name.startswith("transformers")
        and (
            (call.short in {"from_pretrained", "from_config"} and "Model" in call.name)
            or call.short.endswith("ForCausalLM")
        )
        for call in script.calls
    )


def has_trainer(script: Script) -> bool:
    """Whether a Trainer of transformers or TRL, or a class of this file that is one, trains."""
    defined = {
        node.name
        for node in script.names.nodes
        if isinstance(node, ast.ClassDef)
        and any((script.names.dotted(base) or "").endswith("Trainer") for base in node.bases)
    }
    return any(
        (call.short.endswith("Trainer") and call.name.startswith(("transformers", "trl", "hermetic", "unsloth")))
        or call.name.strip("<>") in defined
        for call in script.calls
    )


def registered(script: Script) -> set[str]:
    """Names of attention functions that the script registers itself, which HM143 is about."""
    calls = (call for call in script.named("register", of=("transformers",)) if call.node.args)
    names = (script.value(call.node.args[0]) for call in calls if "mask" not in call.name.lower())
    return {name for name in names if isinstance(name, str)}
