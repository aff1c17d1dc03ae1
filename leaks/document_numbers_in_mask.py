"""The number of each token's document in a 2-D attention_mask: 1 1 1 2 2.

The numbers once reached patched attention functions. A 2-D mask is turned into booleans first, so 1 and 2 both mean
"look at it", and the row is one document.
Reported: https://github.com/axolotl-ai-cloud/axolotl/pull/3796
Silent because the patch that read the numbers is still there, and no longer called.
Way out: the numbers as document_ids, to a sealed model. In its mask it refuses them.
The probe says: leak, HM100, HM103.
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


def by_document_ids(batch: hermetic.PackedBatch) -> torch.Tensor:
    """The same numbers, by their name."""
    return model(input_ids=batch.input_ids[None], document_ids=batch.boundaries.document_ids[None]).logits


show("numbers in the mask", hermetic.probe(forward))
hermetic.seal(model)
show("numbers as document_ids, sealed", hermetic.probe(by_document_ids))
