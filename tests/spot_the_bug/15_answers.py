"""Fine-tuning on answers alone: the loss is taken over what the assistant wrote, in rows that TRL packed."""

import torch
from datasets import load_from_disk
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
from trl import pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling


def loss_of(logits, labels):
    """Over the supervised tokens of the batch, whose rows are padded to the longest."""
    logits, targets = logits[:, :-1], labels[:, 1:]
    supervised = (targets != -100).float()
    losses = functional.cross_entropy(logits.transpose(1, 2), targets.clamp(min=0), reduction="none")
    per_row = (losses * supervised).sum(dim=1) / supervised.sum(dim=1).clamp(min=1)
    return per_row.mean()


def main():
    rows = pack_dataset(load_from_disk("data/answers"), seq_length=4096, strategy="bfd")
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    model = AutoModelForCausalLM.from_pretrained(
        "Qwen/Qwen3-1.7B", attn_implementation="flash_attention_2", dtype=torch.bfloat16, use_cache=False
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    for batch in DataLoader(rows, batch_size=1, shuffle=True, collate_fn=collate):
        labels = batch.pop("labels").cuda()
        logits = model(**{name: getattr(value, "cuda", lambda value=value: value)() for name, value in batch.items()})
        loss_of(logits.logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
