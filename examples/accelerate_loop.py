"""A loop of your own with Accelerate: packed rows, and the loss of the whole step on any number of processes.

``accelerate launch examples/accelerate_loop.py``
"""

import contextlib
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic
import hermetic.demo
from hermetic.data import PackedDataset, load_tokenizer, pack_sources
from hermetic.demo.conversations import write_conversations
from hermetic.integrations.loading import row_loader
from hermetic.integrations.rows import collate_rows
from hermetic.loss import loss_denominator, packed_loss

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"
ACCUMULATION = 2


def main(folder: Path) -> None:
    """Pack 100 conversations into rows of 512 tokens and take two passes over them."""
    write_conversations(folder / "chats.jsonl", count=100, seed=0)
    pack_sources(folder / "chats.jsonl", folder / "rows", tokenizer=TOKENIZER, capacity=512)

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    ranks = accelerator.num_processes
    group = torch.distributed.group.WORLD if ranks > 1 else None
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=len(load_tokenizer(TOKENIZER)), **sizes)))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    mine = {"rank": accelerator.process_index, "num_ranks": ranks, "accumulation_steps": ACCUMULATION}
    # not for accelerate to prepare: it deals out rows itself, and would repeat some
    loader = row_loader(PackedDataset(folder / "rows"), rows_per_batch=1, collate_fn=collate_rows, **mine)
    losses = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches = list(loader)
        for step in (batches[start : start + ACCUMULATION] for start in range(0, len(batches), ACCUMULATION)):
            weight = loss_denominator(step, group=group) / ranks  # accelerate averages gradients over ranks
            losses.append(0.0)
            for number, batch in enumerate(micro.to(accelerator.device) for micro in step):
                last = number == len(step) - 1
                with contextlib.nullcontext() if last else accelerator.no_sync(model):
                    loss = packed_loss(model(**batch.model_inputs()).logits, batch, denominator=weight)
                    accelerator.backward(loss)
                losses[-1] += float(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
    print(f"{len(losses)} steps, loss {losses[0]:.2f} -> {losses[-1]:.2f}, falling: {losses[-1] < losses[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
