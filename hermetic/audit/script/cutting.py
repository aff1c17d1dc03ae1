"""Documents that are laid end to end and cut into rows of one length, in the ways in which that is usually written.

Algorithm: a *stream* is a name that begins empty and grows by the token ids of one document after another, or one
expression that joins them; it is *cut* where slices of one length, one after the other, are taken of it, or where it is
given a second axis. Guarantee: conservative. Pieces of one document, bytes, padded rows that were stacked, and a script
that only measures a model are no such thing. Price: one walk over the nodes of the functions that hold a stream.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hermetic.audit.script.flow import (
    JOINS,
    Loop,
    collection,
    collection_name,
    expanded,
    joined,
    loop_around,
    loop_names,
    mentioned,
    of_batches,
    of_turns,
    peel,
)
from hermetic.audit.script.names import Binding, Scope, spot
from hermetic.audit.script.script import Script

_MAKERS: Final = frozenset({"encode", "encode_ordinary", "apply_chat_template"})
"""Methods that make token ids of text."""

_CODECS: Final = re.compile(r"utf|ascii|latin", re.IGNORECASE)
_PIECES: Final = re.compile(r"(words?|tokens?|sentences?|paragraphs?|characters?|chars?|prompts?|fields?|columns?)$")
"""Names of collections of what is smaller than a document."""

_SPLITS: Final = frozenset({"split", "splitlines", "sent_tokenize", "word_tokenize"})
_LIBRARIES: Final = ("torch", "transformers", "datasets", "trl", "tokenizers", "tiktoken", "sentencepiece", "litgpt")
_EMPTY: Final = frozenset({"<list>", "torch.tensor", "torch.empty", "torch.LongTensor", "numpy.array", "numpy.empty"})
_BRANCHES: Final = (ast.If, ast.While, ast.Try)
_FLAT: Final = frozenset({"squeeze", "flatten", "ravel", "tolist"})
_TRAINS: Final = frozenset({"backward", "train", "fit", "training_step", "zero_grad"})
_MEASURES: Final = frozenset({"eval", "no_grad", "inference_mode", "generate"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Token ids of several documents, one after another."""

    node: ast.expr
    """Where they are joined."""
    scope: Scope
    name: str | None
    """What they are called, if they grow."""
    flat: bool
    """Known to have one axis, or to be joined along the last one."""


def only_measures(script: Script) -> bool:
    """Whether a script runs a model, or writes with it, and trains none."""
    calls = {call.short for call in script.calls}
    trains = calls & _TRAINS or any("Trainer" in one or "Optimizer" in one or "Adam" in one for one in calls)
    decorated = {(script.names.dotted(one) or "").rpartition(".")[2] for one in _decorators(script)}
    return bool((calls | decorated) & _MEASURES) and not trains


def _decorators(script: Script) -> Iterator[ast.expr]:
    for node in script.names.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from node.decorator_list


def cut_streams(script: Script) -> Iterator[Stream]:
    """Every stream of a script that is cut into rows."""
    if script.imports(*_LIBRARIES):
        yield from (one for one in _streams(script) if _is_cut(one, script))


def _streams(script: Script) -> Iterator[Stream]:
    grown = dict.fromkeys((name, scope) for scope, here in script.names.bindings.items() for name in here)
    for name, scope in grown:
        if (stream := _grown(name, scope, script)) is not None:
            yield stream
    for node in script.names.nodes:
        if isinstance(node, (ast.Call, ast.ListComp)) and (flat := _joins(node, script)) is not None:
            yield Stream(node=node, scope=script.names.function_of(node), name=None, flat=flat)


def _grown(name: str, scope: Scope, script: Script) -> Stream | None:
    """A list or an array that begins empty, and grows in a loop over documents."""
    found = script.names.bindings[scope][name]
    steps = [(one, added) for one in found if (added := _added(name, one, script)) is not None]
    begun = [one for one in found if _is_empty(one.value, script) and one.kind == "assign"]
    if not begun and not ("[" in name and "." not in name):
        return None
    for one, added in steps:
        loop = _loop(one.node, script)
        if loop is None or not _of_documents(loop, added, script) or _begins_anew(begun, loop, script):
            continue
        listed = one.kind in {"augment", "grow"} or isinstance(one.value, ast.BinOp)
        node = one.value if one.kind == "augment" else one.node
        where = node if isinstance(node, ast.expr) else one.value
        if where is not None:
            flat = listed or _is_flat(added, script)
            return Stream(node=where, scope=script.names.function_of(one.node), name=name, flat=flat)
    return None


def _added(name: str, binding: Binding, script: Script) -> ast.expr | None:
    """What one statement adds to a name: ``x += y``, ``x.extend(y)``, ``x = x + y``, ``x = torch.cat([x, y])``."""
    value = binding.value
    if binding.kind == "augment":
        return value if isinstance(getattr(binding.node, "op", None), ast.Add) else None
    if binding.kind == "grow":
        return value if binding.method == "extend" else None
    return _added_to_itself(name, value, script) if binding.kind == "assign" else None


def _added_to_itself(name: str, value: ast.expr | None, script: Script) -> ast.expr | None:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return value if spot(_leftmost(value)) == name else None
    parts: ast.expr | None = value
    if isinstance(value, ast.Call):
        parts = value.args[0] if script.names.dotted(value.func) in JOINS and value.args else None
    if not isinstance(parts, (ast.List, ast.Tuple)) or len(parts.elts) < 2:
        return None
    first = parts.elts[0].value if isinstance(parts.elts[0], ast.Starred) else parts.elts[0]
    return parts.elts[1] if spot(first) == name else None


def _leftmost(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.BinOp):
        node = node.left
    return node


def _is_empty(value: ast.expr | None, script: Script) -> bool:
    if isinstance(value, ast.List):
        return not value.elts
    if not isinstance(value, ast.Call) or script.names.dotted(value.func) not in _EMPTY:
        return False
    first = value.args[0] if value.args else None
    return first is None or (isinstance(first, ast.List) and not first.elts) or script.value(first) == 0


def _loop(node: ast.AST, script: Script) -> ast.For | ast.AsyncFor | ast.While | None:
    """The ``for`` around a statement in its function, or a ``while`` that takes ``next`` of an iterator."""
    if (found := loop_around(node, script.names)) is not None:
        return found
    scope = script.names.function_of(node)
    loops = (one for one in script.names.above(node) if isinstance(one, ast.While))
    return next((one for one in loops if script.names.function_of(one) is scope), None)


def _of_documents(loop: ast.AST, added: ast.expr, script: Script) -> bool:
    """Whether each turn of a loop adds the token ids of another document."""
    inside = list(expanded(added, script.names))
    if isinstance(loop, ast.While):
        taken = any(isinstance(one, ast.Call) and script.names.dotted(one.func) == "<next>" for one in inside)
        return taken and _is_tokens(added, script)
    assert isinstance(loop, (ast.For, ast.AsyncFor))  # noqa: S101 - the only other kinds
    reads = {one.id for one in inside if isinstance(one, ast.Name)} & loop_names(loop)
    return bool(reads) and _is_over_texts(loop, script) and _is_tokens(added, script)


def _is_over_texts(loop: Loop, script: Script) -> bool:
    """Not over turns, words or lines of one text, nor over batches."""
    over = collection(loop, script.names)
    name = collection_name(loop, script.names)
    words = {name.lower(), *(one.lower() for one in loop_names(loop))}
    if of_turns(loop, script.names) or of_batches(loop, script.names) or any(map(_PIECES.search, words)):
        return False
    calls = [one for one in expanded(over, script.names) if isinstance(one, ast.Call)]
    shorts = {(script.names.dotted(one.func) or "").rpartition(".")[2].strip("<>") for one in calls}
    return not shorts & (_SPLITS | {"DataLoader"})


def _begins_anew(begun: list[Binding], loop: ast.AST, script: Script) -> bool:
    """Whether the name is emptied for each document, or for each of what the inner loop goes through the pieces of."""
    for one in begun:
        above = [part for part in script.names.above(one.node) if isinstance(part, (ast.For, ast.AsyncFor, ast.While))]
        if loop in above and not _is_in_a_branch(one.node, loop, script):
            return True
        outer = [part for part in above if isinstance(part, (ast.For, ast.AsyncFor)) and part is not loop]
        inner = mentioned(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
        if any(loop_names(part) & inner for part in outer) and loop not in above:
            return True
    return False


def _is_in_a_branch(node: ast.AST, loop: ast.AST, script: Script) -> bool:
    for one in script.names.above(node):
        if one is loop:
            return False
        if isinstance(one, _BRANCHES):
            return True
    return False


def _is_tokens(node: ast.expr, script: Script) -> bool:
    """Whether an expression is token ids: called so, or made by a tokenizer."""
    return any(_makes_tokens(one, script) for one in expanded(node, script.names))


def _makes_tokens(node: ast.AST, script: Script) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "input_ids"
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "input_ids"
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _MAKERS:
        return bool(node.args) and not _is_a_codec(node, script)
    return False


def _is_a_codec(node: ast.Call, script: Script) -> bool:
    """``text.encode("utf-8")``: bytes."""
    said = [script.value(one) for one in (*node.args, *(word.value for word in node.keywords))]
    return any(isinstance(one, str) and _CODECS.match(one) for one in said)


def _is_flat(element: ast.expr, script: Script) -> bool:
    """Whether a tensor or an array of one document has one axis."""
    core = element
    for one in expanded(core, script.names):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant) and one.slice.value == 0:
            return True
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in _FLAT:
            return True
    made = [one for one in expanded(core, script.names) if isinstance(one, ast.Call)]
    pads = any(word.arg in {"return_tensors", "padding"} for one in made for word in one.keywords)
    return bool(made) and not pads


def _joins(node: ast.Call | ast.ListComp, script: Script) -> bool | None:
    """Whether documents are joined by one expression: ``None`` if not, else whether what comes out has one axis."""
    join = joined(node, script.names)
    if join is not None and join.node is node:
        of_texts = _is_over_texts(join.loop, script) and not _is_one_of(join.loop, script)
        element = list(expanded(join.element, script.names))
        read = {one.id for one in element if isinstance(one, ast.Name)} & loop_names(join.loop)
        own = _is_tokens(join.element, script) or _is_tokens_of_many(collection(join.loop, script.names), script)
        if not (of_texts and read and own):
            return None
        return join.how == "list" or _is_last_axis(node, script) or _is_flat(join.element, script)
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name, argument = script.names.dotted(node.func), node.args[0]
    summed = name == "<sum>" and len(node.args) == 2 and isinstance(node.args[1], ast.List)
    chained = name == "itertools.chain.from_iterable" or (name == "itertools.chain" and len(node.args) == 1)
    lists = argument.value if isinstance(argument, ast.Starred) else argument
    return True if (summed or chained) and _is_tokens_of_many(lists, script) else None


def _is_one_of(loop: Loop, script: Script) -> bool:
    """Whether a comprehension's loop is over the parts of what another loop gives."""
    if not isinstance(loop, ast.comprehension):
        return False
    over = mentioned(loop.iter)
    outer = (one for one in script.names.above(loop) if isinstance(one, (ast.For, ast.AsyncFor)))
    return any(loop_names(one) & over for one in outer)


def _is_tokens_of_many(node: ast.expr, script: Script) -> bool:
    """``tokenizer(texts)["input_ids"]`` or a column of a data set: one list for each text."""
    core = peel(node, script.names).core
    key = isinstance(core, ast.Subscript) and isinstance(core.slice, ast.Constant) and core.slice.value == "input_ids"
    if not key and not (isinstance(core, ast.Attribute) and core.attr == "input_ids"):
        return False
    assert isinstance(core, (ast.Subscript, ast.Attribute))  # noqa: S101 - the condition
    return not any(isinstance(one, ast.Name) and one.id in _loops_of(core, script) for one in ast.walk(core.value))


def _loops_of(node: ast.AST, script: Script) -> set[str]:
    loops = (one for one in script.names.above(node) if isinstance(one, (ast.For, ast.AsyncFor)))
    return {name for loop in loops for name in loop_names(loop)}


def _is_last_axis(node: ast.AST, script: Script) -> bool:
    if not isinstance(node, ast.Call):
        return False
    given = [word.value for word in node.keywords if word.arg in {"dim", "axis"}] or node.args[1:2]
    return any(script.value(one) in (1, -1) for one in given)


def _is_cut(stream: Stream, script: Script) -> bool:
    """Whether rows of one length are taken of a stream, one after another, in its function."""
    inside = script.names.inside(stream.scope)
    sliced = (node for node in inside if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load))
    if any(_is_of(node.value, stream, script) and _is_a_step(node, stream, script) for node in sliced):
        return True
    calls = (node for node in inside if isinstance(node, ast.Call))
    return any(_is_folded(node, stream, script) for node in calls)


def _is_of(node: ast.expr, stream: Stream, script: Script) -> bool:
    """Whether an expression is the stream, however it is wrapped."""
    peeled = peel(node, script.names)
    parts = (*peeled.around, peeled.core)
    return any(one is stream.node or (stream.name is not None and spot(one) == stream.name) for one in parts)


def _is_a_step(node: ast.Subscript, stream: Stream, script: Script) -> bool:
    """``x[i : i + L]`` for steps of ``L``, ``x[k * L : (k + 1) * L]``, or ``x[:L]`` of a stream that then loses it."""
    last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    if not isinstance(last, ast.Slice) or last.upper is None or last.step is not None:
        return False
    if not stream.flat and last is node.slice:
        return False
    lower = last.lower
    if lower is None or script.value(lower) == 0:
        return _loses(stream, last.upper, script)
    return any(_goes_by(lower, last.upper, one, script) for one in script.names.inside(stream.scope))


def _goes_by(lower: ast.expr, upper: ast.expr, node: ast.AST, script: Script) -> bool:
    """Whether a loop, or a number that is added to, moves a slice by its own length."""
    if isinstance(node, ast.AugAssign) and isinstance(lower, ast.Name) and isinstance(node.target, ast.Name):
        return node.target.id == lower.id and isinstance(node.op, ast.Add) and _holds(upper, node.value)
    if not isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) or not isinstance(node.iter, ast.Call):
        return False
    over = _range_of(node.iter, script)
    if over is None or not loop_names(node) & mentioned(lower):
        return False
    if isinstance(lower, ast.Name):
        return len(over) == 3 and (_holds(upper, over[2]) or isinstance(upper, ast.Name))
    product = isinstance(lower, ast.BinOp) and isinstance(lower.op, ast.Mult)
    return product and len(over) < 3 and bool(mentioned(upper) & loop_names(node))


def _range_of(call: ast.Call, script: Script) -> list[ast.expr] | None:
    """The arguments of ``range``, with or without a progress bar around it."""
    for _ in range(3):
        name = (script.names.dotted(call.func) or "").strip("<>").rpartition(".")[2]
        if name in {"range", "trange"}:
            return call.args
        if name not in {"tqdm", "enumerate"} or not call.args or not isinstance(call.args[0], ast.Call):
            return None
        call = call.args[0]
    return None


def _holds(whole: ast.expr, part: ast.expr) -> bool:
    """Whether an expression has another one in it."""
    return any(ast.dump(one) == ast.dump(part) for one in ast.walk(whole))


def _loses(stream: Stream, width: ast.expr, script: Script) -> bool:
    """``x = x[L:]``, or ``del x[:L]``, in a loop: what was taken is gone."""
    name = stream.name
    if name is None:
        return False
    for node in script.names.inside(stream.scope):
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice) or spot(node.value) != name:
            continue
        gone = node.slice.upper if isinstance(node.ctx, ast.Del) else node.slice.lower
        if gone is None or ast.dump(gone) != ast.dump(width):
            continue
        above = list(script.names.above(node))
        loops = any(isinstance(one, (ast.For, ast.AsyncFor, ast.While)) for one in above)
        kept = isinstance(node.ctx, ast.Del) or any(_sets(one, name) for one in above)
        if loops and kept:
            return True
    return False


def _sets(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    every = [one for target in node.targets for one in ast.walk(target)]
    return any(isinstance(one, (ast.Name, ast.Attribute, ast.Subscript)) and spot(one) == name for one in every)


def _is_folded(node: ast.Call, stream: Stream, script: Script) -> bool:
    """``x.view(-1, L)``, ``numpy.reshape(x, (-1, L))``, ``x.split(L)``: rows of one length of a stream."""
    name = (script.names.dotted(node.func) or "").strip("<>").rpartition(".")[2]
    if name not in {"view", "reshape", "split", "unfold", "chunked", "batched"}:
        return False
    method = isinstance(node.func, ast.Attribute) and _is_of(node.func.value, stream, script)
    if not method and not (node.args and _is_of(node.args[0], stream, script)):
        return False
    sizes = node.args if method else node.args[1:]
    if name in {"view", "reshape"}:
        shape = list(sizes[0].elts) if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)) else list(sizes)
        return len(shape) == 2 and script.value(shape[1]) not in (-1, 1)
    return stream.flat and len(sizes) > 0
