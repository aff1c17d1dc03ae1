"""Topic 4, over a batch: what its labels train."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.batch_examples import LABELS, batch, check_of

RULES: Final = (
    Rule(
        code="HM460",
        name="labels-shifted-back",
        what="Labels hold the token before theirs.",
        why="Each token learns what it has just read; the loss falls to 0 and nothing is learned. A roll by +1 in "
        "place of -1 does it.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "labels": [[-100, 5, 6, 7, 8]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "labels": [[-100, 6, 7, 8, 9]],
}
"""),
        fix="Pass labels as copies of input_ids, with -100 where nothing is to be learned.",
        sources=(
            "verl-project/verl#6475",
            "pytorch/torchtitan#2755",
        ),
        check=check_of("HM460"),
    ),
    Rule(
        code="HM461",
        name="labels-on-padding",
        what="Padded slots have labels.",
        why="The model is trained to write padding, and the mean is taken over too many tokens. A mask by the value "
        "of the pad token misses these where the padding has another value.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 0, 0]],
    "attention_mask": [[1, 1, 1, 0, 0]],
    "labels": [[-100, 6, 7, 0, 0]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 0, 0]],
    "attention_mask": [[1, 1, 1, 0, 0]],
    "labels": [[-100, 6, 7, -100, -100]],
}
"""),
        fix="Set labels to -100 where there is padding, by position.",
        sources=(
            "NVIDIA-NeMo/Megatron-Bridge#5213",
            "NVIDIA/Megatron-LM#1711",
        ),
        check=check_of("HM461"),
    ),
    Rule(
        code="HM462",
        name="nothing-supervised",
        what="No token of the batch is supervised.",
        why="The mean over no tokens is 0 divided by 0: a loss of NaN, or one that is logged as 0.0 while the run "
        "looks healthy. Truncation after the prompt was longest did it.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 4]],
    "labels": [[-100, -100, -100, -100, -100, -100]],
}
"""),
        good=LABELS,
        fix="Count supervised tokens after truncation; leave such batches out, or divide by at least 1.",
        sources=(
            "huggingface/trl#6668",
            "NVIDIA/Megatron-LM#1764",
        ),
        check=check_of("HM462"),
    ),
    Rule(
        code="HM463",
        name="end-masked-by-value",
        what="The token that ends texts has no label anywhere, for it is also the one that pads.",
        why="Padding was masked by value, and each document's end with it: the model never learns to stop. Of the "
        "labels of two documents with the ends 2, [5, 2, 6, 2] and [7, 2], three of four are lost.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 2, 6, 2, 7, 2, 2, 2]],
    "labels": [[-100, -100, 6, -100, -100, -100, -100, -100]],
    "seq_lengths": [[4, 2]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 2, 6, 2, 7, 2, 2, 2]],
    "labels": [[-100, 2, 6, 2, -100, 2, -100, -100]],
    "seq_lengths": [[4, 2]],
}
"""),
        fix="Mask padding by position, so that ends of documents keep their labels.",
        sources=(
            "NVIDIA-NeMo/Megatron-Bridge#5213",
            "NVIDIA-NeMo/Megatron-Bridge#4660",
            "NVIDIA-NeMo/Speech#14437",
        ),
        check=check_of("HM463"),
    ),
    Rule(
        code="HM464",
        name="two-sets-of-labels",
        what="labels and shift_labels are not the same, one slot apart.",
        why="Which of them a loss takes is up to the model, so the same batch trains two things. One of the two was "
        "masked, padded or sliced, and the other was not.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8]],
    "labels": [[-100, -100, 7, 8]],
    "shift_labels": [[6, 7, 8, -100]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8]],
    "labels": [[-100, -100, 7, 8]],
    "shift_labels": [[-100, 7, 8, -100]],
}
"""),
        fix="Make one from the other: hermetic.batch.dialects.shift_labels.",
        sources=("verl-project/verl#5957",),
        check=check_of("HM464"),
    ),
)
