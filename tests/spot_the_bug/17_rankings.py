"""Preference training in the manner of DPO over padding-free pairs, with a reward margin in the log."""

import torch
from torch.nn import functional


def pair(chosen, rejected):
    """The documents of both in one row."""
    cu_seqlens = torch.cat([chosen["cu_seqlens"], rejected["cu_seqlens"]])
    longest = max(chosen["max_seqlen"], rejected["max_seqlen"])
    return {
        "input_ids": torch.cat([chosen["input_ids"], rejected["input_ids"]]),
        "position_ids": torch.cat([chosen["position_ids"], rejected["position_ids"]]),
        "cu_seqlens": cu_seqlens,
        "max_seqlen": longest,
    }


def log_probs(model, batch, labels):
    logits = model(**batch)[:-1].float()
    tokens = -functional.cross_entropy(logits, labels[1:].clamp(min=0), reduction="none")
    supervised = labels[1:] != -100
    return torch.stack([part.sum() for part in (tokens * supervised).split(batch["lengths"])])


def loss(policy, reference, chosen, rejected, beta=0.1):
    """The loss of a batch of pairs, and the margin between their rewards."""
    labels = torch.cat([chosen["labels"], rejected["labels"]])
    batch = {**pair(chosen, rejected), "lengths": [*chosen["lengths"], *rejected["lengths"]]}
    with torch.no_grad():
        before = log_probs(reference, batch, labels)
    gained = log_probs(policy, batch, labels) - before
    better, worse = gained.chunk(2)
    return -functional.logsigmoid(beta * (better - worse)).mean(), float((better - worse).mean())
