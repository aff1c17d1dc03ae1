"""Perfect positions, no mask, and use_cache left at its default.

A configuration says use_cache=True unless told otherwise, also in training: transformers' own Trainer turns it off, a
loop of one's own does not. With a cache, positions that restart are not read as packed documents.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Token ids and positions that restart: what flattening collators give a model."""
    return model(input_ids=batch.input_ids[None], position_ids=batch.boundaries.position_ids[None]).logits


show(hermetic.probe(forward))
