"""Topic 1, over a batch: what it says about documents, and who would read it otherwise."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.batch_examples import ADDITIVE, EDGES, MODEL_INPUTS, POSITIONS, batch, check_of

RULES: Final = (
    Rule(
        code="HM160",
        name="edges-without-leading-zero",
        what="cu_seqlens does not start at 0.",
        why="The tokens before the first edge belong to no sequence: a kernel never computes them, and their output "
        "is whatever was in memory. The flash helper of transformers makes such edges, [3, 6], from the "
        "positions [3, 4, 5, 0, 1, 2].",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seqlens": [3, 5],
}
"""),
        good=EDGES,
        fix="Put the 0 in front: one edge more than there are documents.",
        sources=(
            "huggingface/transformers#39814",
            "NVIDIA-NeMo/Megatron-Bridge#4400",
            "docs/audit-batch.md",
        ),
        check=check_of("HM160"),
    ),
    Rule(
        code="HM161",
        name="falling-edges",
        what="cu_seqlens falls, such as where it is filled up with -1.",
        why="A kernel takes a negative length for a huge one, or reads a sentinel as an edge; the search for the "
        "first sentinel cut all edges away where the first edge, 0, was the smallest value.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seqlens": [0, 3, 5, -1, -1],
}
"""),
        good=EDGES,
        fix="Make edges by a cumulative sum of lengths. To fill them up to one size, repeat the last edge, and carry "
        "the number of documents beside them.",
        sources=(
            "NVIDIA-NeMo/Megatron-Bridge#4400",
            "NVIDIA-NeMo/Megatron-Bridge#2246",
        ),
        check=check_of("HM161"),
    ),
    Rule(
        code="HM162",
        name="edges-end-elsewhere",
        what="cu_seqlens ends before or after the tokens, or the lengths of a row sum to more than the row.",
        why="Slots after the last edge are never written by the kernel: their gradients were NaN in flash attention, "
        "in FLA and in torch. Edges beyond the tokens are an illegal memory access; three planes of positions "
        "taken for one gave three times the tokens.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
    "cu_seqlens": [0, 3, 5],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
    "cu_seqlens": [0, 3, 5, 8],
}
"""),
        fix="End the edges at the number of slots: a padded tail is one more segment.",
        sources=(
            "pytorch/pytorch#186786",
            "fla-org/flash-linear-attention#892",
            "Dao-AILab/flash-attention#2381",
        ),
        check=check_of("HM162"),
    ),
    Rule(
        code="HM163",
        name="edges-kernels-refuse",
        what="cu_seqlens or seq_idx is not int32, or lies on another device than the tokens.",
        why="Variable-length kernels read 32-bit integers and check only that; 64-bit edges are refused at best. "
        "Edges on the host beside tokens on the device are copied in every layer, or read as an address.",
        bad=batch("""\
import numpy as np

batch = {
    "input_ids": np.array([[5, 6, 7, 8, 9]]),
    "cu_seqlens": np.array([0, 3, 5]),
}
"""),
        good=batch("""\
import numpy as np

batch = {
    "input_ids": np.array([[5, 6, 7, 8, 9]]),
    "cu_seqlens": np.array([0, 3, 5], dtype=np.int32),
}
"""),
        fix="Make them once, where the batch is made, with dtype=torch.int32, and move them with the batch.",
        sources=(
            "huggingface/transformers#39213",
            "hermetic/batch/dialects/common.py",
        ),
        check=check_of("HM163"),
    ),
    Rule(
        code="HM164",
        name="flash-arguments-incomplete",
        what="Some of cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k are missing.",
        why="transformers hands them to flash attention only if all four are there. Otherwise it says nothing and "
        "looks at positions, which then have to restart; without them each row is one document.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "cu_seq_lens_q": [0, 3, 5],
    "cu_seq_lens_k": [0, 3, 5],
    "max_length_q": 3,
}
"""),
        good=MODEL_INPUTS,
        fix="Pass all four, as PackedBatch.model_inputs() does, or none and positions that restart.",
        sources=(
            "areal-project/AReaL#1442",
            "docs/audit-batch.md",
        ),
        check=check_of("HM164"),
    ),
    Rule(
        code="HM165",
        name="number-comes-back",
        what="The number of a document stands at two places of a row.",
        why="What compares numbers, as masks by segment ids do, joins the two documents; what looks for changes, as "
        "state kernels do, parts them. One batch, two computations.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "segment_ids": [[1, 1, 2, 2, 1]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "segment_ids": [[1, 1, 2, 2, 3]],
}
"""),
        fix="Number the documents of a row in their order, each number once.",
        sources=(
            "OpenEvaByte/evabyte#10",
            "docs/audit-batch.md",
        ),
        check=check_of("HM165"),
    ),
    Rule(
        code="HM166",
        name="padding-in-the-last-document",
        what="Padding belongs to the last document of its row.",
        why="A document grows by its padding: real edges were taken for padded ones, and pads counted as tokens. "
        "Losses, lengths and the longest length are of another document; a layer that looks ahead, or a mean "
        "over the document, sees padding.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
    "cu_seqlens": [0, 3, 8],
    "seq_lengths": [[3, 2]],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
    "cu_seqlens": [0, 3, 5, 8],
    "seq_lengths": [[3, 2]],
}
"""),
        fix="Make the padded tail one more segment at the end, or no part of any document.",
        sources=(
            "NVIDIA/Megatron-LM#5298",
            "NVIDIA/Megatron-LM#4495",
        ),
        check=check_of("HM166"),
    ),
    Rule(
        code="HM167",
        name="a-document-for-each-pad",
        what="Each padded slot is a document of its own.",
        why="Edges grow with the padding, so shapes change and compiled code is compiled again at every step; "
        "kernels run a sequence for each. TRL pads positions with zeros: pad_to_multiple_of=8 gave the edges [0, "
        "3, 5, 6, 7, 8].",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0, 0, 0]],
    "labels": [[-100, 6, 7, -100, 9, -100, -100, -100]],
    "position_ids": [[0, 1, 2, 0, 1, 0, 0, 0]],
}
"""),
        good=MODEL_INPUTS,
        fix="Let positions of the tail count from 0 to its end, and give it one edge.",
        sources=(
            "allenai/OLMo-core#500",
            "pytorch/torchtitan#2823",
            "docs/audit-batch.md",
        ),
        check=check_of("HM167"),
    ),
    Rule(
        code="HM168",
        name="helpers-read-differently",
        what="The mask helper and the flash helper of transformers read other documents from the positions.",
        why="One starts a document where the step is not +1, the other where the position is the smallest one, and "
        "only in a batch of one row. The positions [3, 4, 5, 0, 1, 2] are two documents by the first; by the "
        "second the first three tokens are in none.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 4]],
    "position_ids": [[3, 4, 5, 0, 1, 2]],
}
"""),
        good=POSITIONS,
        fix="Start every document at the same position, in one flat row, with its padding as one segment; or pass "
        "all four arguments of flash attention.",
        sources=(
            "huggingface/transformers#39814",
            "huggingface/transformers#47496",
            "axolotl-ai-cloud/axolotl#1375",
        ),
        check=check_of("HM168"),
    ),
    Rule(
        code="HM169",
        name="document-over-rows",
        what="Edges over the stream have none where a row starts, so a document runs on into the next row.",
        why="The last document of a row and the first of the next are one to a kernel that sees the flat stream. "
        "With micro-batches above 1 packed documents attended to each other.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8], [9, 4, 3, 2]],
    "cu_seqlens": [0, 2, 6, 8],
}
"""),
        good=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8], [9, 4, 3, 2]],
    "cu_seqlens": [0, 2, 4, 6, 8],
}
"""),
        fix="Count edges over all rows in one stream, with an edge at each row's start.",
        sources=("axolotl-ai-cloud/axolotl#1375",),
        check=check_of("HM169"),
    ),
    Rule(
        code="HM170",
        name="padding-mask-hides-documents",
        what="A 2-D attention_mask with zeros stands beside packed documents.",
        why="With any 2-D mask transformers looks for no documents on sdpa, eager and flex: 4.3 in the logits of a "
        "tiny Llama. Flash attention takes what is not 0 in a row for one document, and ignores edges that are "
        "passed.",
        bad=batch("""\
batch = {
    "input_ids": [[5, 6, 7, 8, 9, 0]],
    "position_ids": [[0, 1, 2, 0, 1, 0]],
    "attention_mask": [[1, 1, 1, 1, 1, 0]],
}
"""),
        good=MODEL_INPUTS,
        fix="Leave the mask out and make the padding one more segment; or seal the model.",
        sources=(
            "huggingface/transformers#46634",
            "axolotl-ai-cloud/axolotl#2449",
        ),
        check=check_of("HM170"),
    ),
    Rule(
        code="HM171",
        name="planes-without-text",
        what="Multi-axis positions of packed documents have no plane for text.",
        why="transformers looks for documents in the first of four planes. Of three it takes none, so packed rows of "
        "Qwen2-VL and its kin are not isolated; taken for a row of positions, they gave edges for three times "
        "the tokens.",
        bad=batch("""\
import numpy as np

restart = [0, 1, 2, 0, 1]
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "position_ids": np.array([restart] * 3)[:, None],
}
"""),
        good=batch("""\
import numpy as np

restart = [0, 1, 2, 0, 1]
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "position_ids": np.array([restart] * 4)[:, None],
}
"""),
        fix="Put a plane in front that counts tokens from 0 in each document: [text, time, height, width].",
        sources=(
            "huggingface/transformers#44911",
            "axolotl-ai-cloud/axolotl#3817",
        ),
        check=check_of("HM171"),
    ),
    Rule(
        code="HM172",
        name="mask-not-finite",
        what="A mask that is added to scores holds NaN or plus infinity.",
        why="Every score of the row becomes NaN, and the loss after it. The usual source is 0 times minus infinity, "
        "in a mask made by multiplying.",
        bad=batch("""\
import numpy as np

allowed = np.tril(np.ones((5, 5), dtype=np.float32))
with np.errstate(invalid="ignore"):
    mask = (1 - allowed) * -np.inf
batch = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "attention_mask": mask[None, None],
}
"""),
        good=ADDITIVE,
        fix="Fill in, do not multiply: hermetic.batch.dialects.additive_mask.",
        sources=(
            "NVIDIA/Megatron-LM#1764",
            "NVIDIA-NeMo/Automodel#2826",
        ),
        check=check_of("HM172"),
    ),
    Rule(
        code="HM173",
        name="mask-lets-through",
        what="A mask over pairs of tokens lets a token see one of another document.",
        why="The mask is the isolation, and has a hole. An edge off by one opens a block of cells; a plain causal "
        "mask over documents of 3 and 5 tokens opens 15 of its 36.",
        bad=batch("""\
import torch
from hermetic import Boundaries

lowest = torch.finfo(torch.float32).min
mask = torch.full((5, 5), lowest).triu(diagonal=1)
batch = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9]]),
    "attention_mask": mask[None, None],
    "document_ids": Boundaries.from_lengths([3, 2]).document_ids[None],
}
"""),
        good=ADDITIVE,
        fix="Make the mask from the boundaries: hermetic.batch.dialects.additive_mask.",
        sources=(
            "NVIDIA-NeMo/Automodel#3802",
            "pytorch/pytorch#186786",
        ),
        check=check_of("HM173"),
    ),
    Rule(
        code="HM174",
        name="blind-slot",
        what="A padded slot sees nothing, not even itself.",
        why="With eager attention the softmax over a row of minus infinity is NaN, and the next layer multiplies it "
        "by 0 into every real token: measured, real rows became NaN. sdpa gave numbers.",
        bad=batch("""\
import torch
from hermetic import Boundaries
from hermetic.batch.dialects import dense_mask

seen = dense_mask(Boundaries.from_lengths([3, 2]), num_slots=6)
seen[5] = False
mask = torch.zeros(6, 6).masked_fill(~seen, -torch.inf)
batch = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 9, 0]]),
    "attention_mask": mask[None, None],
}
"""),
        good=ADDITIVE,
        fix="Let padding see itself, as a segment of its own, or use the dtype's lowest finite number.",
        sources=("NVIDIA-NeMo/Automodel#2826",),
        check=check_of("HM174"),
    ),
)
