"""RoBERTa starts to count at 2, and the collator that flattens documents starts at 0.

No document reaches another. Each is given positions that the model was never trained on, and one of them is padding's.
Reported: https://github.com/huggingface/transformers/issues/47496
Silent because nothing fails; embeddings just get worse.
Way out: hermetic.seal, which finds out where the model starts by itself.
The probe says: distortion, HM202, HM203.
"""

import torch
from tiny import build, show
from transformers import RobertaForCausalLM

import hermetic
from hermetic.batch.dialects import additive_mask

model = build(RobertaForCausalLM, is_decoder=True)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Flattened rows with positions and a mask of blocks; a document alone is left to the model."""
    row = batch.input_ids[None]
    if batch.boundaries.num_documents == 1:
        return model(input_ids=row, use_cache=False).logits
    mask, positions = additive_mask(batch.boundaries, dtype=torch.float32), batch.boundaries.position_ids[None]
    return model(input_ids=row, attention_mask=mask, position_ids=positions, use_cache=False).logits


show("positions from 0", hermetic.probe(forward))
hermetic.seal(model)
show("sealed", hermetic.probe(model))
