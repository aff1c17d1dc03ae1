"""Shard a sealed Llama over two ranks with FSDP2 and activation checkpointing, and train it on packed documents.

torchrun --nproc-per-node 2 examples/ranks/fsdp2.py
"""

import os

import torch
import torch.distributed
from ddp import SIZES, micro_batches
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic
from hermetic.integrations.distributed import rank_step
from hermetic.integrations.fsdp import shard_sealed


def train(steps: int = 3) -> list[float]:
    """Take a few steps; returns the loss of each."""
    torch.manual_seed(0)
    model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=64, **SIZES)))
    model = shard_sealed(model.train(), checkpointing=True)  # the optimizer holds shards, so it is made afterwards
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        step = rank_step(micro_batches(torch.distributed.get_rank()), reduction="document")
        total = torch.zeros(())
        for batch in step.micro_batches(model):  # as many on every rank, for each forward pass gathers the shards
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
