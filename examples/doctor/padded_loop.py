"""A training loop by hand over padded batches: one document per row.

    hermetic doctor -- python examples/doctor/padded_loop.py

Sound, for nothing is packed: no document has a neighbour in its row.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def documents() -> list[dict[str, list[int]]]:
    """Twenty-four documents of random tokens, each ended by token 2."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": [*torch.randint(3, 64, (length,), generator=generator).tolist(), 2]} for length in lengths]


def padded(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """One row per document, padded on the right."""
    ids = [torch.tensor(document["input_ids"]) for document in batch]
    input_ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    real = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in ids], batch_first=True)
    return {"input_ids": input_ids, "attention_mask": real, "labels": input_ids.masked_fill(real == 0, -100)}


def main(out: Path) -> None:
    """Train for six steps, with a checkpoint after each."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, use_cache=True, **SIZES)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(documents(), batch_size=4, collate_fn=padded)
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {float(loss):.3f}", flush=True)
        model.save_pretrained(out / f"checkpoint-{step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/padded_loop"))
    main(parser.parse_args().out)
