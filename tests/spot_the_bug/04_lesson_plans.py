"""A loop by hand over flattened batches of lesson plans."""

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM


def lesson_plans():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": torch.randint(3, 64, (length,), generator=generator).tolist()} for length in lengths]


def main():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(lesson_plans(), batch_size=4, collate_fn=DataCollatorWithFlattening())
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained("runs/lesson_plans")


if __name__ == "__main__":
    main()
