"""Perfect positions, no mask, and use_cache left at its default.

A configuration says use_cache=True unless told otherwise, also in training. With a cache, positions that restart are
not read as packed documents.
Reported: https://github.com/huggingface/transformers/pull/39194 and 42586
Silent because transformers' own Trainer turns the cache off; a loop of one's own does not.
Way out: use_cache=False, or hermetic.seal.
The probe says: leak, HM100, HM102.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Token ids and positions that restart: what flattening collators give a model."""
    return model(input_ids=batch.input_ids[None], position_ids=batch.boundaries.position_ids[None]).logits


show("use_cache left alone", hermetic.probe(forward))
hermetic.seal(model)
show("the same call, sealed", hermetic.probe(forward))
