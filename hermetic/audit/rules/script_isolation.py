"""Attention in a script that reaches across documents: masks that are causal alone, caches, functions without masks."""

import ast
from collections.abc import Iterator

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.script.cuts import cuts
from hermetic.audit.script.flow import loop_around, mentioned
from hermetic.audit.script.packing import boundary_names, implementations, packs, rows
from hermetic.audit.script.script import BOUNDARIES, VARLEN, Call, Script

_PLAIN = (
    "scaled_dot_product_attention",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "memory_efficient_attention",
)
_CAUSAL = ("is_causal", "causal", "attn_bias")
_APART = ("create_block_mask", "nested_tensor_from_jagged", "nested_tensor", "split_with_sizes", "packed_attention")


def causal_alone(script: Script) -> Iterator[AuditFinding]:
    """HM140: attention of the script's own, causal over a row of documents."""
    if script.sealed or any(True for _ in script.named(*VARLEN, *_APART)):
        return
    row = any(script.imports("torch") for _ in rows(script))
    for call in script.named(*_PLAIN, of=("torch", "flash_attn", "xformers")):
        if not _is_causal(call, script) or _has_a_mask(call, script) or _goes_by_document(call.node, script):
            continue
        beside = boundary_names(script.names.function_of(call.node), script.names)
        if not (row or beside) or _is_a_branch_without_boundaries(call, script):
            continue
        what = "attention over a row of documents has only a causal mask: each document sees all those before it"
        yield script.finding(
            "HM140",
            call.node,
            f"{call.short}({next(key for key in _CAUSAL if key in call.keywords)})",
            what=what,
            certainty="certain" if row else "likely",
            way_out="Give attention the boundaries: hermetic.packed_attention(q, k, v, boundaries), "
            "flash_attn_varlen_func with cu_seqlens, or a mask of document numbers",
        )


def _is_causal(call: Call, script: Script) -> bool:
    bias = call.keywords.get("attn_bias")
    triangle = isinstance(bias, ast.Call) and (script.names.dotted(bias.func) or "").endswith("LowerTriangularMask")
    return triangle or any(script.value(call.keywords.get(key)) is True for key in ("is_causal", "causal"))


def _has_a_mask(call: Call, script: Script) -> bool:
    mask = call.keywords.get("attn_mask", call.node.args[3] if len(call.node.args) > 3 else None)
    return mask is not None and script.value(mask) is not None


def _is_a_branch_without_boundaries(call: Call, script: Script) -> bool:
    """``if cu_seqlens is None: ...``, or what follows on the branch that has some: rows that hold one document."""
    tests = [one.test for one in script.names.above(call.node) if isinstance(one, (ast.If, ast.IfExp))]
    scope = script.names.function_of(call.node)
    tests += [
        one.test
        for one in getattr(scope, "body", ())
        if isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return) and one.lineno < call.node.lineno
    ]
    return any(mentioned(test) & BOUNDARIES for test in tests)


def _goes_by_document(node: ast.Call, script: Script) -> bool:
    """Whether attention is in a loop, or in a function of this file that is called in one: for each document."""
    scope = script.names.function_of(node)
    name = getattr(scope, "name", None)
    calls = [call.node for call in script.calls if name is not None and call.name == f"<{name}>"]
    return any(
        isinstance(above, ast.comprehension | ast.ListComp | ast.GeneratorExp) or loop_around(one, script.names)
        for one in (node, *calls)
        for above in (one, *script.names.above(one))
        if script.names.function_of(above) is script.names.function_of(one)
    )


def block_mask_alone(script: Script) -> Iterator[AuditFinding]:
    """HM141: a block mask whose function looks at places and not at documents."""
    calls = list(script.named("create_block_mask", of=("torch",)))
    if script.sealed or len(calls) != 1 or any(True for _ in script.named("and_masks")):
        return
    (call,) = calls
    given = call.node.args[0] if call.node.args else call.keywords.get("mask_mod")
    beside = boundary_names(script.names.function_of(call.node), script.names)
    if given is None or not _only_causal(given, script) or not (beside or rows(script)):
        return
    if any("score_mod" in call.keywords or len(call.node.args) > 3 for call in script.named("flex_attention")):
        return  # which may keep documents apart itself
    yield script.finding(
        "HM141",
        call.node,
        "create_block_mask",
        what="the block mask of a row of documents asks only which token comes first, so each document sees all "
        "those before it",
        certainty="certain" if rows(script) else "likely",
        way_out="Compare document numbers too: (q_idx >= kv_idx) & (document_ids[q_idx] == document_ids[kv_idx]), or "
        "call hermetic.packed_attention(..., backend='flex')",
    )


def _only_causal(given: ast.expr, script: Script) -> bool:
    """Whether a mask function is one comparison of its last two parameters."""
    function: ast.AST | None = given
    if isinstance(given, ast.Name):
        found = script.names.of(given.id, given)
        function = (found[0].value or found[0].node) if len(found) == 1 else None
    if isinstance(function, ast.Lambda):
        body: ast.expr | None = function.body
    elif isinstance(function, ast.FunctionDef) and isinstance(function.body[-1], ast.Return):
        body = function.body[-1].value if len(function.body) <= 2 else None
    else:
        return False
    parameters = [one.arg for one in function.args.args]
    return isinstance(body, ast.Compare) and len(parameters) == 4 and mentioned(body) == set(parameters[2:])


def unmasked_function(script: Script) -> Iterator[AuditFinding]:
    """HM143: an attention function that transformers makes no mask for."""
    if script.sealed or not packs(script):
        return
    registered = [
        (call, call.name.lower()) for call in script.named("register", of=("transformers",)) if call.node.args
    ]
    masked = [script.value(call.node.args[0]) for call, name in registered if "mask" in name]
    for call, interface in registered:
        name = script.value(call.node.args[0])
        if "mask" in interface or "attention" not in interface or len(call.node.args) < 2 or not isinstance(name, str):
            continue
        if name in masked or name not in implementations(script) or _reads_boundaries(call.node.args[1], script):
            continue
        yield script.finding(
            "HM143",
            call.node,
            "AttentionInterface.register",
            what=f"attention {name!r} has no mask function, so transformers gives it no mask at all",
            certainty="certain",
            way_out=f"Register one too: AttentionMaskInterface.register({name!r}, sdpa_mask), or call "
            "hermetic.seal(model)",
        )


def _reads_boundaries(function: ast.expr, script: Script) -> bool:
    """Whether the function goes by lengths or positions itself, or cannot be seen."""
    found = script.names.of(function.id, function) if isinstance(function, ast.Name) else []
    if len(found) != 1 or not isinstance(found[0].node, (ast.FunctionDef, ast.Lambda)):
        return True
    inside = ast.walk(found[0].node)
    words = [getattr(one, "id", getattr(one, "arg", getattr(one, "value", None))) for one in inside]
    return any(isinstance(word, str) and (word in BOUNDARIES or word == "position_ids") for word in words)


def cut_without_boundaries(script: Script) -> Iterator[AuditFinding]:
    """HM142: documents laid end to end and cut, with nothing that says where one starts."""
    for place in cuts(script):
        yield script.finding(
            "HM142",
            place,
            "input_ids",
            what="documents are laid end to end and cut into rows, and nothing says where one starts",
            certainty="likely",
            way_out="Pack whole documents: hermetic.plan_rows and hermetic.collate, or hermetic pack",
        )


_FLEX_HEAD = """\
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def attend(q, k, v, document_ids):
"""

RULES = (
    Rule(
        code="HM140",
        name="causal-mask-over-packed-documents",
        what="Attention over a row of several documents gets a causal mask and nothing that tells the documents apart.",
        why="For documents of 3 and 5 tokens a causal mask admits 36 pairs of tokens, of which 21 are right; in the "
        "other 15 the second document reads the first. In a public report, changing one document of such a row moved "
        "another one's logits by 11.3.",
        bad=Example(
            door="script",
            text="""\
import torch
from torch.nn.functional import scaled_dot_product_attention


def attend(q, k, v, cu_seqlens):
    return scaled_dot_product_attention(q, k, v, is_causal=True)
""",
        ),
        good=Example(
            door="script",
            text="""\
import torch
from torch.nn.functional import scaled_dot_product_attention


def attend(q, k, v, document_ids):
    causal = torch.ones(len(document_ids), len(document_ids), dtype=torch.bool).tril()
    return scaled_dot_product_attention(q, k, v, attn_mask=causal & (document_ids[:, None] == document_ids[None]))
""",
        ),
        fix="Give attention what it needs to tell documents apart: cu_seqlens, a block mask, or a mask made from "
        "document numbers.",
        sources=("karpathy/nanoGPT#280", "DeepOpt-com/WrinkleFree-Monorepo#53", "huggingface/nanoVLM#204"),
        check=causal_alone,
    ),
    Rule(
        code="HM141",
        name="block-mask-without-documents",
        what="The mask function of FlexAttention compares places in the row and nothing else, and rows hold several "
        "documents.",
        why="The block mask is then one triangle over the whole row, and each document reads all those before it: 15 "
        "of 36 pairs for documents of 3 and 5 tokens. It is also slower than the right mask, which has fewer blocks to "
        "compute.",
        bad=Example(
            door="script",
            text=f"""\
{_FLEX_HEAD}    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, len(document_ids), len(document_ids))
    return flex_attention(q, k, v, block_mask=mask)
""",
        ),
        good=Example(
            door="script",
            text=f"""\
{_FLEX_HEAD}    def causal_inside(b, h, i, j):
        return (i >= j) & (document_ids[i] == document_ids[j])

    mask = create_block_mask(causal_inside, None, None, len(document_ids), len(document_ids))
    return flex_attention(q, k, v, block_mask=mask)
""",
        ),
        fix="Compare document numbers as well.",
        sources=("meta-pytorch/torchtune#1193", "karpathy/nanoGPT#280"),
        check=block_mask_alone,
    ),
    Rule(
        code="HM142",
        name="documents-cut-without-boundaries",
        what="Token ids of documents are joined and cut into rows of one length, and boundaries are not kept.",
        why="Each document sees those before it in its row, documents are cut wherever a row ends, and nothing later "
        "can tell them apart: no mask, no positions, and no seal, which needs boundaries too. An end-of-text token "
        "between documents does not separate them for attention.",
        bad=Example(
            door="script",
            text="""\
from itertools import chain


def group_texts(examples, block=1024):
    ids = list(chain.from_iterable(example["input_ids"] for example in examples))
    return [{"input_ids": ids[i : i + block]} for i in range(0, len(ids), block)]
""",
        ),
        good=Example(
            door="script",
            text="""\
import hermetic


def rows(documents, capacity=1024):
    plan = hermetic.plan_rows([len(one["input_ids"]) for one in documents], capacity)
    return [hermetic.collate([documents[i] for i in row]) for row in plan.rows()]
""",
        ),
        fix="Pack whole documents into rows, and keep where each begins.",
        sources=("huggingface/trl#1230", "huggingface/trl#3067", "Lightning-AI/litgpt#620"),
        check=cut_without_boundaries,
    ),
    Rule(
        code="HM143",
        name="attention-without-mask-function",
        what="A custom attention function is registered with transformers, but no mask function under the same name.",
        why="transformers then makes no mask, whatever the positions say. The example of HM100 is this mistake, "
        "measured: in a tiny Llama one document moves another's logits by 7.4. With a mask function of that name, it "
        "moves them by exactly 0.",
        bad=Example(
            door="script",
            text="""\
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM, DataCollatorWithFlattening


def mine(module, query, key, value, attention_mask, **options):
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None)
    return out.transpose(1, 2), None


AttentionInterface.register("mine", mine)
model = AutoModelForCausalLM.from_pretrained("some/model", attn_implementation="mine", use_cache=False)
collator = DataCollatorWithFlattening()
""",
        ),
        good=Example(
            door="script",
            text="""\
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, DataCollatorWithFlattening
from transformers.masking_utils import sdpa_mask


def mine(module, query, key, value, attention_mask, **options):
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None)
    return out.transpose(1, 2), None


AttentionInterface.register("mine", mine)
AttentionMaskInterface.register("mine", sdpa_mask)
model = AutoModelForCausalLM.from_pretrained("some/model", attn_implementation="mine", use_cache=False)
collator = DataCollatorWithFlattening()
""",
        ),
        fix="Register a mask function under the same name.",
        sources=(
            "https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/masking_utils.py",
            "measured: hermetic explain HM100, transformers 5.24.0",
        ),
        check=unmasked_function,
    ),
)
