"""Stories on one small card: flattened micro-batches, accumulated to a step."""

import torch
from datasets import load_from_disk
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, get_scheduler

MODEL = "HuggingFaceTB/SmolLM2-360M"
ACCUMULATION = 16


def main(epochs=2):
    model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="flash_attention_2", dtype=torch.bfloat16)
    model.cuda().train()
    model.gradient_checkpointing_enable()
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    loader = DataLoader(load_from_disk("data/stories"), batch_size=8, shuffle=True, collate_fn=collate, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    steps = epochs * len(loader) // ACCUMULATION
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=20, num_training_steps=steps)
    for _ in range(epochs):
        for number, batch in enumerate(loader, start=1):
            tensors = {name: value.cuda() if torch.is_tensor(value) else value for name, value in batch.items()}
            loss = model(**tensors, use_cache=False).loss / ACCUMULATION
            loss.backward()
            if number % ACCUMULATION == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
    model.save_pretrained("runs/stories")


if __name__ == "__main__":
    main()
