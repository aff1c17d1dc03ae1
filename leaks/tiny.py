"""Tiny models in which a leak shows, and what every script here prints: as it is called, and the way out."""

import logging
from collections.abc import Callable

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import flash_attention_mask
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

import hermetic
from hermetic.probe import LeakReport

logging.getLogger("transformers").setLevel(logging.ERROR)  # no news about kernels that are not installed

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def build(family: type[PreTrainedModel], **changes: object) -> PreTrainedModel:
    """A model of two layers whose weight matrices have a standard deviation of 0.2.

    With the usual 0.02 of an untrained model a leak is there all the same, but moves logits by little.
    """
    torch.manual_seed(0)
    model = family(family.config_class(**(SIZES | changes)))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def by_positions(model: torch.nn.Module) -> Callable[[hermetic.PackedBatch], torch.Tensor]:
    """Call a model as collators that flatten do: token ids, positions that restart, no cache."""

    def forward(batch: hermetic.PackedBatch) -> torch.Tensor:
        row, positions = batch.input_ids[None], batch.boundaries.position_ids[None]
        return model(input_ids=row, position_ids=positions, use_cache=False).logits

    return forward


def use_edges(model: PreTrainedModel) -> None:
    """Let a model attend as flash_attention_2 does, on the CPU: documents are what ``cu_seq_lens_q`` says.

    Without edges they are made from positions by transformers' own function.
    """
    AttentionInterface.register("edges_on_cpu", _attend_by_edges)
    AttentionMaskInterface.register("edges_on_cpu", flash_attention_mask)
    model.set_attn_implementation("edges_on_cpu")


def _attend_by_edges(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: None,
    *,
    position_ids: torch.Tensor,
    cu_seq_lens_q: torch.Tensor | None = None,
    **_options: object,
) -> tuple[torch.Tensor, None]:
    edges = prepare_fa_kwargs_from_position_ids(position_ids)[0][0] if cu_seq_lens_q is None else cu_seq_lens_q
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return hermetic.packed_attention(q, k, v, hermetic.Boundaries.from_cu_seqlens(edges))[None], None


def show(call: str, report: LeakReport) -> None:
    """Print how the model was called, what was measured, each finding's code, and the verdict."""
    print(f"{call}:")
    print(f"  swapping a document moves another one's logits by up to {float(report.influence.max()):.1f}")
    print(f"  packing moves a document's own logits by up to {float(report.equivalence.max()):.1f}")
    for finding in report.findings:
        print(f"  {finding.code} {finding.what}, in {finding.where}")
    print(f"  verdict: {report.verdict}")
