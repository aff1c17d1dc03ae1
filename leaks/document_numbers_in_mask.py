"""The number of each token's document in a 2-D attention_mask: 1 1 1 2 2.

The numbers once reached patched attention functions. A 2-D mask is turned into booleans first, so 1 and 2 both
mean "look at it", and the row is one document.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Positions restart and the cache is off, so that the mask alone is at fault."""
    inputs = batch.model_inputs()
    numbers = (batch.boundaries.document_ids + 1)[None]
    return model(**inputs, attention_mask=numbers).logits


show(hermetic.probe(forward))
