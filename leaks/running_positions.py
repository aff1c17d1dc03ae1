"""The mask is right, and positions count on through the row.

Rotary positions are relative, so Llama's logits do not differ by a digit; with learned positions (GPT-2) they do, and
where a context is stretched by the largest position, they do too. Positions have to be looked at, not their effect.
Reported: https://github.com/hiyouga/LlamaFactory/pull/7318
Silent because it is without effect on the models that one tries.
Way out: positions that restart (hermetic.collate), or none, to a sealed model.
The probe says: distortion, HM201.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic
from hermetic.batch.dialects import additive_mask

model = build(LlamaForCausalLM)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """A block for each document, and no positions."""
    mask = additive_mask(batch.boundaries, dtype=torch.float32)
    return model(input_ids=batch.input_ids[None], attention_mask=mask, use_cache=False).logits


show("a mask alone", hermetic.probe(forward))
hermetic.seal(model)
show("boundaries, sealed", hermetic.probe(model))
