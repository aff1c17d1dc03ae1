"""Topic 3, found by running: a state or a convolution that goes on into the next document."""

from typing import Final

from hermetic.audit.rule import Rule
from hermetic.audit.rules.measured_examples import of, run

_BY_POSITIONS: Final = """

def forward(batch):
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None],
        position_ids=positions,
        use_cache=False,
    ).logits


report = hermetic.probe(forward, lengths=(5, 7, 4))
"""

RULES: Final = (
    Rule(
        code="HM301",
        name="state-carried-over",
        what="One document reaches another through a state that is not reset at the seam.",
        why="A recurrence (Mamba, gated delta net, linear attention with decay) remembers everything before it in the "
        "row, and no mask can stop it. In hybrids the attention layers in between do keep documents apart, so the "
        "model looks isolated: Qwen3.5 moved the next document's logits by 6.0 and Qwen3-Next by 4.0.",
        bad=run(of('build_tiny("qwen3_next")') + _BY_POSITIONS),
        good=run(of('hermetic.seal(build_tiny("qwen3_next"))') + _BY_POSITIONS),
        fix="Call hermetic.seal(model), which runs these layers document by document, or pass seq_idx and cu_seqlens "
        "to kernels that read them and probe again.",
        sources=(
            "huggingface/transformers#44717",
            "huggingface/transformers#35861",
            "modelscope/ms-swift#7981",
            "leaks/state_of_a_delta_net.py",
        ),
    ),
    Rule(
        code="HM302",
        name="convolution-over-the-seam",
        what="One document reaches the first tokens of the next one, through a short convolution.",
        why="A convolution over k tokens shows a document's first k - 1 tokens the end of the document before. An "
        "average over all tokens hides the effect on those few; in LFM2 their logits moved by 3.1.",
        bad=run(of('build_tiny("lfm2")') + _BY_POSITIONS),
        good=run(of('hermetic.seal(build_tiny("lfm2"))') + _BY_POSITIONS),
        fix="Call hermetic.seal(model), which runs the convolution document by document, or pass seq_idx to a kernel "
        "that reads it and probe again.",
        sources=("huggingface/transformers#46588", "leaks/short_convolution.py"),
    ),
)
