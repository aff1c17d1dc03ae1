"""Documents one after another in a row, cut where it is full, and nothing that says where they start.

The oldest way to pack. Users learn late that an end-of-text token between documents keeps nobody from looking past it.
Reported: https://github.com/huggingface/trl/issues/1230 and https://github.com/Lightning-AI/litgpt/issues/620
Silent because it is ordinary causal language modelling, on text that nobody wrote.
Way out: carry the boundaries (hermetic.collate), and hermetic.seal.
The probe says: leak, HM100, HM201.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic

model = build(LlamaForCausalLM)


def wrapped(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Token ids, as a stream of text is trained on."""
    return model(input_ids=batch.input_ids[None], use_cache=False).logits


show("token ids alone", hermetic.probe(wrapped))
hermetic.seal(model)
show("with boundaries, sealed", hermetic.probe(model))
