"""Dynamic NTK and longrope: rotary frequencies depend on the largest position in the row.

A short document beside one that is longer than the original context is rotated as if it were long too.
Reported: https://github.com/QwenLM/Qwen/issues/401 and https://github.com/ggml-org/llama.cpp/pull/24875 (batches)
Silent because nobody reaches anybody: a neighbour's length is felt, not its content, and only beyond the context.
Way out: hermetic.seal, which makes these frequencies for each length by itself.
The probe says: row_length_dependent, HM204, HM202, HM203.
"""

from tiny import build, show
from transformers import LlamaForCausalLM, Phi3ForCausalLM

import hermetic

LENGTHS = (30, 13, 6, 1)
CONTEXT = 16
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "rope_theta": 1e4,
    "original_max_position_embeddings": CONTEXT,
}
llama = build(LlamaForCausalLM, rope_parameters=DYNAMIC, max_position_embeddings=CONTEXT)
phi3 = build(Phi3ForCausalLM, rope_parameters=LONGROPE, original_max_position_embeddings=CONTEXT, pad_token_id=0)

for kind, model in (("dynamic NTK", llama), ("longrope", phi3)):
    show(kind, hermetic.probe(model, lengths=LENGTHS))
    hermetic.seal(model)
    show(f"{kind}, sealed", hermetic.probe(model, lengths=LENGTHS))
