"""A correct 4-D mask of booleans, given to eager attention.

Eager attention adds its mask to the scores. True becomes +1 and False becomes +0: a nudge, not a wall.
Reported: https://github.com/huggingface/transformers/pull/41443
Silent because with sdpa the very same mask isolates.
Way out: a mask that is added, 0 and the lowest number, as additive_mask makes it.
The probe says: leak, HM100, HM109.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic
from hermetic.batch.dialects import additive_mask, dense_mask

model = build(LlamaForCausalLM)
model.set_attn_implementation("eager")


def masked(batch: hermetic.PackedBatch, mask: torch.Tensor) -> torch.Tensor:
    """The mask, ``[1, 1, T, T]``, says exactly who may see whom."""
    row, positions = batch.input_ids[None], batch.boundaries.position_ids[None]
    return model(input_ids=row, attention_mask=mask, position_ids=positions, use_cache=False).logits


def with_booleans(batch: hermetic.PackedBatch) -> torch.Tensor:
    """True and False."""
    return masked(batch, dense_mask(batch.boundaries)[None, None])


def with_numbers(batch: hermetic.PackedBatch) -> torch.Tensor:
    """0 and the lowest number there is."""
    return masked(batch, additive_mask(batch.boundaries, dtype=torch.float32))


show("booleans", hermetic.probe(with_booleans))
show("the same mask, added", hermetic.probe(with_numbers))
