"""Preference training in the manner of DPO: chosen and rejected answers share one row without padding."""

import torch
from torch.nn import functional


def both(chosen, rejected):
    """One batch of two: its documents are the chosen answers, then the rejected ones."""
    first, second = chosen["cu_seq_lens_q"], rejected["cu_seq_lens_q"]
    edges = torch.cat([first, second[1:] + first[-1]])
    longest = max(chosen["max_length_q"], rejected["max_length_q"])
    return {
        "input_ids": torch.cat([chosen["input_ids"], rejected["input_ids"]], dim=1),
        "position_ids": torch.cat([chosen["position_ids"], rejected["position_ids"]], dim=1),
        "cu_seq_lens_q": edges,
        "cu_seq_lens_k": edges,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def log_probs(model, batch, labels):
    """The log-probability of each document's answer."""
    logits = model(**batch, use_cache=False).logits[0, :-1].float()
    targets = labels[0, 1:]
    tokens = -functional.cross_entropy(logits, targets.clamp(min=0), reduction="none")
    lengths = batch["cu_seq_lens_q"].diff().long()
    number = torch.repeat_interleave(torch.arange(len(lengths), device=tokens.device), lengths)
    return torch.zeros(len(lengths), device=tokens.device).index_add(0, number[1:], tokens * (targets != -100))


def loss(policy, reference, chosen, rejected, beta=0.1):
    labels = torch.cat([chosen.pop("labels"), rejected.pop("labels")], dim=1)
    batch = both(chosen, rejected)
    with torch.no_grad():
        before = log_probs(reference, batch, labels)
    gained = log_probs(policy, batch, labels) - before
    better, worse = gained.chunk(2)
    return -functional.logsigmoid(beta * (better - worse)).mean()
