"""Documents of a single token are joined to the next one.

A rule for borders that reads well, "the position falls", does not see a position that stays 0.
Reported: https://github.com/modelscope/ms-swift/issues/9903
Silent because single tokens are rare, and everything else is right.
Way out: a step that is not +1 is a border; better, boundaries that are carried and not guessed.
The probe says: leak, HM100, HM110.
"""

import torch
from tiny import build, show, use_edges
from transformers import LlamaForCausalLM

import hermetic

LENGTHS = (11, 1, 13, 6)
model = build(LlamaForCausalLM)
use_edges(model)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Edges wherever the position falls."""
    inputs = batch.model_inputs()
    steps = inputs["position_ids"][0].diff()
    inner = torch.nonzero(steps < 0).flatten() + 1
    edges = torch.tensor([0, *inner.tolist(), batch.num_slots], dtype=torch.int32)
    return model(**(inputs | {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges})).logits


show("edges where positions fall", hermetic.probe(forward, lengths=LENGTHS))
show("edges from boundaries", hermetic.probe(model, lengths=LENGTHS))
