"""Labels in a script that reach over a seam or are shifted twice; the rules of these codes are the probe's.

HM401: a token of one document is trained to predict one of another. HM403: labels that somebody shifts again.
"""

import ast
from collections.abc import Iterator

from hermetic.audit.finding import AuditFinding
from hermetic.audit.script.flow import joined, peel
from hermetic.audit.script.packing import Row, builds_transformers_model, has_trainer, isolates, own_models, rows
from hermetic.audit.script.script import Script, Slot


def shifted_twice(script: Script) -> Iterator[AuditFinding]:
    """HM403: labels one token on from the inputs, for a model that shifts them itself."""
    if not (builds_transformers_model(script) or (has_trainer(script) and not own_models(script))):
        return  # a model of somebody else may well take shifted labels
    if any(True for _ in script.named("cross_entropy", "CrossEntropyLoss")):
        return  # a loss of the script's own takes shifted labels
    for slot in script.slot_values("labels"):
        inputs = script.beside(slot, "input_ids")
        if slot.how == "variable" or not any(_is_one_on(slot, one, script) for one in inputs):
            continue
        yield script.finding(
            "HM403",
            slot.node,
            "labels",
            what="labels are shifted by one token already, and models of transformers shift them again: each token is "
            "trained to predict the next but one",
            certainty="certain" if slot.call is not None and builds_transformers_model(script) else "likely",
            way_out="Pass input_ids and labels of the same tokens, unshifted; shifted ones are named shift_labels",
        )


def _is_one_on(labels: Slot, inputs: Slot, script: Script) -> bool:
    """``x[1:]`` beside ``x[:-1]``, or ``roll(x, -1)`` beside ``x``."""
    late, early = peel(labels.value, script.names), peel(inputs.value, script.names)
    if isinstance(late.core, ast.Call) and script.names.dotted(late.core.func) in {"torch.roll", "numpy.roll"}:
        return _is_rolled(late.core, early.core, script)
    cut = [one for one in early.around if _bounds(one, script) == (None, -1)]
    if not cut or _bounds(late.core, script) != (1, None):
        return False
    assert isinstance(late.core, ast.Subscript)  # noqa: S101 - what has bounds
    assert isinstance(cut[0], ast.Subscript)  # noqa: S101 - likewise
    return ast.dump(late.core.value) == ast.dump(cut[0].value)


def _is_rolled(call: ast.Call, inputs: ast.expr, script: Script) -> bool:
    by = [word.value for word in call.keywords if word.arg in {"shifts", "shift"}] + call.args[1:2]
    rolled = peel(call.args[0], script.names).core if call.args else None
    return bool(by) and script.value(by[0]) == -1 and rolled is not None and ast.dump(rolled) == ast.dump(inputs)


def _bounds(node: ast.expr, script: Script) -> tuple[object, object] | None:
    """Where the last axis is cut: ``x[:, 1:]`` is ``(1, None)``."""
    index = node.slice if isinstance(node, ast.Subscript) else None
    last = index.elts[-1] if isinstance(index, ast.Tuple) and index.elts else index
    if not isinstance(last, ast.Slice):
        return None
    return tuple(None if one is None else script.value(one) for one in (last.lower, last.upper))  # type: ignore[return-value]  # two


def label_on_the_seam(script: Script) -> Iterator[AuditFinding]:
    """HM401: labels that are the tokens of a row, with none left out where a document begins."""
    if script.sealed or script.ignores_labels:
        return
    for row in rows(script):
        if not isolates(row, script):
            continue
        beside = script.beside(row.slot, "labels") if row.slot is not None else ()
        given = [slot.node for slot in beside if row.slot is not None and _are_the_tokens(slot, row.slot, script)]
        for node in (*given, *_targets_of_a_row(row, script)):
            yield script.finding(
                "HM401",
                node,
                "labels",
                what="the first token of each document has a label, so the last token of the document before it is "
                "trained to predict it",
                certainty="certain",
                way_out="Put -100 on the first token of every document, as hermetic.collate and "
                "DataCollatorWithFlattening do",
            )


def _targets_of_a_row(row: Row, script: Script) -> Iterator[ast.expr]:
    """``cross_entropy(logits[:-1], ids[1:])`` and ``cross_entropy(logits, ids.roll(-1))`` where the row is made."""
    for call in script.named("cross_entropy", of=("torch",)):
        if script.names.function_of(call.node) is not row.scope or len(call.node.args) < 2:
            continue
        core = peel(call.node.args[1], script.names).core
        whole = core.value if isinstance(core, ast.Subscript) and _bounds(core, script) == (1, None) else None
        if isinstance(core, ast.Call) and script.names.dotted(core.func) == "torch.roll" and core.args:
            whole = core.args[0]
        join = joined(whole, script.names) if whole is not None else None
        if join is not None and join.element is row.join.element:
            yield core


def _are_the_tokens(labels: Slot, inputs: Slot, script: Script) -> bool:
    """The same expression as the inputs, the inputs' own entry, or the documents' tokens laid end to end again."""
    core = peel(labels.value, script.names).core
    if ast.dump(core) == ast.dump(peel(inputs.value, script.names).core):
        return True
    if isinstance(core, ast.Subscript) and isinstance(core.slice, ast.Constant) and core.slice.value == "input_ids":
        return True
    join = joined(labels.value, script.names)
    element = peel(join.element, script.names).core if join is not None else None
    return (
        isinstance(element, ast.Subscript)
        and isinstance(element.slice, ast.Constant)
        and element.slice.value == "input_ids"
    )


CHECKS = (shifted_twice, label_on_the_seam)
