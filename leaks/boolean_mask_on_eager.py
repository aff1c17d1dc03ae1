"""A correct 4-D mask of booleans, given to eager attention.

Eager attention adds its mask to the scores. True becomes +1 and False becomes +0: a nudge, not a wall. With sdpa
the very same mask isolates.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic
from hermetic.batch.dialects import dense_mask

model = build(LlamaForCausalLM)
model.set_attn_implementation("eager")


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """The mask says exactly who may see whom."""
    mask = dense_mask(batch.boundaries)[None, None]
    positions = batch.boundaries.position_ids[None]
    return model(input_ids=batch.input_ids[None], attention_mask=mask, position_ids=positions, use_cache=False).logits


show(hermetic.probe(forward))
