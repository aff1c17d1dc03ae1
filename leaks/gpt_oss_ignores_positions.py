"""GPT-OSS: everything given correctly, and the model does not pass it on.

Positions restart, there is no mask and no cache. This family does not hand its positions to the function that builds
the mask, so the mask never learns of the documents. AFMoE does not either.
Reported: https://github.com/huggingface/transformers/pull/39997
Silent because Llama, called in the same way, is sealed.
Way out: hermetic.seal.
The probe says: leak, HM100, HM108.
"""

from tiny import build, show
from transformers import GptOssForCausalLM

import hermetic

model = build(GptOssForCausalLM, head_dim=8, num_local_experts=2, num_experts_per_tok=1)

show("as it is", hermetic.probe(model))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(model))
