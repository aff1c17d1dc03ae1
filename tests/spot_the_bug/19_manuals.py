"""Manuals in micro-batches that are accumulated to a step, on a sealed model."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic


def manuals():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": torch.randint(3, 64, (length,), generator=generator).tolist()} for length in lengths]


def main():
    torch.manual_seed(0)
    documents = manuals()
    plan = hermetic.plan_rows([len(document["input_ids"]) for document in documents], capacity=64)
    batches = [hermetic.collate([documents[i] for i in row]) for row in plan.rows()]
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = hermetic.seal(LlamaForCausalLM(config)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for start in range(0, len(batches), 2):
        micro_batches = batches[start : start + 2]
        supervised = sum(batch.num_supervised_tokens for batch in micro_batches)
        for batch in micro_batches:
            logits = model(**batch.model_inputs()).logits
            hermetic.packed_loss(logits, batch, denominator=supervised).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
