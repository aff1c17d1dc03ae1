"""Where a script takes its boundaries from, and what keeps them from arriving."""

import ast
from collections.abc import Iterator

from hermetic.audit.finding import AuditFinding
from hermetic.audit.rule import Example, Rule
from hermetic.audit.rules.script_calls import holds_numbers
from hermetic.audit.script.flow import expanded, peel
from hermetic.audit.script.packing import implementations, may_be_flash, restarts
from hermetic.audit.script.script import BOUNDARIES, EDGES, Script, Slot


def from_end_tokens(script: Script) -> Iterator[AuditFinding]:
    """HM144: boundaries that are looked for among the tokens."""
    seen: set[ast.AST] = set()
    for key, value in _boundaries(script):
        for node in expanded(value, script.names):
            if node in seen or not isinstance(node, ast.Compare) or not _asks_for_the_end(node):
                continue
            seen.add(node)
            yield script.finding(
                "HM144",
                node,
                key,
                what="boundaries are looked for among the tokens: every end-of-text token ends a document here, also "
                "one that ends a turn, and a document that was cut has none",
                certainty="likely",
                way_out="Keep the lengths of the documents when they are laid end to end: "
                "hermetic.Boundaries.from_lengths(lengths)",
            )


def _boundaries(script: Script) -> Iterator[tuple[str, ast.expr]]:
    """Values by a boundary's name, and what is compared with itself, pair by pair: ``x[:, None] == x[None, :]``."""
    yield from ((slot.key, slot.value) for slot in script.slot_values(*BOUNDARIES))
    for node in script.names.nodes:
        if isinstance(node, ast.Compare) and len(node.comparators) == 1 and isinstance(node.ops[0], ast.Eq):
            left, right = (
                peel(one, script.names, through_names=False).core for one in (node.left, node.comparators[0])
            )
            if isinstance(left, ast.Name) and ast.dump(left) == ast.dump(right):
                yield left.id, left


def _asks_for_the_end(node: ast.Compare) -> bool:
    """``ids == eos_token_id``."""
    words = [getattr(one, "attr", getattr(one, "id", "")) for one in (node.left, *node.comparators)]
    return isinstance(node.ops[0], ast.Eq) and any(
        str(word).lower().strip("_").split("_")[0] in {"eos", "eot", "eod"} or "_eos" in str(word).lower()
        for word in words
    )


def from_sums_of_numbers(script: Script) -> Iterator[AuditFinding]:
    """HM146: lengths that are sums of a mask which holds the numbers of documents."""
    if not any(holds_numbers(slot, script) for slot in script.slot_values("attention_mask")):
        return
    for call in script.named("sum"):
        of = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
        key = of.slice.value if isinstance(of, ast.Subscript) and isinstance(of.slice, ast.Constant) else None
        if (isinstance(of, ast.Name) and of.id == "attention_mask") or key == "attention_mask":
            yield script.finding(
                "HM146",
                call.node,
                "attention_mask",
                what="the attention mask holds the numbers of documents, and its sum is taken for a number of tokens",
                certainty="certain",
                way_out="Count tokens by number: torch.bincount(attention_mask.flatten()), or carry the lengths along",
            )


def flash_over_rows(script: Script) -> Iterator[AuditFinding]:
    """HM145: several packed rows in a batch of flash attention, and no cumulative lengths."""
    used = implementations(script)
    if script.sealed or not used or not may_be_flash(script) or not all(isinstance(one, str) for one in used):
        return
    if any(True for _ in script.slot_values(*EDGES)) or not _rows_in_a_batch(script):
        return
    restarting = any(restarts(slot.value, script.names) for slot in script.slot_values("position_ids"))
    for slot in script.slot_values("position_ids"):
        if restarting and _is_stacked(slot, script):
            yield script.finding(
                "HM145",
                slot.node,
                "position_ids",
                what="several packed rows are stacked, and flash attention reads boundaries off positions only where a "
                "batch has one row: here each row is one causal document",
                certainty="certain",
                way_out="Lay the rows end to end and pass cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k "
                "(hermetic.collate does), or take one row per batch",
            )


def _rows_in_a_batch(script: Script) -> bool:
    sizes = [
        script.value(call.keywords.get(key))
        for call in script.calls
        for key in ("batch_size", "per_device_train_batch_size")
    ]
    return any(isinstance(size, int) and size > 1 for size in sizes)


def _is_stacked(slot: Slot, script: Script) -> bool:
    """``torch.stack([row["position_ids"] for row in rows])``, or the same of lists."""
    core = peel(slot.value, script.names).core
    if isinstance(core, ast.Call) and script.names.dotted(core.func) == "torch.stack" and core.args:
        core = peel(core.args[0], script.names).core
    entry = core.elt if isinstance(core, ast.ListComp) and len(core.generators) == 1 else None
    entry = peel(entry, script.names).core if entry is not None else None
    return (
        isinstance(entry, ast.Subscript)
        and isinstance(entry.slice, ast.Constant)
        and entry.slice.value == "position_ids"
        and slot.how == "entry"
    )


_NUMBERED = """\
import torch


class Model(torch.nn.Module):
    '''Attends by lengths.'''


def collate(documents):
    ids = [token for document in documents for token in document["input_ids"]]
    numbers = [n for i, document in enumerate(documents, 1) for n in [i] * len(document["input_ids"])]
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([numbers])}


"""

_STACKING = """\
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(
    "some/model", attn_implementation="flash_attention_2", use_cache=False
)


def pack(documents):
    ids = [token for document in documents for token in document["input_ids"]]
    positions = [place for document in documents for place in range(len(document["input_ids"]))]
    return {"input_ids": ids, "position_ids": positions}


"""

RULES = (
    Rule(
        code="HM144",
        name="boundaries-from-end-tokens",
        what="Document boundaries are taken from where the end-of-text token stands in the row.",
        why="In chat data the same token ends every turn, so one conversation becomes several documents and later "
        "turns lose what was said: of the tokens [5, 2, 6, 2], with 2 as the end, such a rule takes 2 for the length "
        "and not 4. In one report the packed loss of a sample was 5.29 where 3.66 is right. A document that was cut "
        "has no end token and merges with the next, and it is easy to count the end token into the wrong document.",
        bad=Example(
            door="script",
            text="""\
def boundaries(input_ids, tokenizer):
    document_ids = (input_ids == tokenizer.eos_token_id).cumsum(0)
    return document_ids
""",
        ),
        good=Example(
            door="script",
            text="""\
import torch


def boundaries(documents):
    lengths = torch.tensor([len(document["input_ids"]) for document in documents])
    document_ids = torch.repeat_interleave(torch.arange(len(documents)), lengths)
    return document_ids
""",
        ),
        fix="Keep the lengths from where the documents are joined.",
        sources=("NVIDIA-NeMo/Speech#14437", "pytorch/torchtitan#3130", "OpenEvaByte/evabyte#10"),
        check=from_end_tokens,
    ),
    Rule(
        code="HM145",
        name="packed-rows-stacked-under-flash-attention",
        what="Several packed rows are stacked into one batch for flash attention, with positions but without "
        "cumulative lengths.",
        why="With flash attention, transformers reads boundaries from positions only if the batch has one row. With "
        "two it treats each row as one document, without a warning: rows of documents [3, 3] and [2, 2, 2] need the "
        "edges [0, 3, 6, 8, 10, 12].",
        bad=Example(
            door="script",
            text=f"""\
{_STACKING}def collate(rows):
    return {{
        "input_ids": torch.tensor([row["input_ids"] for row in rows]),
        "position_ids": torch.tensor([row["position_ids"] for row in rows]),
    }}


loader = DataLoader([], batch_size=4, collate_fn=collate)
""",
        ),
        good=Example(
            door="script",
            text=f"""\
{_STACKING}def collate(rows):
    return {{
        "input_ids": torch.tensor([row["input_ids"] for row in rows]),
        "position_ids": torch.tensor([row["position_ids"] for row in rows]),
    }}


loader = DataLoader([], batch_size=1, collate_fn=collate)
""",
        ),
        fix="Use one row per batch, or lay all rows end to end with cumulative lengths.",
        sources=("axolotl-ai-cloud/axolotl#1375",),
        check=flash_over_rows,
    ),
    Rule(
        code="HM146",
        name="lengths-from-a-mask-of-numbers",
        what="The attention mask holds the number of each token's document, and lengths are taken from its sums.",
        why="For three documents of 4, 3 and 3 tokens the mask [1, 1, 1, 1, 2, 2, 2, 3, 3, 3] sums to 19, not to 10 "
        "tokens. If the kernel does not refuse such lengths, tokens end up in the wrong documents.",
        bad=Example(
            door="script",
            text=f"""\
{_NUMBERED}def lengths(batch):
    return batch["attention_mask"].sum(dim=-1)
""",
        ),
        good=Example(
            door="script",
            text=f"""\
{_NUMBERED}def lengths(batch):
    return torch.bincount(batch["attention_mask"].flatten())[1:]
""",
        ),
        fix="Count the tokens of each number, or carry the lengths along.",
        sources=("hiyouga/LlamaFactory#8919", "OpenRLHF/OpenRLHF#587"),
        check=from_sums_of_numbers,
    ),
)
