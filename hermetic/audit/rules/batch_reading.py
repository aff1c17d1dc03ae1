"""Topic 6, over a batch: what cannot be read."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.batch_examples import MODEL_INPUTS, batch, check_of

RULES: Final = (
    Rule(
        code="HM660",
        name="unequal-lengths",
        what="A tensor has another number of values than the batch has tokens.",
        why="One of the tensors was padded or sliced apart from the others. With luck a shape error follows; "
        "without, each value belongs to another token. 1,234 tokens padded to 1,240 left the positions at 1,234.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
    "position_ids": [[0, 1, 2, 0, 1]],
}
"""),
        good=MODEL_INPUTS,
        fix="Pad every tensor of a row in one place and to one length.",
        sources=(
            "hiyouga/LlamaFactory#10736",
            "verl-project/verl#5957",
            "modelscope/ms-swift#10180",
        ),
        check=check_of("HM660"),
    ),
    Rule(
        code="HM661",
        name="negative-ids",
        what="Token ids are below 0.",
        why="An embedding has no such row: an illegal memory access on a device, an index error on a host. -100 of "
        "the labels in the ids, or a placeholder for an image, is the usual source.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, -100, -100]],
    "labels": [[5, 6, 7, -100, -100]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 0, 0]],
    "labels": [[5, 6, 7, -100, -100]],
}
"""),
        fix="Pad with an id that exists and set its label to -100; replace placeholders before the model.",
        sources=("hermetic/batch/packed_batch.py",),
        check=check_of("HM661"),
    ),
)
