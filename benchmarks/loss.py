"""What a loss costs with logits and without: time and peak memory of a step, forward and backward.

    python benchmarks/loss.py                      8,192 tokens, 128,000 entries, width 512, float32, on one core
    python benchmarks/loss.py --device cuda        in bfloat16
    python benchmarks/loss.py --tokens 1024        a shorter row

Contestants, in the same run:

- ``plain``: ``torch.nn.functional.linear`` and ``cross_entropy`` in float32; nothing holds the logits any longer than
  autograd does.
- ``hermetic``: ``packed_linear_loss``.
- ``hermetic, log-probs``: ``document_log_probs_from_hidden``, which makes the logits once more for its gradients.
- ``liger``: ``packed_linear_loss(..., backend="liger")``, where Liger is installed and the device is a GPU.

All give the gradients of hidden states and of the weight. ``plain`` needs three times tokens x vocabulary float32
numbers: 12.6 GB as it stands. hermetic should take at least 5 times less memory and at most 1.2 times as long. Memory
is the peak beyond the inputs, the gradients included. A time is the best of a few turns: on the CPU the process's own
seconds, which other programs do not move as they move the wall's. A second table shows that, apart from the
weight's gradient, hermetic's memory does not grow with the vocabulary. The last line of the output is one JSON
document.
"""

import argparse
import ctypes
import gc
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from hermetic.batch import PackedBatch, collate
from hermetic.loss import document_log_probs_from_hidden, packed_linear_loss

DOCUMENT = 512  # tokens
VOCABULARIES = (32_000, 64_000, 128_000, 256_000)
GROWING = (2048, 64)
"""Tokens and width of the row whose vocabulary grows; from 32,000 entries on it takes several chunks."""

DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
PROCESS = Path("/proc/self")

Loss = Callable[[torch.Tensor, torch.Tensor, PackedBatch], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One contestant; what was not measured is None."""

    contestant: str
    tokens: int
    vocabulary: int
    seconds: float
    peak_bytes: int | None
    loss: float


def main() -> None:
    """Measure, print two tables, print one line of JSON."""
    options = arguments()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    contestants = contestants_on(device)
    for loss in contestants.values():  # what a first call costs is nobody's
        step(loss, *problem(64, 1000, 64, device))
    given = problem(options.tokens, options.vocabulary, options.width, device)
    outcomes = [measured(name, loss, given, options.turns) for name, loss in contestants.items()]
    growing = [
        measured("hermetic", packed_linear_loss, problem(GROWING[0], vocabulary, GROWING[1], device), 1)
        for vocabulary in VOCABULARIES
    ]
    show(outcomes, growing, options.width, device)
    print(json.dumps(report(outcomes, growing, options.width, device), separators=(",", ":")))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time and memory of a loss, with logits and without.")
    parser.add_argument("--device", default="cpu", choices=sorted(DTYPES))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--turns", type=int, default=2)
    return parser.parse_args()


def contestants_on(device: torch.device) -> dict[str, Loss]:
    """Everyone who runs on the device."""
    found: dict[str, Loss] = {"plain": plain, "hermetic": packed_linear_loss, "hermetic, log-probs": log_probs}
    if device.type == "cuda" and find_spec("liger_kernel") is not None:
        found["liger"] = partial(packed_linear_loss, backend="liger")
    return found


def plain(hidden: torch.Tensor, weight: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Return the loss as a model makes it: logits of all tokens, labels moved by one."""
    labels = torch.cat([batch.labels[1:], batch.labels.new_full((1,), -100)])
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, weight).float(), labels)


def log_probs(hidden: torch.Tensor, weight: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Return the same loss by way of the log-probabilities of documents."""
    return -document_log_probs_from_hidden(hidden, weight, batch).sum() / batch.num_supervised_tokens


def problem(
    tokens: int, vocabulary: int, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, PackedBatch]:
    """Return hidden states, a weight, and a row of documents that are supervised in all their tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (tokens,), generator=generator)
    batch = collate([{"input_ids": part} for part in ids.split(DOCUMENT)])
    hidden, weight = (torch.randn(rows, width, generator=generator) for rows in (tokens, vocabulary))
    scaled = (weight * width**-0.5).to(device, DTYPES[device.type]).requires_grad_()
    return hidden.to(device, DTYPES[device.type]).requires_grad_(), scaled, batch.to(device)


def step(loss: Loss, hidden: torch.Tensor, weight: torch.Tensor, batch: PackedBatch) -> float:
    """Run one step; the gradients are thrown away."""
    value = loss(hidden, weight, batch)
    torch.autograd.grad(value, (hidden, weight))
    return float(value.detach())


def measured(name: str, loss: Loss, given: tuple[torch.Tensor, torch.Tensor, PackedBatch], turns: int) -> Outcome:
    """Time and peak memory of one contestant."""
    hidden, weight, batch = given
    before = forgotten_peak(hidden.device)
    times = []
    for _ in range(turns):
        start = clock(hidden.device)
        value = step(loss, hidden, weight, batch)
        times.append(clock(hidden.device) - start)
    peak = peak_bytes(hidden.device)
    return Outcome(
        contestant=name,
        tokens=len(hidden),
        vocabulary=len(weight),
        seconds=min(times),
        peak_bytes=None if peak is None or before is None else peak - before,
        loss=value,
    )


def clock(device: torch.device) -> float:
    """Seconds of this process on the CPU; of the wall, once all is done, on a GPU."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def forgotten_peak(device: torch.device) -> int | None:
    """Give freed memory back, forget the peak and return what is held now, in bytes; None where nobody says."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    if not (PROCESS / "clear_refs").exists():
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    (PROCESS / "clear_refs").write_text("5", encoding="ascii")
    return peak_bytes(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak since it was forgotten."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if not (PROCESS / "status").exists():
        return None
    status = (PROCESS / "status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def show(outcomes: list[Outcome], growing: list[Outcome], width: int, device: torch.device) -> None:
    """Print the tables for people."""
    base = outcomes[0]
    table = Table(
        title=f"A step of {base.tokens:,} tokens over {base.vocabulary:,} entries, width {width}, on {device}"
    )
    table.add_column("contestant")
    for column in ("seconds", "of plain", "peak MiB", "times below plain", "loss"):
        table.add_column(column, justify="right")
    for row in outcomes:
        table.add_row(
            row.contestant,
            f"{row.seconds:,.3f}",
            f"{row.seconds / base.seconds:.2f}",
            "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f}",
            "-" if row.peak_bytes is None or base.peak_bytes is None else f"{base.peak_bytes / row.peak_bytes:.1f}",
            f"{row.loss:.6f}",
        )
    console = Console(width=120)
    console.print(table)
    growth = Table(title=f"hermetic's memory by vocabulary, {GROWING[0]:,} tokens of width {GROWING[1]}")
    for column in ("entries", "peak MiB", "of it the weight's gradient", "the rest"):
        growth.add_column(column, justify="right")
    for row in growing:
        gradient = row.vocabulary * GROWING[1] * 4 / 2**20
        peak = None if row.peak_bytes is None else row.peak_bytes / 2**20
        rest = "-" if peak is None else f"{peak - gradient:,.0f}"
        growth.add_row(f"{row.vocabulary:,}", "-" if peak is None else f"{peak:,.0f}", f"{gradient:,.0f}", rest)
    console.print(growth)


def report(outcomes: list[Outcome], growing: list[Outcome], width: int, device: torch.device) -> dict[str, object]:
    """Return everything for machines."""
    return {
        "benchmark": "loss",
        "device": platform.machine() if device.type == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "dtype": str(DTYPES[device.type]).removeprefix("torch."),
        "width": width,
        "outcomes": [asdict(row) for row in outcomes],
        "by_vocabulary": [asdict(row) for row in growing],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
