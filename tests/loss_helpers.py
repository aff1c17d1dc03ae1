"""For the tests of hermetic.loss: logits of known cost, and the same loss by way of hidden states."""

import math

import torch

from hermetic.batch import collate
from hermetic.loss import document_log_probs_from_hidden, packed_linear_loss


def documents(*counts):
    """A batch of documents with so many supervised tokens each, of the ids 0 to 7 in turn."""
    return collate([{"input_ids": [index % 8 for index in range(count + 1)]} for count in counts])


def logits_costing(batch, costs, vocabulary=8):
    """[T, V] float64 logits under which each supervised token of document d costs ``costs[d]`` nats."""
    logits = torch.zeros(batch.num_slots, vocabulary, dtype=torch.float64)
    for slot, document in enumerate(batch.boundaries.document_ids.tolist()):
        following = batch.labels[slot + 1] if slot + 1 < batch.num_slots else -100
        if following >= 0:
            logits[slot] = math.log(math.expm1(costs[document]) / (vocabulary - 1))
            logits[slot, following] = 0.0
    return logits


def linear_loss(logits, batch, **options):
    """``packed_linear_loss`` of hidden states that are the logits, before an output layer that changes nothing."""
    return packed_linear_loss(logits, identity_for(logits), batch, **({"chunk_tokens": 2} | options))


def linear_log_probs(logits, batch):
    return document_log_probs_from_hidden(logits, identity_for(logits), batch, chunk_tokens=2)


def identity_for(logits):
    return torch.eye(logits.shape[-1], dtype=logits.dtype)


def random_documents(lengths, vocabulary, generator, kept=0.7):
    """Documents of random tokens, about ``kept`` of them supervised."""
    return [
        {
            "input_ids": torch.randint(vocabulary, (length,), generator=generator),
            "loss_mask": torch.rand(length, generator=generator) < kept,
        }
        for length in lengths
    ]
