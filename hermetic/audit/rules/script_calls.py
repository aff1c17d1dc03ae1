"""What the probe finds beside a leak, seen in the text: masks of ones, document numbers in a mask, a cache.

The rules of these codes (HM101 to HM103) are those of the probe; here are the checks that find the same in a script.
"""

import ast
from collections.abc import Iterator
from typing import Any

from hermetic.audit.finding import AuditFinding
from hermetic.audit.script.flow import expanded, joined, mentioned, peel
from hermetic.audit.script.names import spot
from hermetic.audit.script.packing import (
    builds_transformers_model,
    flattening,
    has_trainer,
    may_be_flash,
    own_models,
    restarts,
    rows,
)
from hermetic.audit.script.script import Call, Script, Slot
from hermetic.audit.setup import UNKNOWN

_ONES = frozenset({"torch.ones", "torch.ones_like", "numpy.ones", "numpy.ones_like"})
_MASK = "attention_mask"


def mask_of_ones(script: Script) -> Iterator[AuditFinding]:
    """HM101: an attention mask of ones over packed rows."""
    if not _masks_matter(script) or may_be_flash(script):
        return
    for slot in script.slot_values(_MASK):
        if slot.how == "variable" or not _is_ones(slot.value, script) or not _over_packed(slot, script):
            continue
        yield script.finding(
            "HM101",
            slot.node,
            _MASK,
            what="an attention mask of ones over a row of documents: given a mask, transformers does not look for "
            "packed documents, and each document sees all those before it",
            certainty="certain" if builds_transformers_model(script) else "likely",
            way_out="Leave attention_mask out of the batch, or call hermetic.seal(model)",
        )


def numbers_in_mask(script: Script) -> Iterator[AuditFinding]:
    """HM103: the number of each token's document as its attention mask."""
    if not _masks_matter(script):
        return
    for slot in script.slot_values(_MASK):
        if slot.how != "variable" and holds_numbers(slot, script) and _over_packed(slot, script):
            yield script.finding(
                "HM103",
                slot.node,
                _MASK,
                what="document numbers are given as the attention mask; transformers turns them into booleans, and "
                "the row is one document",
                certainty="certain" if builds_transformers_model(script) else "likely",
                way_out="Pass position_ids that restart and no mask, a 4-D mask, or call hermetic.seal(model)",
            )


def holds_numbers(slot: Slot, script: Script) -> bool:
    """Whether a value is the number of each token's document: ``[i] * len(document)`` of each, end to end."""
    join = joined(slot.value, script.names)
    if join is None:
        return False
    core = peel(join.element, script.names).core
    number = core.left if isinstance(core, ast.BinOp) and isinstance(core.op, ast.Mult) else None
    counted = isinstance(join.loop.iter, ast.Call) and script.names.dotted(join.loop.iter.func) == "<enumerate>"
    return counted and isinstance(number, ast.List) and bool(mentioned(number) & mentioned(join.loop.target))


def _masks_matter(script: Script) -> bool:
    """Whether a transformers model may get the mask, and nobody takes it out again."""
    own = bool(own_models(script)) and not builds_transformers_model(script)
    return not (script.sealed or own or _is_taken_out(script) or _is_never_passed(script))


def _is_never_passed(script: Script) -> bool:
    """Whether every call of a model names what it is given, and no mask is among it."""
    named = [call for call in script.calls if "input_ids" in call.keywords and call.name != "<dict>"]
    whole = has_trainer(script) or any(call.spread for call in script.calls)
    return bool(named) and not whole and not any(_MASK in call.keywords for call in named)


def _is_taken_out(script: Script) -> bool:
    pops = (call for call in script.named("pop") if call.node.args and script.value(call.node.args[0]) == _MASK)
    deleted = (
        target for node in script.names.nodes if isinstance(node, ast.Delete) for target in node.targets
        if (spot(target) or "").endswith(f"[{_MASK!r}]")
    )  # fmt: skip
    return any(True for _ in pops) or any(True for _ in deleted) or _is_filtered_out(script)


def _is_filtered_out(script: Script) -> bool:
    """``{key: ... if key != "attention_mask"}``, also with ``not in``."""
    tests = (test for node in script.names.nodes if isinstance(node, ast.comprehension) for test in node.ifs)
    return any(
        isinstance(one, ast.Compare)
        and isinstance(one.ops[0], (ast.NotEq, ast.NotIn))
        and any(isinstance(inner, ast.Constant) and inner.value == _MASK for inner in ast.walk(one))
        for test in tests
        for one in ast.walk(test)
    )


def _is_ones(node: ast.expr, script: Script) -> bool:
    core = peel(node, script.names).core
    if isinstance(core, ast.Call) and script.names.dotted(core.func) in _ONES:
        return True
    if isinstance(core, ast.Call) and isinstance(core.func, ast.Attribute) and core.func.attr == "new_ones":
        return True
    if isinstance(core, ast.BinOp) and isinstance(core.op, ast.Mult):
        return bool(script.value(core.left) == [1])
    join = joined(node, script.names)
    return join is not None and _is_ones_or_a_documents(join.element, script)


def _is_ones_or_a_documents(element: ast.expr, script: Script) -> bool:
    core = peel(element, script.names).core
    key = core.slice.value if isinstance(core, ast.Subscript) and isinstance(core.slice, ast.Constant) else None
    return key == _MASK or (
        not isinstance(core, ast.Name) and joined(core, script.names) is None and _is_ones(core, script)
    )


def _over_packed(slot: Slot, script: Script) -> bool:
    """Whether the mask goes with a row of documents."""
    if any(restarts(one.value, script.names) for one in script.beside(slot, "position_ids")):
        return True
    own = {row.slot.owner for row in rows(script) if row.slot is not None}
    return slot.owner in own or _of_flattening(slot, script)


def _of_flattening(slot: Slot, script: Script) -> bool:
    """Whether the batch that the mask is put into is what a flattening collator gave."""
    makers = {call.node for call in flattening(script)}
    if not makers or (slot.call is not None and slot.call.short == "generate"):
        return False
    holders = [one for one in slot.owner if isinstance(one, ast.AST)]
    parents = [script.names.parents.get(slot.node), *holders]
    spread = [value for one in parents for value in _spread(one)]
    root = slot.owner[1] if len(slot.owner) == 2 else None
    named = _meanings(str(root), slot.node, script) if root else []
    return any(_comes_of(value, makers, script) for value in (*spread, *named))


def _spread(node: ast.AST | None) -> list[ast.expr]:
    if isinstance(node, ast.Dict):
        return [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
    return [word.value for word in node.keywords if word.arg is None] if isinstance(node, ast.Call) else []


def _meanings(name: str, at: ast.AST, script: Script) -> list[ast.expr]:
    """What a name is assigned or loops over."""
    return [one.value for one in script.names.of(name, at) if one.value is not None and one.kind in {"assign", "loop"}]


def _comes_of(value: ast.expr, makers: set[ast.Call], script: Script) -> bool:
    """Whether an expression calls one of these, or what they made, or loops over what was given one."""
    for node in expanded(value, script.names):
        if node in makers:
            return True
        if isinstance(node, ast.Name):
            found = script.names.of(node.id, node)
            loops = [one.value for one in found if one.kind == "loop" and one.value is not None]
            if any(inner in makers for loop in loops for inner in expanded(loop, script.names)):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_super(node.func.value):
            return _inherits(node, script)
    return False


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _inherits(node: ast.AST, script: Script) -> bool:
    classes = (one for one in script.names.above(node) if isinstance(one, ast.ClassDef))
    bases = (script.names.dotted(base) or "" for one in classes for base in one.bases)
    return any(base.endswith("DataCollatorWithFlattening") for base in bases)


def cache_left_on(script: Script) -> Iterator[AuditFinding]:
    """HM102: packed rows, told by positions, in a loop of one's own whose model keeps a cache."""
    if script.sealed or has_trainer(script) or may_be_flash(script) or not _trains_by_positions(script):
        return
    settings = list(_settings_of_cache(script))
    if any(value is False or value is UNKNOWN for value in settings):
        return
    for call in _models(script):
        yield script.finding(
            "HM102",
            call.node,
            f"{call.short}(use_cache)",
            what="your loop leaves the model's cache on, which it is by default; with a cache, transformers does not "
            "look for packed documents, and each document sees all those before it",
            certainty="certain",
            way_out="Pass use_cache=False with each call or set model.config.use_cache = False, or call "
            "hermetic.seal(model)",
        )


def _trains_by_positions(script: Script) -> bool:
    told = any(True for _ in script.named("DataCollatorWithFlattening")) or any(
        restarts(slot.value, script.names) for slot in script.slot_values("position_ids")
    )
    return _trains(script) and told and not _is_given_a_mask(script)


def _trains(script: Script) -> bool:
    """A loop that goes backward, or the step of a Lightning module around a model of transformers."""
    if own_models(script, wrappers=False):
        return False
    steps = (node.name for node in script.names.nodes if isinstance(node, ast.FunctionDef))
    return any(call.short == "backward" for call in script.calls) or "training_step" in steps


def _is_given_a_mask(script: Script) -> bool:
    """A mask that may hold the documents: any but one of ones."""
    masks = (slot for slot in script.slot_values(_MASK) if slot.how != "variable")
    return any(not _is_ones(slot.value, script) for slot in masks)


def _settings_of_cache(script: Script) -> Iterator[Any]:
    """Every value that ``use_cache`` is given anywhere."""
    for call in script.calls:
        if "use_cache" in call.keywords:
            yield script.value(call.keywords["use_cache"])
        if call.name == "<setattr>" and len(call.node.args) == 3 and script.value(call.node.args[1]) == "use_cache":
            yield script.value(call.node.args[2])
    for node in script.names.nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "use_cache":
                    yield script.value(value)
        elif isinstance(node, ast.Assign) and any(
            (spot(target) or "").endswith("use_cache") for target in node.targets
        ):
            yield script.value(node.value)


def _models(script: Script) -> Iterator[Call]:
    """Where causal language models of transformers are made and their settings can be read."""
    for call in script.calls:
        made = call.short in {"from_pretrained", "from_config"} and "ForCausalLM" in call.name
        if call.name.startswith("transformers") and (made or call.short.endswith("ForCausalLM")) and not call.spread:
            yield call


CHECKS = (mask_of_ones, numbers_in_mask, cache_left_on)
