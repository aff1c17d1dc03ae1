"""How much of a batch stands for it where not all of it has to be run.

Of a small batch, everything is measured on all of it. Of a larger one, what depends on how long documents are is
measured on all of it too, and what does not on little: rounding, parameter gradients and the weights of the loss on a
few documents cut short, and which of many documents reaches which on the first tokens of each.
"""

from collections.abc import Iterator

import torch

from hermetic.batch import PackedBatch, collate
from hermetic.constants import IGNORE_INDEX

SMALL = 256
"""A batch of at most so many tokens is small."""

CUTS = (61, 43, 53, 37)
"""Tokens of documents that are cut: primes, so that the next one starts inside of any kernel's chunk or tile, and
different ones, for means over tokens, documents and rows are one where all are of one length."""


def is_small(batch: PackedBatch) -> bool:
    """Whether all of the batch is cheap enough to be run many times."""
    return batch.boundaries.num_tokens <= SMALL


def documents_of(batch: PackedBatch) -> Iterator[dict[str, torch.Tensor]]:
    """Each document as ``collate`` takes it."""
    for ids, labels in zip(batch.unpack(batch.input_ids), batch.unpack(batch.labels), strict=True):
        yield {"input_ids": ids, "labels": labels}


def few_of(batch: PackedBatch) -> list[int]:
    """All documents up to four; of more, the first, the middle, the last and the longest: ``[0, 2, 3, 5]``."""
    lengths = batch.boundaries.document_lengths
    present = [document for document, length in enumerate(lengths) if length]
    if len(present) <= 4:
        return present
    longest = max(present, key=lambda document: lengths[document])
    return sorted({present[0], present[len(present) // 2], present[-1], longest})


def few_documents(batch: PackedBatch, *, whole: bool = False) -> list[dict[str, torch.Tensor]]:
    """The documents of ``few_of``: of a batch that is not small cut to ``CUTS`` tokens, unless ``whole``."""
    documents = list(documents_of(batch))
    chosen = [documents[document] for document in few_of(batch)]
    return chosen if whole or is_small(batch) else [_cut(*pair) for pair in zip(chosen, CUTS, strict=False)]


def two_of(batch: PackedBatch) -> list[int]:
    """The first and the last document that have tokens."""
    few = few_of(batch)
    return [few[0], few[-1]]


def two_documents(batch: PackedBatch) -> PackedBatch:
    """The documents of ``two_of``, cut to half of the first two of ``CUTS``."""
    documents = list(documents_of(batch))
    return collate([_cut(documents[one], size // 2) for one, size in zip(two_of(batch), CUTS, strict=False)])


def _cut(document: dict[str, torch.Tensor], size: int) -> dict[str, torch.Tensor]:
    """From right before its first supervised token on, for a long prompt has no loss."""
    labelled = (document["labels"] != IGNORE_INDEX).nonzero().flatten()
    first = int(labelled[0]) - 1 if labelled.numel() else 0
    start = max(0, min(first, document["labels"].numel() - size))
    return {name: values[start : start + size] for name, values in document.items()}


def miniature(batch: PackedBatch) -> PackedBatch:
    """The first tokens of every document: half of ``SMALL`` tokens together, but two of each at least."""
    size = max(2, SMALL // 2 // batch.boundaries.num_documents)
    small = collate([{name: x[:size] for name, x in document.items()} for document in documents_of(batch)])
    return small if small.input_ids.unique().numel() > 1 else batch  # of one id, nothing could be exchanged
