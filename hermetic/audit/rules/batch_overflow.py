"""Topic 7, over a batch: what 32-bit integers cannot count."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.batch_examples import ADDITIVE, POSITIONS, batch, check_of

RULES: Final = (
    Rule(
        code="HM760",
        name="beyond-int32",
        what="The batch has more elements than a 32-bit offset counts.",
        why="Kernels index tokens, heads and elements with 32-bit integers: beyond 2,147,483,647 they read and write "
        "elsewhere, and gradients were corrupt. A million tokens of 32 heads of 128 are 4,294,967,296 elements.",
        bad=batch("""\
import numpy as np

# one number that is repeated, for 2**31 of them are 17 GB
batch = {"input_ids": np.broadcast_to(np.int64(5), (1, 2**31))}
"""),
        good=POSITIONS,
        fix="Put fewer tokens into one call.",
        sources=(
            "Dao-AILab/flash-attention#1311",
            "Dao-AILab/flash-attention#2611",
        ),
        check=check_of("HM760"),
    ),
    Rule(
        code="HM761",
        name="square-beyond-int32",
        what="A mask is over pairs of more than 46,340 tokens.",
        why="Its cells are numbered with 32-bit integers where a kernel computes row times width plus column, and "
        "46,341 squared is above 2**31 - 1: the mask was silently wrong beyond that length, and crashed at 64k.",
        bad=batch("""\
import numpy as np

# one number that is repeated, for the cells are 8.6 GB
mask = np.broadcast_to(np.float32(0), (1, 1, 46341, 46341))
batch = {
    "input_ids": np.arange(46341)[None],
    "attention_mask": mask,
}
"""),
        good=ADDITIVE,
        fix="Compare one number of a document per token, with no table over pairs.",
        sources=("NVIDIA-NeMo/Automodel#3802",),
        check=check_of("HM761"),
    ),
)
