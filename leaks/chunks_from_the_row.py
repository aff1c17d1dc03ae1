"""Llama 4 attends in chunks, and the chunks are counted from the start of the row.

A document that starts in the middle of a chunk has its own first chunk cut in two.
Reported: https://github.com/huggingface/transformers/issues/37351 (chunk masks; transformers counts rightly by now)
Silent because no document reaches another: each loses a little of its own.
Way out: chunks counted from the document's start (dense_mask(boundaries, chunk=4)), or hermetic.seal.
The probe says: distortion, HM205, HM202, HM203.
"""

import torch
from tiny import build, show
from transformers import Llama4ForCausalLM

import hermetic
from hermetic.batch.dialects import dense_mask

CHUNK = 4
model = build(
    Llama4ForCausalLM,
    head_dim=8,
    attention_chunk_size=CHUNK,
    intermediate_size_mlp=48,
    num_local_experts=2,
    layer_types=["chunked_attention", "chunked_attention"],
    no_rope_layers=[1, 1],
)


def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Blocks of documents, and in them chunks of the row."""
    chunk = torch.arange(batch.num_slots) // CHUNK
    mask = dense_mask(batch.boundaries) & (chunk[:, None] == chunk[None, :])
    positions = batch.boundaries.position_ids[None]
    return model(
        input_ids=batch.input_ids[None], attention_mask=mask[None, None], position_ids=positions, use_cache=False
    ).logits


show("chunks of the row", hermetic.probe(forward))
hermetic.seal(model)
show("chunks of the document, sealed", hermetic.probe(model))
