"""A training loop by hand over flattened batches; the model's use_cache is left at its default, True.

    hermetic doctor -- python examples/doctor/raw_loop_default_cache.py

A leak, although positions restart and there is no mask: where there is a cache, transformers looks for no packed
documents.
"""

import argparse
from pathlib import Path

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def documents() -> list[dict[str, list[int]]]:
    """Twenty-four documents of random tokens, each ended by token 2."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": [*torch.randint(3, 64, (length,), generator=generator).tolist(), 2]} for length in lengths]


COLLATOR = DataCollatorWithFlattening()


def main(out: Path) -> None:
    """Train for six steps, with a checkpoint after each."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, use_cache=True, **SIZES)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(documents(), batch_size=4, collate_fn=COLLATOR)
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
