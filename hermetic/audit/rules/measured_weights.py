"""Topic 5, found by running: how much each token and each document counts in the loss."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import run

_MIXTRAL: Final = """\
import torch
from transformers import MixtralConfig, MixtralForCausalLM

import hermetic

torch.manual_seed(0)
model = MixtralForCausalLM(
    MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        initializer_range=0.2,
        output_router_logits={router},
        router_aux_loss_coef=0.02,
    )
).eval()

report = hermetic.probe(hermetic.seal(model))
"""

RULES: Final = (
    Rule(
        code="HM501",
        name="loss-depends-on-packing",
        what="The loss depends on how documents were packed: it is neither a mean over tokens or documents nor a sum.",
        why="How much a token counts then depends on its neighbours in the row. Dividing by slots instead of "
        "supervised tokens, or averaging the means of rows, causes it: on the same documents, the evaluation of "
        "transformers gave 4.814 in batches of two and 4.964 in batches of one.",
        bad=run("""\
from types import SimpleNamespace

from torch.nn.functional import cross_entropy

import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    logits = model(**batch.model_inputs()).logits[0]
    total = cross_entropy(logits[:-1], batch.labels[1:], reduction="sum")
    # unsupervised tokens count as well
    return SimpleNamespace(logits=logits, loss=total / batch.num_slots)


report = hermetic.probe(forward, lengths=(11, 13, 6))
"""),
        good=run("""\
from types import SimpleNamespace

import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    logits = model(**batch.model_inputs()).logits
    return SimpleNamespace(
        logits=logits, loss=hermetic.packed_loss(logits, batch)
    )


report = hermetic.probe(forward, lengths=(11, 13, 6))
"""),
        fix="Divide the sum of token losses by the supervised tokens of the whole step: hermetic.packed_loss.",
        sources=("huggingface/transformers#34242", "NVIDIA/Megatron-LM#7207", "linkedin/Liger-Kernel#329"),
    ),
    Rule(
        code="HM502",
        name="micro-batches-do-not-add-up",
        what="Micro-batches that are given the step's number of supervised tokens do not add up to the step.",
        why="Packed rows hold different numbers of supervised tokens, so averaging within each micro-batch gives the "
        "tokens of a short one more weight. Models whose forward takes no such number (num_items_in_batch) ignore it "
        "without a warning, and the loss grows with the number of micro-batches: to 2.9 times the step's in the "
        "example.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch, num_items_in_batch=None):
    # a mean over this micro-batch, whatever the step has
    return model(**batch.model_inputs())


report = hermetic.probe(forward)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch, num_items_in_batch=None):
    return model(
        **batch.model_inputs(), num_items_in_batch=num_items_in_batch
    )


report = hermetic.probe(forward)
"""),
        fix="Divide summed token losses by num_items_in_batch: hermetic.packed_loss(..., denominator=...).",
        sources=(
            "huggingface/transformers#37766",
            "huggingface/transformers#35438",
            "huggingface/transformers#34242",
            "docs/loss.md",
        ),
    ),
    Rule(
        code="HM503",
        name="router-balanced-over-the-row",
        what="A router's auxiliary loss is taken over the whole row, not over each document.",
        why="Experts are then balanced over whatever shares a row, so a document's loss depends on its neighbours: a "
        "Mixtral's auxiliary loss of two documents was 2.00 and 2.07 alone, and 2.03 packed. No document reaches "
        "another.",
        bad=run(_MIXTRAL.format(router=True)),
        good=run(_MIXTRAL.format(router=False)),
        fix="Keep it if experts are to be balanced over rows. Otherwise turn output_router_logits off, and add a "
        "balancing loss for each document.",
        sources=("NVIDIA/Megatron-LM#6115",),
    ),
)
