"""Tiny models in which a leak shows, and the last line that every script here prints."""

import logging

import torch
from transformers import PreTrainedModel

from hermetic.probe import LeakReport

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
    logging.getLogger("transformers").setLevel(logging.ERROR)  # no news about kernels that are not installed
    torch.manual_seed(0)
    model = family(family.config_class(**(SIZES | changes)))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def show(report: LeakReport) -> None:
    """Print how far the worst document moves, each finding's code, and last the verdict."""
    print(f"swapping a document moves another one's logits by up to {float(report.influence.max()):.1f}")
    for finding in report.findings:
        print(f"{finding.code} {finding.what}, in {finding.where}")
    print(f"verdict: {report.verdict}")
