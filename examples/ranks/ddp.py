"""Train a sealed Llama on two ranks with accumulation, the way a plain loop does it.

    torchrun --nproc-per-node 2 examples/ranks/ddp.py

The ranks have different numbers of micro-batches, and the loss is that of one process with all documents.
"""

import os

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic
from hermetic.integrations.distributed import rank_step

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LENGTHS = [[[5, 9], [7], [3, 3, 12]], [[20]]]  # of the documents in each micro-batch of each rank


def micro_batches(rank: int) -> list[hermetic.PackedBatch]:
    """This rank's share of a step; in a real loop, rows of a packed folder."""
    generator = torch.Generator().manual_seed(rank)
    return [
        hermetic.collate([{"input_ids": torch.randint(64, (n,), generator=generator)} for n in documents])
        for documents in LENGTHS[rank]
    ]


def train(steps: int = 3) -> list[float]:
    """Take a few steps; returns the loss of each."""
    torch.manual_seed(0)
    model = DistributedDataParallel(hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=64, **SIZES))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        step = rank_step(micro_batches(torch.distributed.get_rank()), reduction="token")
        total = torch.zeros(())
        for batch in step.micro_batches(model):  # gradients are exchanged in the last one
            inputs = {name: value for name, value in batch.model_inputs().items() if name != "labels"}
            loss = step.loss(model(**inputs).logits, batch)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / torch.distributed.get_world_size())
    return losses


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    found = train()
    if torch.distributed.get_rank() == 0:
        print(f"loss {found[0]:.3f} -> {found[-1]:.3f} on {os.environ['WORLD_SIZE']} ranks", flush=True)
    torch.distributed.destroy_process_group()
