"""Train a sealed Llama under DeepSpeed's ZeRO-3 on two ranks; needs DeepSpeed, which no extra of hermetic installs.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/ranks/zero3.py
"""

import os

import deepspeed
import torch
import torch.distributed
from ddp import SIZES, micro_batches
from transformers import LlamaConfig, LlamaForCausalLM

import hermetic
from hermetic.integrations.deepspeed import engine_step, initialize_sealed

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,  # DeepSpeed only counts with it; documents weigh by themselves
    "gradient_accumulation_steps": 3,  # the most micro-batches of a rank; others are filled up with blank ones
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,
}


def train(steps: int = 3) -> list[float]:
    """Take a few steps; returns the loss of each."""
    torch.manual_seed(0)
    model = hermetic.seal(LlamaForCausalLM(LlamaConfig(vocab_size=64, **SIZES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = initialize_sealed(model, optimizer=optimizer, config=CONFIG)
    losses = []
    for _ in range(steps):
        step = engine_step(engine, micro_batches(torch.distributed.get_rank()))
        total = torch.zeros(())
        for batch in step.batches:
            inputs = {name: value for name, value in batch.model_inputs().items() if name != "labels"}
            loss = step.loss(engine(**inputs).logits, batch)
            engine.backward(loss)
            engine.step()  # the engine counts, and takes the step after the last micro-batch
            total += loss.detach()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / torch.distributed.get_world_size() / len(step.batches))
    return losses


if __name__ == "__main__":
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    found = train()
    if torch.distributed.get_rank() == 0:
        print(f"loss {found[0]:.3f} -> {found[-1]:.3f} on {os.environ['WORLD_SIZE']} ranks", flush=True)
    torch.distributed.barrier()
    os._exit(0)  # DeepSpeed's and gloo's threads outlive the interpreter otherwise
