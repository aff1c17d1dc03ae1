"""Topic 1, found by running: one document reaches another, and what in the call lets it."""

from typing import Final

from hermetic.audit.rule import Example, Rule

_BY_POSITIONS: Final = """\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(input_ids=batch.input_ids[None], position_ids=positions, use_cache=False).logits


report = hermetic.probe(forward)
"""

RULES: Final = (
    Rule(
        code="HM100",
        name="document-reached",
        what="One document moves the output of another one of its row, and the finding names the first module that "
        "lets it.",
        why="The model is trained on text that nobody wrote: answers that depend on a stranger's question. The loss "
        "falls all the same. In tiny models of 24 families that were called with right positions, no mask and no "
        "cache, 11 let documents through: GPT-OSS moved the logits of the next document by 3.6, OPT by 3.4, where a "
        "sound path shows 1e-6.",
        bad=Example(
            door="run",
            text="""\
import hermetic
from hermetic.atlas import build_tiny
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

AttentionInterface.register("mine", sdpa_attention_forward)  # no mask function is registered, so there is no mask
model = build_tiny("llama", attn_implementation="mine")


def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(input_ids=batch.input_ids[None], position_ids=positions, use_cache=False).logits


report = hermetic.probe(forward)
""",
        ),
        good=Example(
            door="run",
            text="""\
import hermetic
from hermetic.atlas import build_tiny
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

AttentionInterface.register("mine_with_a_mask", sdpa_attention_forward)
AttentionMaskInterface.register("mine_with_a_mask", sdpa_mask)
model = build_tiny("llama", attn_implementation="mine_with_a_mask")


def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(input_ids=batch.input_ids[None], position_ids=positions, use_cache=False).logits


report = hermetic.probe(forward)
""",
        ),
        fix="Call hermetic.seal(model): it isolates the documents of every module, or names the one that it cannot "
        "isolate. What stands beside this finding in a report, such as HM101, is what in the call let it happen.",
        sources=(
            "huggingface/trl#1230",
            "huggingface/transformers#39997",
            "huggingface/transformers#32937",
            "docs/atlas.md",
        ),
    ),
    Rule(
        code="HM101",
        name="mask-of-ones",
        what="An attention_mask of nothing but ones is passed next to positions that restart.",
        why="transformers looks for packed documents only where no mask is given, so a mask that masks nothing turns "
        "isolation off. A tokenizer or a padding collator adds one by itself. In a tiny Llama with documents of 3 and "
        "5 tokens it moves the second document's logits by 4.3; without it, by 1e-6.",
        bad=Example(
            door="run",
            text="""\
import hermetic
import torch
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    ones = torch.ones_like(batch.input_ids[None])
    return model(**batch.model_inputs(), attention_mask=ones).logits


report = hermetic.probe(forward)
""",
        ),
        good=Example(door="run", text=_BY_POSITIONS),
        fix="Leave the mask out, or call hermetic.seal(model), which makes nothing of it.",
        sources=("huggingface/transformers#46634", "leaks/all_ones_mask.py"),
    ),
    Rule(
        code="HM102",
        name="cache-in-training",
        what="The model makes a cache while it trains: use_cache was left at the default of its configuration.",
        why="With a cache, transformers does not look for packed documents, and use_cache is true unless it is told "
        "otherwise, in training too. In a tiny Llama this moves the second of two documents by 4.3 logits. Its own "
        "Trainer turns the cache off; a loop of one's own has to.",
        bad=Example(
            door="run",
            text="""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    return model(input_ids=batch.input_ids[None], position_ids=batch.boundaries.position_ids[None]).logits


report = hermetic.probe(forward)
""",
        ),
        good=Example(door="run", text=_BY_POSITIONS),
        fix="Pass use_cache=False, or set model.config.use_cache = False, or call hermetic.seal(model).",
        sources=("huggingface/transformers#39194", "huggingface/transformers#42586", "leaks/default_cache.py"),
    ),
)
