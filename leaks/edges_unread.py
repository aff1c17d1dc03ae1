"""cu_seq_lens_q is given, and the attention is sdpa, which does not know it.

Only flash attention reads the edges. sdpa and eager attention look at positions, and those were left to the model.
Reported: https://github.com/areal-project/AReaL/issues/1442 and https://github.com/NVIDIA-NeMo/RL/issues/2105
Silent because the arguments are right, and are passed from hand to hand down to where nobody takes them.
Way out: hermetic.seal, which reads them whatever the attention is.
The probe says: leak, HM100, HM108, HM201.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """What varlen kernels ask for."""
    inputs = batch.model_inputs()
    del inputs["position_ids"]
    return model(**inputs).logits


show("edges, on sdpa", hermetic.probe(forward))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(forward))
