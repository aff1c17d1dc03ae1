"""Perfect positions and an attention_mask of ones.

Packed documents are recognised by their positions only where no mask is given. A tokenizer, a padding collator or a
habit adds a mask that masks nothing, and isolation is off.
Reported: https://github.com/huggingface/transformers/pull/46634
Silent because the mask is well formed and the loss falls.
Way out: leave the mask out, or hermetic.seal.
The probe says: leak, HM100, HM101.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """The model's own packed inputs, and one argument more."""
    inputs = batch.model_inputs()
    return model(**inputs, attention_mask=torch.ones_like(inputs["input_ids"])).logits


show("with ones", hermetic.probe(forward))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(forward))
