"""A training loop by hand over what Axolotl's collator for sample packing gives.

    hermetic doctor -- python examples/doctor/axolotl_collator.py

Documents are apart, and yet not sound: the label of each document's first token carries loss, so the last token of
the document before it learns to predict it. Uses Axolotl's own collator where it is installed (checked with 0.19.0),
and otherwise a stand-in that gives the same tensors.
"""

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def documents() -> list[dict[str, list[int]]]:
    """Twenty-four documents of random tokens, each ended by token 2."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 20, (24,), generator=generator).tolist()
    return [{"input_ids": [*torch.randint(3, 64, (length,), generator=generator).tolist(), 2]} for length in lengths]


def collator() -> Callable[[list[list[dict[str, list[int]]]]], dict[str, torch.Tensor]]:
    """Axolotl's, or one that gives the same."""
    if importlib.util.find_spec("axolotl") is None:
        return joined
    from axolotl.utils.collators.batching import V2BatchSamplerDataCollatorForSeq2Seq

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0})))
    words.add_special_tokens({"pad_token": "<pad>"})
    return V2BatchSamplerDataCollatorForSeq2Seq(words)


def joined(rows: list[list[dict[str, list[int]]]]) -> dict[str, torch.Tensor]:
    """Each row's documents end to end; numbers of documents as the mask."""
    (row,) = rows
    batch = {name: [value for document in row for value in document[name]] for name in row[0]}
    batch["attention_mask"] = [i for i, document in enumerate(row, start=1) for _ in document["input_ids"]]
    return {name: torch.tensor([values]) for name, values in batch.items()}


def packed(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """One row of a batch's documents, without the mask, which Axolotl drops before it calls the model."""
    row = []
    for document in batch:
        ids = document["input_ids"]
        positions = list(range(len(ids)))
        row.append({"input_ids": ids, "labels": list(ids), "position_ids": positions, "attention_mask": [1] * len(ids)})
    tensors = dict(collator()([row]))
    del tensors["attention_mask"]
    return tensors


def main(out: Path) -> None:
    """Train for six steps, with a checkpoint after each."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, use_cache=False, **SIZES)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(documents(), batch_size=4, collate_fn=packed)
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {float(loss):.3f}", flush=True)
        model.save_pretrained(out / f"checkpoint-{step}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs/axolotl_collator"))
    main(parser.parse_args().out)
