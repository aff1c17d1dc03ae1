"""Not packed at all: rows padded on the left, and positions left to a model with learned ones.

GPT-2 counts slots, pads included. How far a document is moved depends on the longest one beside it.
Reported: https://github.com/huggingface/trl/issues/6800
Silent because rotary models do not mind, and the mask is right.
Way out: positions counted over real tokens; or packed rows, which have no pads.
The probe says: row_length_dependent, HM204, HM202, HM203.
"""

import torch
from tiny import build, show
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2LMHeadModel

import hermetic

model = build(GPT2LMHeadModel)


def padded(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Each document in a row of its own, on the right."""
    documents = batch.unpack(batch.input_ids)
    ids = pad_sequence(documents, batch_first=True, padding_side="left")
    mask = pad_sequence([torch.ones_like(document) for document in documents], batch_first=True, padding_side="left")
    return model(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask.bool()]


show("padded on the left", hermetic.probe(padded))
hermetic.seal(model)
show("packed, sealed", hermetic.probe(model))
