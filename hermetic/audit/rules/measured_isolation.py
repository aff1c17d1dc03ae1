"""Topic 1, found by running: one document reaches another, or a token its own future."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import run

RULES: Final = (
    Rule(
        code="HM100",
        name="document-reached",
        what="One document changes the output of another in the same row; the finding names the first module that lets "
        "it through.",
        why="The model is trained on contexts that nobody wrote, such as an answer that depends on a stranger's "
        "question, and the loss falls all the same. Even when called correctly, GPT-OSS moved the next document's "
        "logits by 3.6 and OPT by 3.4, where a sound path shows 1e-6. Of 193 model types in transformers 5.24, 110 "
        "passed.",
        bad=run("""\
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import hermetic
from hermetic.atlas import build_tiny

# no mask function of that name, so there is no mask
AttentionInterface.register("mine", sdpa_attention_forward)
model = build_tiny("llama", attn_implementation="mine")


def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        good=run("""\
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import hermetic
from hermetic.atlas import build_tiny

AttentionInterface.register("mine_and_masked", sdpa_attention_forward)
AttentionMaskInterface.register("mine_and_masked", sdpa_mask)
model = build_tiny("llama", attn_implementation="mine_and_masked")


def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        fix="Call hermetic.seal(model), which isolates documents or names the module that it cannot isolate. A code "
        "reported beside this one, such as HM101, says what in the call allowed it.",
        sources=(
            "huggingface/trl#1230",
            "huggingface/transformers#39997",
            "huggingface/transformers#32937",
            "docs/atlas.md",
        ),
    ),
    Rule(
        code="HM104",
        name="boundary-off-by-one",
        what="Only the token before a boundary, or only the one after it, belongs to the wrong document.",
        why="The first token of a document sees all of the document before it, or a last token is seen by all of the "
        "next document. Averages hide it, because only one token of each document changes; in the example its logits "
        "move by 7.3. Two causes have been reported: separators counted into the wrong document, and windows that "
        "disagree on whether the current token counts.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    # a document's first token is counted into the one before
    numbers = batch.boundaries.document_ids.roll(1)
    numbers[0] = 0
    mask = (numbers[:, None] == numbers[None, :]).tril()[None, None]
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    numbers = batch.boundaries.document_ids
    mask = (numbers[:, None] == numbers[None, :]).tril()[None, None]
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        fix="Count cu_seqlens and masks again: they start at 0, and each edge is the first token of the next document. "
        "hermetic.collate makes them from the lengths.",
        sources=("OpenEvaByte/evabyte#10", "NVIDIA-NeMo/Megatron-Bridge#2656"),
    ),
    Rule(
        code="HM105",
        name="sees-its-own-future",
        what="A token sees later tokens of its own document.",
        why="The model reads the answer that it is asked for, so the loss looks excellent and nothing is learned: Doge "
        "reached a perplexity of 5.0 on a text where 16.1 is right. A mask that separates documents but forgets the "
        "order does the same.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    numbers = batch.boundaries.document_ids
    # the same document, and no triangle
    mask = (numbers[:, None] == numbers[None, :])[None, None]
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny
from hermetic.batch.dialects import dense_mask

model = build_tiny("llama")


def forward(batch):
    mask = dense_mask(batch.boundaries)[None, None]
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        attention_mask=mask,
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward)
"""),
        fix="Check is_causal and the attention implementation. A mask of your own must be triangular as well as "
        "block-diagonal, as hermetic.batch.dialects.dense_mask is.",
        sources=("huggingface/transformers#48821", "leaks/bias_instead_of_a_mask.py"),
    ),
)
