"""Topic 4, found by running: what tokens are trained to predict."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import WITH_LABELS, run

RULES: Final = (
    Rule(
        code="HM401",
        name="target-over-the-seam",
        what="The last token of a document is trained to predict the first token of the next one.",
        why="Attention may be isolated while targets are not: every document but the last of its row teaches the model "
        "to guess a stranger's first word instead of stopping, 3 of them in the example. Of the stacks that the doctor "
        "was run on, Axolotl 0.19 does so with plain texts.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    inputs = batch.model_inputs()
    # as a collator for padded rows makes them
    inputs["labels"] = inputs["input_ids"]
    return model(**inputs)


report = hermetic.probe(forward)
"""),
        good=WITH_LABELS,
        fix="Put -100 on the first token of every document, as hermetic.collate does; or call hermetic.seal(model), "
        "which takes these labels away.",
        sources=(
            "meta-pytorch/torchtune#2613",
            "pytorch/torchtitan#4075",
            "verl-project/verl#6475",
            "leaks/labels_across_the_seam.py",
            "docs/doctor.md",
        ),
    ),
    Rule(
        code="HM402",
        name="supervised-tokens-untrained",
        what="Supervised tokens carry no loss.",
        why="Masking the labels took away too much. Where the padding token also ends texts, masking by value removes "
        "the end of every document, and the model never learns to stop: 2 of the 5 supervised tokens in the example.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

END = PAD = 2
documents = [{"input_ids": [5, 6, 7, END]}, {"input_ids": [8, 9, END]}]
model = build_tiny("llama")


def forward(batch):
    inputs = batch.model_inputs()
    inputs["labels"] = inputs["labels"].masked_fill(
        inputs["input_ids"] == PAD, -100
    )
    return model(**inputs)


report = hermetic.probe(forward, documents=documents)
"""),
        good=run("""\
import hermetic
from hermetic.atlas import build_tiny

END = 2
documents = [{"input_ids": [5, 6, 7, END]}, {"input_ids": [8, 9, END]}]
model = build_tiny("llama")

report = hermetic.probe(
    lambda batch: model(**batch.model_inputs()), documents=documents
)
"""),
        fix="Mask labels by position, never by token value: every supervised token except a document's first has to be "
        "predicted.",
        sources=(
            "NVIDIA-NeMo/Megatron-Bridge#5213",
            "NVIDIA-NeMo/Megatron-Bridge#4660",
            "huggingface/trl#6668",
        ),
    ),
    Rule(
        code="HM403",
        name="shifted-twice-or-never",
        what="Each token is trained to predict itself, or the one after the next.",
        why="The model shifts labels that were shifted before, or a loss of your own does not shift them at all. The "
        "loss looks like any other: a packer's own labels, which are shifted already, gave 4.49 in a transformers "
        "model where the mean over tokens is 4.68.",
        bad=run("""\
import hermetic
from hermetic.atlas import build_tiny

model = build_tiny("llama")


def forward(batch):
    inputs = batch.model_inputs()
    # and the model shifts them, too
    inputs["labels"] = inputs["labels"].roll(-1)
    return model(**inputs)


report = hermetic.probe(forward)
"""),
        good=WITH_LABELS,
        fix="Pass labels aligned with input_ids (unshifted), with -100 where nothing is to be learned, and let the "
        "loss shift them once.",
        sources=(
            "measured: labels of seqpacker 0.1.3, given to a model of transformers 5.24.0",
            "pytorch/torchtitan#2755",
        ),
    ),
)
