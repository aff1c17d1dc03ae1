"""Positions and cumulative lengths in a script: not restarting, not from 0, of a wrong type or size."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.script.flow import expanded, joined, over_documents, peel
from hermetic.audit.script.packing import is_range, rows
from hermetic.audit.script.script import EDGES, FLASH_VARLEN, LONGEST, SLOTS, VARLEN, Script, Slot

_LENGTHS: Final = re.compile(r"^(len|lens|lengths?|seq_?lens?|seq_?lengths?|doc_?lens?|document_lengths|sizes)$")
_SUMS: Final = frozenset({"torch.cumsum", "numpy.cumsum", "itertools.accumulate"})
_SMALLER: Final = {"min": "the shortest", "amin": "the shortest", "mean": "the mean", "median": "the median"}
_INT32: Final = frozenset({"torch.int32", "torch.int", "numpy.int32"})


def running_positions(script: Script) -> Iterator[AuditFinding]:
    """HM201: one range over the whole row as its positions."""
    for slot in script.slot_values("position_ids"):
        core = peel(slot.value, script.names).core
        if not is_range(core, script.names) or not isinstance(core, ast.Call) or not _is_of_a_row(slot, core, script):
            continue
        yield script.finding(
            "HM201",
            core,
            "position_ids",
            what="positions count on through a row of several documents; each has to begin at 0",
            certainty="certain",
            way_out="Count anew in each document: hermetic.collate, or Boundaries.position_ids",
        )


def _is_of_a_row(slot: Slot, core: ast.Call, script: Script) -> bool:
    """Whether the range is as long as a row of documents, and nothing is done to it before it is passed."""
    if slot.how == "variable" or not core.args:
        return False  # what is passed has a slot of its own
    if any(isinstance(one, (ast.ListComp, ast.GeneratorExp, ast.For)) for one in script.names.above(core)):
        return False
    length = list(expanded(core.args[-1], script.names))
    edges = {one.id for one in length if isinstance(one, ast.Name)} & EDGES
    rowed = any(isinstance(one, ast.expr) and _is_a_row(one, slot, script) for one in length)
    return rowed or bool(edges and any(isinstance(one, ast.Subscript) for one in length))


def _is_a_row(node: ast.expr, slot: Slot, script: Script) -> bool:
    """Whether an expression is the row of documents whose positions these are."""
    inputs = [peel(one.value, script.names, through_names=False).core for one in script.beside(slot, "input_ids")]
    same = any(isinstance(one, ast.Name) and isinstance(node, ast.Name) and one.id == node.id for one in inputs)
    packed = any(True for _ in script.beside(slot, *EDGES)) or any(
        row.scope is script.names.function_of(slot.node) for row in rows(script)
    )
    join = joined(node, script.names) if isinstance(node, (ast.Name, ast.Call, ast.ListComp)) else None
    return packed and (same or (join is not None and over_documents(join, script.names)))


def no_leading_zero(script: Script) -> Iterator[AuditFinding]:
    """HM240: cumulative lengths that begin with the end of the first document."""
    seen: set[ast.AST] = set()
    for slot in _passed(script, EDGES):
        core = peel(slot.value, script.names).core
        if core in seen or not _is_sum_of_lengths(core, script) or _is_for_a_helper(slot, script):
            continue
        seen.add(core)
        yield script.finding(
            "HM240",
            core,
            slot.key,
            what="cumulative lengths without their leading 0: the first document belongs to none, and a kernel leaves "
            "its output uninitialised",
            certainty="certain",
            way_out="Put a 0 in front: torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), or take "
            "hermetic.Boundaries.from_lengths(lengths).cu_seqlens",
        )


def _passed(script: Script, keys: frozenset[str]) -> Iterator[Slot]:
    """What is given to a call or put into a batch; a variable may still be mended."""
    return (slot for slot in script.slot_values(*keys) if slot.how != "variable")


def _is_for_a_helper(slot: Slot, script: Script) -> bool:
    """Whether it is given to a function of this file that calls no kernel: what it expects is its own affair."""
    function = slot.call.node.func if slot.call is not None else None
    found = script.names.of(function.id, function) if isinstance(function, ast.Name) else []
    defined = [one.node for one in found if one.kind == "define"]
    return bool(defined) and not any(
        above in defined for call in script.named(*VARLEN) for above in script.names.above(call.node)
    )


def _is_sum_of_lengths(core: ast.expr, script: Script) -> bool:
    summed = _summed(core, script)
    if summed is None:
        return False
    inner = peel(summed, script.names).core
    if isinstance(inner, (ast.ListComp, ast.GeneratorExp)):
        return _is_len(inner.elt, script) and len(inner.generators) == 1
    if isinstance(inner, ast.Name):
        kinds = {one.kind for one in script.names.of(inner.id, inner)}
        return bool(_LENGTHS.match(inner.id)) and kinds <= {"parameter", "loop"}
    if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant):
        return bool(_LENGTHS.match(str(inner.slice.value)))
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in {"sum", "diff"}


def _is_len(node: ast.expr, script: Script) -> bool:
    return isinstance(node, ast.Call) and script.names.dotted(node.func) == "<len>"


def _summed(core: ast.expr, script: Script) -> ast.expr | None:
    """What a cumulative sum is over: of ``torch.cumsum(x, 0)``, ``x.cumsum(0)`` and ``accumulate(x)``."""
    if not isinstance(core, ast.Call) or any(word.arg in {"initial", "prepend"} for word in core.keywords):
        return None
    if script.names.dotted(core.func) in _SUMS:
        return core.args[0] if core.args else None
    if isinstance(core.func, ast.Attribute) and core.func.attr == "cumsum":
        return core.func.value
    return None


def wide_edges(script: Script) -> Iterator[AuditFinding]:
    """HM241: cumulative lengths of 64 bits for a kernel that takes 32."""
    seen: set[ast.AST] = set()
    for slot in _passed(script, EDGES):
        call = slot.call
        if call is None or call.short not in FLASH_VARLEN or _width(slot.value, script) != "int64":
            continue
        core = peel(slot.value, script.names).core
        if core in seen:
            continue
        seen.add(core)
        yield script.finding(
            "HM241",
            core,
            slot.key,
            what="cumulative lengths of int64: a cumulative sum of integers is int64 unless it is given a dtype, and "
            "flash attention takes int32 alone",
            certainty="certain",
            way_out="Give the sum dtype=torch.int32, or take hermetic.Boundaries.from_lengths(lengths).cu_seqlens",
        )


def _width(node: ast.expr, script: Script) -> str | None:
    """``int32`` or ``int64`` where the text says so."""
    peeled = peel(node, script.names)
    for one in peeled.around:
        if isinstance(one, ast.Call) and (said := _said(one, script)) is not None:
            return said
    core = peeled.core
    if not isinstance(core, ast.Call):
        return None
    if (said := _said(core, script)) is not None:
        return said
    name = script.names.dotted(core.func) or ""
    if name in {"torch.cumsum", "torch.nn.functional.pad"} and core.args:
        return "int64" if name == "torch.cumsum" else _width(core.args[0], script)
    from_torch = script.imports("torch") and not script.imports("numpy")
    return "int64" if isinstance(core.func, ast.Attribute) and core.func.attr == "cumsum" and from_torch else None


def _said(call: ast.Call, script: Script) -> str | None:
    """What a call says of its type: ``dtype=``, ``.to(torch.int32)``, ``.int()``; ``unknown`` where it may say any."""
    given = [word.value for word in call.keywords if word.arg == "dtype"]
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in {"int", "long"}:
        return "int32" if method == "int" else "int64"
    if method in {"to", "type", "astype"}:
        given += call.args
    values = [script.value(one) for one in given]
    if any(value in _INT32 for value in values if isinstance(value, str)):
        return "int32"
    typed = [value for value in values if not isinstance(value, str) or value.startswith(("torch.", "numpy."))]
    return "unknown" if typed and not _are_devices(given) else None


def _are_devices(given: list[ast.expr]) -> bool:
    return all("device" in {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(value)} for value in given)


def short_longest(script: Script) -> Iterator[AuditFinding]:
    """HM242: a longest document that is shorter than the longest document."""
    seen: set[ast.AST] = set()
    for slot in _passed(script, LONGEST):
        core = _number(peel(slot.value, script.names).core, script)
        how = _too_short(core, script)
        if core in seen or how is None:
            continue
        seen.add(core)
        yield script.finding(
            "HM242",
            core,
            slot.key,
            what=f"the length given as the longest document's is {how}: the rest of a longer one is not computed",
            certainty="certain",
            way_out="Take the largest: int(lengths.max()), or hermetic.Boundaries.from_lengths(lengths).max_seqlen",
        )


def _number(node: ast.expr, script: Script) -> ast.expr:
    """What ``int(x)``, ``x.item()`` and ``x.float()`` are made of."""
    for _ in range(10):
        if not isinstance(node, ast.Call):
            break
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"item", "float"}:
            node = peel(node.func.value, script.names).core
        elif script.names.dotted(node.func) in {"<int>", "math.ceil"} and node.args:
            node = peel(node.args[0], script.names).core
        else:
            break
    return node


def _too_short(core: ast.expr, script: Script) -> str | None:
    """What is taken in place of the longest, as words."""
    if isinstance(core, ast.Call):
        function = core.func.attr if isinstance(core.func, ast.Attribute) else (script.names.dotted(core.func) or "")
        other = _SMALLER.get(function.strip("<>"))
        of = core.func.value if isinstance(core.func, ast.Attribute) else (core.args[0] if core.args else None)
        return other if of is not None and len(core.args) < 2 and _are_lengths(of, script) else None
    at_an_end = isinstance(core, ast.Subscript) and script.value(core.slice) in (0, -1)
    if isinstance(core, ast.Subscript) and at_an_end and _are_lengths(core.value, script) and not _sorts(core, script):
        return f"that of the {'first' if script.value(core.slice) == 0 else 'last'}"
    return None


def _sorts(node: ast.AST, script: Script) -> bool:
    """Whether the function around a node sorts, so that the longest may well stand first or last."""
    scope = script.names.function_of(node)
    return any(script.names.function_of(call.node) is scope for call in script.named("sort", "<sorted>", "argsort"))


def _are_lengths(node: ast.expr, script: Script) -> bool:
    core = _number(peel(node, script.names, through_names=False).core, script)
    if isinstance(core, ast.Name):
        return bool(_LENGTHS.match(core.id))
    made = core.elt if isinstance(core, (ast.ListComp, ast.GeneratorExp)) else core
    return _is_len(made, script) or (
        isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "diff"
    )


def notes(script: Script) -> Iterator[str]:
    """On what is right, and could be better."""
    for slot in _passed(script, LONGEST):
        core = _number(peel(slot.value, script.names).core, script)
        if isinstance(core, ast.Subscript) and isinstance(core.value, ast.Attribute) and core.value.attr == "shape":
            place = script.source.place(slot.node, slot.key)
            yield f"{place} is the length of the row: right, and slower than that of its longest document."


def edges_without_offset(script: Script) -> Iterator[AuditFinding]:
    """HM243: cumulative lengths of two batches, one after the other as they are."""
    for slot in script.slot_values(*EDGES):
        core = peel(slot.value, script.names, through_names=slot.how != "variable").core
        name = peel(slot.value, script.names, through_names=False).core
        if slot.how != "variable" and isinstance(name, ast.Name) and name.id in SLOTS:
            continue  # such a variable has a slot of its own where it is assigned
        parts = _laid_end_to_end(core, script)
        if len(parts) < 2 or not all(_are_edges(part) for part in parts):
            continue
        yield script.finding(
            "HM243",
            core,
            slot.key,
            what="cumulative lengths of several batches are laid end to end as they are: each begins at 0 again, so "
            "they fall, and name the tokens of the first batch only",
            certainty="certain",
            way_out="Add the tokens before: torch.cat([a, b[1:] + a[-1]]), or make them of all lengths at once",
        )


def _laid_end_to_end(core: ast.expr, script: Script) -> list[ast.expr]:
    name = script.names.dotted(core.func) if isinstance(core, ast.Call) else None
    if name not in {"torch.cat", "torch.concat", "torch.concatenate", "torch.hstack", "numpy.concatenate"}:
        return []
    assert isinstance(core, ast.Call)  # noqa: S101 - only calls have a name here
    given = core.args[0] if core.args else None
    return list(given.elts) if isinstance(given, (ast.List, ast.Tuple)) else []


def _are_edges(part: ast.expr) -> bool:
    """A name or entry that says so itself: ``chosen["cu_seqlens"]``, ``cu_seqlens_a``."""
    word = part.slice.value if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) else None
    word = word or getattr(part, "id", getattr(part, "attr", None))
    return isinstance(word, str) and bool(re.search(r"cu_?seq_?len", word))


_VARLEN = """\
import torch
from flash_attn import flash_attn_varlen_func
from torch.nn.functional import pad


def attend(q, k, v, lengths):
"""


def _varlen(edges: str, longest: str = "int(lengths.max())") -> Example:
    return Example(
        door="script",
        text=f"{_VARLEN}    edges = {edges}\n    longest = {longest}\n"
        "    return flash_attn_varlen_func(q, k, v, edges, edges, longest, longest, causal=True)\n",
    )


_SOUND = _varlen("pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))")

RULES = (
    Rule(
        code="HM240",
        name="sum-of-lengths-without-zero",
        what="Cumulative lengths are passed to a kernel or a model without their leading 0.",
        why="For documents of 3 and 5 tokens, [3, 8] means one document that begins at token 3. The first three tokens "
        "belong to none, and a kernel leaves their output uninitialised, which has shown up as NaN in gradients.",
        bad=_varlen("lengths.cumsum(0, dtype=torch.int32)"),
        good=_SOUND,
        fix="Put a 0 in front of the sums.",
        sources=("pytorch/pytorch#186786", "Dao-AILab/flash-attention#2324"),
        check=no_leading_zero,
    ),
    Rule(
        code="HM241",
        name="edges-of-64-bits",
        what="Cumulative lengths of type int64 are given to flash attention.",
        why="The kernel takes int32 and stops the run with an error. In PyTorch the cumulative sum of int32 numbers is "
        "int64 unless it is given a dtype, so int32 lengths are not enough.",
        bad=_varlen("pad(lengths.cumsum(0), (1, 0))"),
        good=_SOUND,
        fix="Give the sum dtype=torch.int32.",
        sources=("QwenLM/Qwen3-VL#567",),
        check=wide_edges,
    ),
    Rule(
        code="HM242",
        name="longest-document-too-short",
        what="The length that is passed as the longest document's is that of a shorter one.",
        why="Kernels launch blocks for that many tokens of each document and no more, so the rest of a longer document "
        "keeps uninitialised output. A number that is too large only costs time.",
        bad=_varlen("pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))", "int(lengths[0])"),
        good=_SOUND,
        fix="Take the maximum of the lengths that the edges are made of.",
        sources=("Dao-AILab/flash-attention#1773", "Dao-AILab/flash-attention#2524"),
        check=short_longest,
    ),
    Rule(
        code="HM243",
        name="edges-joined-without-offset",
        what="Cumulative lengths of two batches, such as chosen and rejected answers, are concatenated as they are.",
        why="[0, 50, 100] and [0, 50, 100] must become [0, 50, 100, 150, 200]. Joined as they are, they fall back to 0 "
        "in the middle. In one report a boundary too many in that place made the first loss of DPO six times ln 2.",
        bad=Example(
            door="script",
            text="""\
import torch


def both(chosen, rejected):
    return {
        "input_ids": torch.cat([chosen["input_ids"], rejected["input_ids"]], dim=1),
        "cu_seq_lens_q": torch.cat([chosen["cu_seq_lens_q"], rejected["cu_seq_lens_q"]]),
    }
""",
        ),
        good=Example(
            door="script",
            text="""\
import torch


def both(chosen, rejected):
    first, second = chosen["cu_seq_lens_q"], rejected["cu_seq_lens_q"]
    return {
        "input_ids": torch.cat([chosen["input_ids"], rejected["input_ids"]], dim=1),
        "cu_seq_lens_q": torch.cat([first, second[1:] + first[-1]]),
    }
""",
        ),
        fix="Drop the second 0, and add the number of tokens that come before.",
        sources=("allenai/open-instruct#1900",),
        check=edges_without_offset,
    ),
)

CHECKS = (running_positions,)
