"""Losses in a script that weigh a token by the row or the micro-batch that it happens to be packed into."""

import ast
from collections.abc import Iterator

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.script.flow import expanded, loop_around, mentioned
from hermetic.audit.script.packing import builds_transformers_model, has_trainer, packs
from hermetic.audit.script.script import Script

_APART = frozenset({"split", "split_with_sizes", "tensor_split", "pad_sequence", "segment_reduce"})
"""What takes a row of documents apart."""


def mean_of_row_means(script: Script) -> Iterator[AuditFinding]:
    """HM501: a mean over rows of each row's mean."""
    if not packs(script):
        return
    for call in script.named("mean"):
        if call.node.args or call.node.keywords or not isinstance(call.node.func, ast.Attribute):
            continue
        inner = call.node.func.value
        if (
            _is_mean_of_each_row(inner, script)
            and _is_of_token_losses(inner, script)
            and not _is_taken_apart(inner, script)
        ):
            yield script.finding(
                "HM501",
                call.node,
                "mean",
                what="a mean over rows of each row's mean: a token weighs more the fewer are supervised beside it, and "
                "the loss depends on how documents were packed",
                certainty="certain",
                way_out="Divide the sum of all token losses by their number in the step: hermetic.packed_loss",
            )


def _is_mean_of_each_row(node: ast.expr, script: Script) -> bool:
    """``x.mean(-1)``, or ``(x * mask).sum(-1) / mask.sum(-1)``, also by way of a name."""
    if isinstance(node, ast.Name):
        plain = script.names.definition(node.id, node)
        return plain is not None and not isinstance(plain, ast.Name) and _is_mean_of_each_row(plain, script)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_over_rows(node.left, "sum", script) and _is_over_rows(node.right, "sum", script)
    return _is_over_rows(node, "mean", script)


def _is_over_rows(node: ast.expr, method: str, script: Script) -> bool:
    """A method that is given the last of two axes; a lower bound on it (``clamp``) changes nothing."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in {"clamp", "clamp_min"}:
        return _is_over_rows(node.func.value, method, script)
    axis = [word.value for word in node.keywords if word.arg in {"dim", "axis"}] + node.args[:1]
    return node.func.attr == method and len(axis) == 1 and script.value(axis[0]) in (1, -1)


def _is_taken_apart(node: ast.expr, script: Script) -> bool:
    """Whether the row was split into its documents before, so that its means are those of documents."""
    return any(
        isinstance(one, ast.Call) and (script.names.dotted(one.func) or "").rpartition(".")[2] in _APART
        for one in expanded(node, script.names)
    )


def _is_of_token_losses(node: ast.expr, script: Script) -> bool:
    """Whether a loss of each token goes into it."""
    for one in expanded(node, script.names):
        if isinstance(one, ast.Call):
            given = {word.arg: script.value(word.value) for word in one.keywords}
            name = (script.names.dotted(one.func) or "").rpartition(".")[2]
            if name in {"cross_entropy", "CrossEntropyLoss", "nll_loss"} and given.get("reduction") == "none":
                return True
    return False


def mean_of_micro_batches(script: Script) -> Iterator[AuditFinding]:
    """HM540: means of micro-batches, added up with equal weights."""
    if has_trainer(script) or not packs(script) or not builds_transformers_model(script) or _is_told_the_number(script):
        return
    for node in script.names.nodes:
        if _is_a_share(node, script) and _is_backed(node, script):
            yield script.finding(
                "HM540",
                node,
                "loss",
                what="each micro-batch's mean loss is divided by the number of micro-batches: a token weighs more in a "
                "micro-batch that has fewer, and rows of packed documents differ",
                certainty="likely",
                way_out="Count the supervised tokens of the whole step first and pass num_items_in_batch to the model, "
                "or use hermetic.packed_loss(..., denominator=...)",
            )


def _is_told_the_number(script: Script) -> bool:
    words = {"num_items_in_batch", "denominator"}
    return any(words & set(call.keywords) for call in script.calls) or any(
        isinstance(node, ast.Constant) and node.value in words for node in script.names.nodes
    )


def _is_a_mean_loss(node: ast.expr, script: Script) -> bool:
    """``model(...).loss``, also by way of a name."""
    if isinstance(node, ast.Name):
        values = [one.value for one in script.names.of(node.id, node) if one.kind == "assign" and one.value is not None]
        return any(_word(value) == "loss" for value in values)
    return _word(node) == "loss"


def _word(node: ast.AST) -> object:
    """The last name of an attribute or an entry: ``out.loss`` and ``out["loss"]``."""
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) else None
    return node.attr if isinstance(node, ast.Attribute) else None


def _is_a_share(node: ast.AST, script: Script) -> bool:
    """A mean loss that is divided by the number of micro-batches: ``loss / steps`` or ``loss /= steps``."""
    if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, ast.Div):
        return False
    whole, by = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    steps = script.value(by)
    return _is_a_mean_loss(whole, script) and (_counts_steps(by) or (isinstance(steps, int) and steps > 1))


def _is_backed(node: ast.AST, script: Script) -> bool:
    """Whether it goes into ``backward`` in a loop, itself or by the name that it is given."""
    parent = script.names.parents.get(node)
    assigned = parent.targets[0] if isinstance(parent, ast.Assign) else None
    named = node.target if isinstance(node, ast.AugAssign) else assigned
    name = named.id if isinstance(named, ast.Name) else None
    return any(
        script.names.function_of(call.node) is script.names.function_of(node)
        and loop_around(call.node, script.names) is not None
        and any(one is node or (isinstance(one, ast.Name) and one.id == name) for one in ast.walk(call.node))
        for call in script.named("backward")
    )


def _counts_steps(node: ast.expr) -> bool:
    """A name such as ``accumulation_steps``, or ``len(micro_batches)``."""
    words = {*mentioned(node), *(str(_word(one)) for one in ast.walk(node))}
    return any("accum" in word.lower() or "micro" in word.lower() for word in words)


_LOOP = """\
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

model = AutoModelForCausalLM.from_pretrained("some/model", use_cache=False)
collate = DataCollatorWithFlattening()


def step(micro_batches, optimizer):
"""

RULES = (
    Rule(
        code="HM540",
        name="mean-of-micro-batch-means",
        what="A training loop of your own accumulates mean losses of micro-batches that hold different numbers of "
        "supervised tokens.",
        why="Micro-batches with token losses [1, 3] and [5, 5, 5, 5] give 3.5, not 4.0, the mean over their six "
        "tokens. Flattened batches differ in length as much as their documents do.",
        bad=Example(
            door="script",
            text=f"""\
{_LOOP}    for documents in micro_batches:
        loss = model(**collate(documents)).loss / len(micro_batches)
        loss.backward()
    optimizer.step()
""",
        ),
        good=Example(
            door="script",
            text=f"""\
{_LOOP}    batches = [collate(documents) for documents in micro_batches]
    supervised = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    for batch in batches:
        loss = model(**batch, num_items_in_batch=supervised).loss
        loss.backward()
    optimizer.step()
""",
        ),
        fix="Count the supervised tokens of all micro-batches, and divide each one's summed loss by that.",
        sources=("huggingface/transformers#35438", "huggingface/transformers#37766", "NVIDIA/Megatron-LM#7207"),
        check=mean_of_micro_batches,
    ),
)

CHECKS = (mean_of_row_means,)
