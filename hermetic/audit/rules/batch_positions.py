"""Topic 2, over a batch: positions and lengths."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.batch_examples import batch, check_of

RULES: Final = (
    Rule(
        code="HM260",
        name="longest-length-too-small",
        what="max_length_q, max_seqlen or their like is below the longest document.",
        why="A kernel launches blocks for so many tokens and leaves out what lies beyond: those tokens get no "
        "output, without a word. Too large a number only costs time.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seqlens": [0, 3, 5],
    "max_seqlen": 2,
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seqlens": [0, 3, 5],
    "max_seqlen": 3,
}
"""),
        fix="Compute it from the same edges, as a Python int, where the batch is made.",
        sources=(
            "Dao-AILab/flash-attention#1773",
            "hermetic/batch/dialects/common.py",
        ),
        check=check_of("HM260"),
    ),
    Rule(
        code="HM261",
        name="positions-jump",
        what="Positions do not count by one inside a document.",
        why="Whoever looks at steps starts a document at the jump: the mask helper of transformers splits [0, 1, 2, "
        "10, 11], its flash helper does not. Positions cut or padded apart from the tokens do this.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "document_ids": [[0, 0, 0, 0, 0]],
    "cu_seqlens": [0, 5],
    "position_ids": [[0, 1, 2, 10, 11]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seqlens": [0, 5],
    "position_ids": [[0, 1, 2, 3, 4]],
}
"""),
        fix="Count positions by one in each document: Boundaries.position_ids.",
        sources=(
            "hiyouga/LlamaFactory#10736",
            "NVIDIA-NeMo/Automodel#2172",
            "docs/audit-batch.md",
        ),
        check=check_of("HM261"),
    ),
    Rule(
        code="HM262",
        name="documents-start-elsewhere",
        what="Documents start at different positions, or all at one that no model counts from.",
        why="A model with learned positions sees a document elsewhere than alone: left padding that was counted "
        "moved the log-probability of a sequence by 34 in GPT-2. The flash helper of transformers finds only "
        "documents that start at the smallest position.",
        bad=batch("""\
batch = {
    "input_ids": [[0, 0, 5, 6, 7], [5, 6, 7, 8, 9]],
    "attention_mask": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
    "position_ids": [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[0, 0, 5, 6, 7], [5, 6, 7, 8, 9]],
    "attention_mask": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
    "position_ids": [[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]],
}
"""),
        fix="Start each document at 0, or in models of RoBERTa's kind at the padding id plus 1; count no padding.",
        sources=(
            "huggingface/trl#6800",
            "huggingface/transformers#47496",
        ),
        check=check_of("HM262"),
    ),
)
