"""Mistral with a window of 4, and a mask of blocks of one's own: the window is gone.

A 4-D mask is taken as it is; the model does not lay its window over it. Rows of one document are given no mask, and
keep theirs.
Reported: https://github.com/axolotl-ai-cloud/axolotl/issues/2449 and https://github.com/huggingface/transformers/pull/32522
Silent because documents are isolated, and short ones never fill the window.
Way out: the window in the mask (dense_mask takes it), or hermetic.seal.
The probe says: distortion, HM205, HM202, HM203.
"""

import torch
from tiny import build, show
from transformers import MistralForCausalLM

import hermetic
from hermetic.batch.dialects import dense_mask

model = build(MistralForCausalLM, sliding_window=4)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """A mask where there is something to mask."""
    boundaries = batch.boundaries
    mask = dense_mask(boundaries)[None, None] if boundaries.num_documents > 1 else None
    positions = boundaries.position_ids[None]
    return model(input_ids=batch.input_ids[None], attention_mask=mask, position_ids=positions, use_cache=False).logits


show("a mask without the window", hermetic.probe(forward))
hermetic.seal(model)
show("sealed", hermetic.probe(model))
