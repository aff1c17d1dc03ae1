"""For the tests of training stacks: tiny models, rows of random documents, and losses of documents one at a time."""

import copy

import numpy as np
import torch
from train_helpers import tiny_network

from hermetic.batch import collate
from hermetic.constants import IGNORE_INDEX
from hermetic.seal import seal

VOCABULARY = 64


def documents_of(lengths, *, seed=0, prompt=0.3):
    """Documents of random tokens, the first ``prompt`` of each without a label."""
    random = np.random.default_rng(seed)
    ids = [random.integers(8, VOCABULARY, length).tolist() for length in lengths]
    return [
        {
            "input_ids": tokens,
            "labels": [IGNORE_INDEX] * max(1, int(prompt * len(tokens))) + tokens[max(1, int(prompt * len(tokens))) :],
        }
        for tokens in ids
    ]


def rows_of(documents, sizes):
    """Consecutive documents as rows of so many each."""
    documents = iter(documents)
    return [[next(documents) for _ in range(size)] for size in sizes]


def network(**changes):
    """A tiny Llama in training mode."""
    return tiny_network(**changes).train()


def sealed(**changes):
    return seal(network(**changes))


@torch.no_grad()
def losses_alone(model, documents, **options):
    """For each document the losses of its supervised tokens, run on its own; ``options`` are of ``cross_entropy``."""
    model = copy.deepcopy(model).eval()
    found = []
    for document in documents:
        ids, labels = (torch.tensor(np.array(document[name], np.int64)) for name in ("input_ids", "labels"))
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits, labels[1:], reduction="none", ignore_index=IGNORE_INDEX, **options
        )
        found.append(losses[labels[1:] != IGNORE_INDEX])
    return found


def reduced(losses, reduction):
    """The loss of documents by its definition."""
    exponent = {"token": 0.0, "document": 1.0, "sqrt": 0.5}[reduction]
    losses = [part.double() for part in losses if len(part)]
    shares = sum(float(part.sum()) / len(part) ** exponent for part in losses)
    return shares / sum(len(part) ** (1 - exponent) for part in losses)


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def batch_of(documents):
    return collate(documents)
