"""A fragment keeps the positions of the document that it was cut from, and flash attention looks for the lowest.

Documents start, it takes it, wherever the position is the lowest of the row. One that starts at 5 is joined to the one
before it. sdpa splits at every step that is not +1, and isolates the very same batch.
Reported: https://github.com/huggingface/transformers/issues/39814 and https://github.com/huggingface/transformers/pull/47525
Silent because the same arguments are right on another attention.
Way out: boundaries that are carried and not guessed, with positions that restart.
The probe says: leak, HM100, HM201.
"""

import torch
from tiny import build, show, use_edges
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)
use_edges(model)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Document 1 is the rest of a longer one, of which 5 tokens are in another row."""
    numbers = batch.boundaries.document_ids
    positions = batch.boundaries.position_ids + 5 * (numbers == 1)
    return model(input_ids=batch.input_ids[None], position_ids=positions[None], use_cache=False).logits


show("edges from positions", hermetic.probe(forward))
show("edges from boundaries", hermetic.probe(model))
