"""The same 4-D mask as floats, one for "may see" and zero for "may not".

A float mask is added to the scores, by sdpa as by eager attention: everybody is seen, some a little better.
Reported: https://github.com/huggingface/transformers/pull/46507 (the documentation of when which dtype is right)
Silent because the shapes fit, and a boolean mask with the same numbers isolates.
Way out: dense_mask (booleans, for sdpa) or additive_mask.
The probe says: leak, HM100, HM109.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic
from hermetic.batch.dialects import dense_mask

model = build(LlamaForCausalLM)


def masked(batch: hermetic.PackedBatch, dtype: torch.dtype) -> torch.Tensor:
    """The mask in one dtype or another."""
    mask = dense_mask(batch.boundaries).to(dtype)[None, None]
    positions = batch.boundaries.position_ids[None]
    return model(input_ids=batch.input_ids[None], attention_mask=mask, position_ids=positions, use_cache=False).logits


show("floats", hermetic.probe(lambda batch: masked(batch, torch.float32)))
show("booleans", hermetic.probe(lambda batch: masked(batch, torch.bool)))
