"""Doge, as it was: every token sees the ones after it.

sdpa needs no mask for causal attention, so transformers makes none. A model that lays a bias of its own over the mask
then hands over the bias alone, and whoever gets a mask is not causal by itself.
Reported: https://github.com/huggingface/transformers/pull/48821 (perplexity 5 in place of 16)
Silent because loss looks wonderful. Here it is Llama with such a bias, for Doge has been mended.
Way out: ask for a mask whatever it holds: allow_is_causal_skip=False.
The probe says: not_causal, HM105.
"""

import torch
from tiny import build, show
from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import hermetic

EQUAL_LENGTHS = (8, 8, 8)
FOR_EQUAL_LENGTHS = ("swap", "gradient", "solo", "causality")
model = build(LlamaForCausalLM)


def biased(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """A bias of the model's own, in the place of a mask or on top of it."""
    bias = torch.zeros(1, 1, query.shape[2], key.shape[2])
    total = bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    return sdpa_attention_forward(module, query, key, value, total, **options)


def one_to_a_row(batch: hermetic.PackedBatch) -> torch.Tensor:
    """Documents of one length in rows of their own: not packed, so no mask is made."""
    rows = batch.input_ids.view(batch.boundaries.num_documents, -1)
    return model(input_ids=rows, use_cache=False).logits.flatten(0, 1)


AttentionInterface.register("biased", biased)
AttentionMaskInterface.register("biased", sdpa_mask)
model.set_attn_implementation("biased")
show("a bias, no mask", hermetic.probe(one_to_a_row, lengths=EQUAL_LENGTHS, instruments=FOR_EQUAL_LENGTHS))
AttentionMaskInterface.register("biased", lambda **request: sdpa_mask(**(request | {"allow_is_causal_skip": False})))
show("a bias on a mask", hermetic.probe(one_to_a_row, lengths=EQUAL_LENGTHS, instruments=FOR_EQUAL_LENGTHS))
