"""What does the seal cost? A training step on a packed row of 4k tokens: models as they are shipped, and sealed.

    python benchmarks/seal.py                   float32 on the CPU
    python benchmarks/seal.py --device cuda
    python benchmarks/seal.py --model Bamba     one of them

Models of 4 layers and 256 features. Both contestants get what flattening collators give: token ids, labels, positions
that restart, no mask and no cache.

- Qwen3.5, Bamba and Mamba 2 as shipped run the row as one document in their recurrent layers: they leak. Sealed they do
  not, and should not take more than 1.3 times as long. In the first two an attention layer, which the seal makes
  faster, pays for part of it; Mamba 2 has none.
- Llama as shipped isolates with a dense mask over the row. Sealed it should take no longer.

Lengths are those of OpenChat documents, cut at 2,048 tokens: from openchat_v1_lengths.json where HERMETIC_LENGTHS_DIR
names its folder, else quantiles of that file. Two workloads of short documents show where the cost grows: recurrent
layers fill each document up to whole chunks of their own (64 tokens here). A time is the best of a few steps,
contestants in turns: on the CPU the process's own seconds, which other programs do not move as they move the wall's.
The last line of the output is one JSON document.
"""

import argparse
import copy
import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import (
    BambaConfig,
    BambaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    logging,
)

import hermetic

CAPACITY = 4096  # tokens
VOCABULARY = 1024
TURNS = {"cpu": 2, "cuda": 10}
REAL = "OpenChat"

OPENCHAT_QUANTILES = (376, 511, 635, 745, 868, 973, 1137, 1364, 1563, 1836, *(2048,) * 10)
"""Twenty quantiles of openchat_v1_lengths.json; half of its documents have the most that it allows."""

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
QWEN3_5 = {
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}
BAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 32, "mamba_chunk_size": 64, "attn_layer_indices": [3]}
MAMBA2 = {"num_heads": 8, "head_dim": 64, "state_size": 32, "n_groups": 1, "chunk_size": 64}

MODELS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "Qwen3.5": (lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SIZES, **QWEN3_5)), 1.3),
    "Bamba": (lambda: BambaForCausalLM(BambaConfig(**SIZES, **BAMBA)), 1.3),
    "Mamba 2": (lambda: Mamba2ForCausalLM(Mamba2Config(**SIZES, **MAMBA2)), 1.3),
    "Llama": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES)), 1.0),
}
"""How each is built, and the most that its sealed step may take, in steps of it as shipped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One model on one workload."""

    model: str
    workload: str
    tokens: int
    documents: int
    shipped_seconds: float
    sealed_seconds: float
    ratio: float
    target: float | None
    """The most that the ratio should be; ``None`` on workloads that only show how cost grows."""
    padding_share: float
    """The most pads per slot that an unpacked module ran on."""
    sealed_modules: dict[str, int]
    """How many modules are sealed in which way."""
    seal_seconds: float
    """What ``hermetic.seal`` itself took."""


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=tuple(MODELS), action="append", help="by default all")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    logging.set_verbosity_error()
    outcomes = [outcome for model in arguments.model or MODELS for outcome in measured(model, device)]
    show(outcomes, device)
    print(json.dumps(report(outcomes, device), separators=(",", ":")))


def workloads() -> dict[str, list[int]]:
    """Lengths of the documents of a row."""
    lengths = openchat_lengths()
    plan = hermetic.plan_rows(lengths, CAPACITY)
    longest = max(range(plan.num_rows), key=lambda row: len(plan.row(row)))
    return {
        REAL: [lengths[document] for document in plan.row(plan.num_rows // 2)],
        "OpenChat, most documents": [lengths[document] for document in plan.row(longest)],
        "20 to 500": [int(20 * 25 ** (i / 25)) for i in range(26)],  # evenly spread in their logarithm
        "all of 20": [20] * (CAPACITY // 20),
    }


def openchat_lengths() -> list[int]:
    """Real ones where they are at hand."""
    folder = os.environ.get("HERMETIC_LENGTHS_DIR")
    if folder is None:
        return list(OPENCHAT_QUANTILES)
    found: list[int] = json.loads((Path(folder) / "openchat_v1_lengths.json").read_text(encoding="utf-8"))["lengths"]
    return found


def measured(name: str, device: torch.device) -> list[Outcome]:
    """One model on all workloads."""
    build, _ = MODELS[name]
    torch.manual_seed(0)
    shipped = build().to(device).train()
    sealed = copy.deepcopy(shipped)
    seal_seconds = seconds_of(lambda: hermetic.seal(sealed), device)
    return [
        outcome(name, workload, lengths, (shipped, sealed), seal_seconds) for workload, lengths in workloads().items()
    ]


def outcome(
    name: str, workload: str, lengths: list[int], models: tuple[nn.Module, nn.Module], seal_seconds: float
) -> Outcome:
    """One model, as shipped and sealed, on one workload."""
    shipped, sealed = models
    hermetic.seal(sealed)  # anew, so that the padding is this workload's
    shipped_seconds, sealed_seconds = best_of_turns(models, inputs_of(lengths, next(shipped.parameters()).device))
    modules = hermetic.seal_report(sealed).modules
    return Outcome(
        model=name,
        workload=workload,
        tokens=sum(lengths),
        documents=len(lengths),
        shipped_seconds=shipped_seconds,
        sealed_seconds=sealed_seconds,
        ratio=sealed_seconds / shipped_seconds,
        target=MODELS[name][1] if workload.startswith(REAL) else None,
        padding_share=max(module.padding_share for module in modules),
        sealed_modules=dict(Counter(module.how for module in modules)),
        seal_seconds=seal_seconds,
    )


def inputs_of(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """A row of random documents, as flattening collators make it."""
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]
    inputs = hermetic.collate([{"input_ids": document} for document in documents]).to(device).model_inputs()
    return {name: inputs[name] for name in ("input_ids", "labels", "position_ids", "use_cache")}


def best_of_turns(models: tuple[nn.Module, nn.Module], inputs: dict[str, Any]) -> list[float]:
    """The best step of each model, who take turns."""
    device = inputs["input_ids"].device
    steps = [partial(step, model, inputs) for model in models]
    turns = [[seconds_of(one, device) for one in steps] for _ in range(TURNS[device.type])]
    return [min(times) for times in zip(*turns, strict=True)]


def step(model: nn.Module, inputs: dict[str, Any]) -> None:
    """Forward and backward; the gradients are thrown away."""
    model(**inputs).loss.backward()
    model.zero_grad(set_to_none=True)


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    """Of the process on the CPU, of the wall on CUDA."""
    if device.type == "cpu":
        start = time.process_time()
        function()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def show(outcomes: list[Outcome], device: torch.device) -> None:
    """Print the table for people."""
    table = Table(title=f"Training steps of 4 layers and 256 features, float32 on {device}")
    for column in ("model", "documents of"):
        table.add_column(column)
    for column in ("tokens", "documents", "as shipped, s", "sealed, s", "ratio", "target", "pads", "seal(), s"):
        table.add_column(column, justify="right")
    table.add_column("sealed by")
    for row in outcomes:
        table.add_row(
            row.model,
            row.workload,
            f"{row.tokens:,}",
            str(row.documents),
            f"{row.shipped_seconds:.2f}",
            f"{row.sealed_seconds:.2f}",
            f"{row.ratio:.2f}",
            "-" if row.target is None else f"{row.target:.1f}",
            f"{row.padding_share:.1%}",
            f"{row.seal_seconds:.2f}",
            ", ".join(f"{count} {how}" for how, count in row.sealed_modules.items()),
            end_section=row.workload == "all of 20",
        )
    Console(width=160).print(table)


def report(outcomes: list[Outcome], device: torch.device) -> dict[str, object]:
    """Return everything for machines."""
    return {
        "benchmark": "seal",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "clock": "wall" if device.type == "cuda" else "process",
        "lengths": "quantiles" if os.environ.get("HERMETIC_LENGTHS_DIR") is None else "openchat_v1_lengths.json",
        "outcomes": [asdict(row) for row in outcomes],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
