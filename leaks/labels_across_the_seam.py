"""Labels are shifted over the whole row: the last token of a document is trained to predict the next one's first.

Attention is isolated; the target is not. What is probed here is therefore the loss of each token.
Reported: https://github.com/meta-pytorch/torchtune/pull/2613 and verl 6475 (log-probabilities)
Silent because it is one target in each document, and what it teaches is to guess a stranger.
Way out: labels of hermetic.collate, -100 on first tokens. A sealed model masks them in the labels that it is given.
The probe says: leak, HM100.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from tiny import build, show
from transformers import LlamaForCausalLM

import hermetic
from hermetic.constants import IGNORE_INDEX

model = build(LlamaForCausalLM)


def losses(batch: hermetic.PackedBatch, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each token, ``[T, 1]``: how badly it predicts the label after its own."""
    logits = model(**batch.model_inputs()).logits[0]
    return F.cross_entropy(logits, labels.roll(-1), reduction="none")[:, None]


def without_first_tokens(batch: hermetic.PackedBatch) -> torch.Tensor:
    """The same labels where the batch has one."""
    return losses(batch, batch.input_ids.where(batch.labels != IGNORE_INDEX, IGNORE_INDEX))


show("shifted over the row", hermetic.probe(lambda batch: losses(batch, batch.input_ids)))
show("first tokens unlabelled", hermetic.probe(without_first_tokens))
