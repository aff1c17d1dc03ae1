"""GPT-OSS: everything given correctly, and the model does not pass it on.

Positions restart, there is no mask and no cache. This family does not hand its positions to the function that
builds the mask, so the mask never learns of the documents. Llama, called in the same way, is sealed.
"""

from tiny import build, show
from transformers import GptOssForCausalLM

import hermetic

model = build(GptOssForCausalLM, head_dim=8, num_local_experts=2, num_experts_per_tok=1)

show(hermetic.probe(model))
