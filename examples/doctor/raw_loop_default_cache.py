"""A training loop by hand over flattened batches. The model's use_cache is left at its default.

    hermetic doctor -- python examples/doctor/raw_loop_default_cache.py

Positions restart and there is no mask, and still the documents see each other: where there is a cache, transformers
looks for no packed documents.
"""

import argparse
from pathlib import Path

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM


def documents() -> list[dict[str, list[int]]]:
    """Twenty-four documents of random tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": torch.randint(3, 64, (length,), generator=generator).tolist()} for length in lengths]


def main(out: Path) -> None:
    """Train for six steps, with a checkpoint after each."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(documents(), batch_size=4, collate_fn=DataCollatorWithFlattening())
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {float(loss):.3f}", flush=True)
        model.save_pretrained(out / f"checkpoint-{step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/raw_loop_default_cache"))
    main(parser.parse_args().out)
