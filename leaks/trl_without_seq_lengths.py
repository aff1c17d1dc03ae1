"""TRL's collator is given packed rows from which the column seq_lengths is gone.

remove_unused_columns, a map, a cache of an older version: the column is lost, and each row is one document then.
Reported: https://github.com/huggingface/trl/issues/3705
Silent because a missing column is also what rows of one document look like.
Way out: keep the column (trl_seq_lengths makes it). Boundaries that are missing cannot be sealed back in.
The probe says: leak, HM100, HM110, HM201.
"""

import torch
from tiny import build, show
from transformers import LlamaForCausalLM
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import hermetic

model = build(LlamaForCausalLM)
collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)


def collated(batch: hermetic.PackedBatch, **column: list[int]) -> torch.Tensor:
    """One row of the data set, through TRL's collator."""
    inputs = collator([{"input_ids": batch.input_ids.tolist(), **column}])
    return model(**inputs, use_cache=False).logits


def with_lengths(batch: hermetic.PackedBatch) -> torch.Tensor:
    """The column as TRL's own packing writes it."""
    return collated(batch, seq_lengths=list(batch.boundaries.document_lengths))


show("without seq_lengths", hermetic.probe(collated))
show("with seq_lengths", hermetic.probe(with_lengths))
