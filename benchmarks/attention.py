"""How fast is attention inside documents, and what memory does it take: hermetic beside what others do.

    python benchmarks/attention.py                   float32 on the CPU
    python benchmarks/attention.py --device cuda     float32 and bfloat16

Contestants, all of them PyTorch's scaled_dot_product_attention underneath, in the same run:

- ``hermetic``: ``packed_attention`` with the sdpa backend on the flat row.
- ``dense mask``: the whole row with a block-diagonal boolean mask, as transformers runs packed rows. Making the
  mask is not timed.
- ``padded``: the documents as right-padded rows under a causal mask, as training without packing has them. Its
  tokens per second count real tokens only.

Best of up to five runs after a first one. Peak memory is that of one forward and backward beyond its inputs: on the
CPU by the peak of a fresh process for each (Linux), on CUDA by the allocator. On the CPU the dense mask and the padded
rows are left out at 32k tokens. The last line of the output is one JSON document.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone uses
from rich.console import Console
from rich.table import Table

from hermetic.attention import packed_attention
from hermetic.batch import Boundaries

SHAPES = {"cpu": (4, 2, 64), "cuda": (32, 8, 128)}
"""Query heads, key and value heads, and their width."""

RUNS = 5
PATIENCE_SECONDS = 1.0
LONGEST_CPU_PEER = 12_000  # tokens
MIXED = tuple(int(20 * 100 ** (i / 24)) for i in range(25))  # 20 to 2,000 tokens, evenly spread in their logarithm

WORKLOADS: dict[str, tuple[int, ...]] = {
    "2k in documents of 300": (300,) * 7,
    "8k in documents of 300": (300,) * 28,
    "32k in documents of 300": (300,) * 109,
    "8k in documents of 20": (20,) * 420,
    "10k in documents of 20 to 2000": MIXED,
    "one document of 8k": (8_400,),
}
MEMORY_WORKLOADS = tuple(WORKLOADS)[:3]

PROCESS_STATUS = Path("/proc/self/status")

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One contestant on one workload; what does not apply is None."""

    workload: str
    contestant: str
    dtype: str
    tokens: int
    documents: int
    forward_tokens_per_second: float | None = None
    step_tokens_per_second: float | None = None
    difference: float | None = None
    """Largest difference of the outputs from hermetic's."""
    peak_bytes: int | None = None
    remark: str = ""


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    arguments = parsed_arguments()
    if arguments.memory_of is not None:
        contestant, workload = arguments.memory_of
        print(peak_of_this_process(contestant, WORKLOADS[workload]))
        return
    device = torch.device(arguments.device)
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    for make in CONTESTANTS.values():  # whatever the first step of a process costs is nobody's
        forward_and_backward(make((300, 300), device), random_inputs(600, device, dtypes[0]))
    outcomes = [
        outcome(workload, contestant, device, dtype)
        for dtype in dtypes
        for workload in WORKLOADS
        for contestant in CONTESTANTS
    ]
    show(outcomes, device)
    print(json.dumps(report(outcomes, device), separators=(",", ":")))


def parsed_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)  # how this script runs itself
    return parser.parse_args()


def hermetic_attention(lengths: tuple[int, ...], _device: torch.device) -> Attend:
    """Attend inside documents of the flat row."""
    boundaries = Boundaries(document_lengths=lengths)
    return lambda q, k, v: packed_attention(q, k, v, boundaries)


def dense_attention(lengths: tuple[int, ...], device: torch.device) -> Attend:
    """Attend over the whole row under a block-diagonal mask, keys and values repeated for it as transformers does."""
    boundaries = Boundaries(document_lengths=lengths)
    ids = boundaries.document_ids.to(device)
    mask = (ids[:, None] == ids[None, :]).tril()[None, None]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1)[None] for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)

    return attend


def padded_attention(lengths: tuple[int, ...], device: torch.device) -> Attend:
    """Attend in right-padded rows; laying them out and taking them back is timed too, as it is for hermetic."""
    width = max(lengths)
    real = (torch.arange(width) < torch.tensor(lengths)[:, None]).flatten().to(device)
    slots = torch.nonzero(real).squeeze(1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            x.new_zeros(real.numel(), *x.shape[1:]).index_copy(0, slots, x).unflatten(0, (-1, width)).transpose(1, 2)
            for x in (q, k, v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1).index_select(0, slots)

    return attend


CONTESTANTS: dict[str, Callable[[tuple[int, ...], torch.device], Attend]] = {
    "hermetic": hermetic_attention,
    "dense mask": dense_attention,
    "padded": padded_attention,
}


def outcome(workload: str, contestant: str, device: torch.device, dtype: torch.dtype) -> Outcome:
    """Measure one contestant on one workload."""
    lengths = WORKLOADS[workload]
    tokens = sum(lengths)
    blank = Outcome(
        workload=workload,
        contestant=contestant,
        dtype=str(dtype).removeprefix("torch."),
        tokens=tokens,
        documents=len(lengths),
    )
    if device.type == "cpu" and contestant != "hermetic" and tokens > LONGEST_CPU_PEER:
        return replace(blank, remark="left out on the CPU")
    inputs = random_inputs(tokens, device, dtype)
    attend = CONTESTANTS[contestant](lengths, device)
    ours = hermetic_attention(lengths, device)
    with torch.no_grad():
        difference = float((attend(*inputs).float() - ours(*inputs).float()).abs().max())
        forward = best_of(lambda: attend(*inputs), device)
    step = best_of(lambda: forward_and_backward(attend, inputs), device)
    return replace(
        blank,
        forward_tokens_per_second=tokens / forward,
        step_tokens_per_second=tokens / step,
        difference=difference,
        peak_bytes=peak_bytes(workload, contestant, attend, inputs) if workload in MEMORY_WORKLOADS else None,
    )


def random_inputs(tokens: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Queries, keys and values of one row, requiring gradients."""
    generator = torch.Generator(device).manual_seed(0)
    heads, key_heads, width = SHAPES[device.type]
    q, k, v = (
        torch.randn(tokens, each, width, device=device, dtype=dtype, generator=generator).requires_grad_()
        for each in (heads, key_heads, key_heads)
    )
    return q, k, v


def forward_and_backward(attend: Attend, inputs: Inputs) -> None:
    """Run one step; the gradients are thrown away."""
    out = attend(*inputs)
    torch.autograd.grad(out, inputs, torch.ones_like(out))


def best_of(function: Callable[[], object], device: torch.device) -> float:
    """Return the best time in seconds of as many runs as fit into the patience; the first is the warm-up."""

    def timed() -> float:
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    times = [timed()]  # counts only if it alone tries the patience
    while len(times) <= RUNS and sum(times) < PATIENCE_SECONDS:
        times.append(timed())
    return min(times[1:] or times)


def peak_bytes(workload: str, contestant: str, attend: Attend, inputs: Inputs) -> int | None:
    """Peak memory of a step beyond its inputs."""
    if inputs[0].device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_and_backward(attend, inputs)
        return torch.cuda.max_memory_allocated() - before
    if not PROCESS_STATUS.exists():
        return None
    command = [sys.executable, __file__, "--memory-of", contestant, workload]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - this very script
    return int(done.stdout)


def peak_of_this_process(contestant: str, lengths: tuple[int, ...]) -> int:
    """How far one step lifts the peak of this process, which should be fresh."""
    cpu = torch.device("cpu")
    small = (300, 300)
    forward_and_backward(CONTESTANTS[contestant](small, cpu), random_inputs(sum(small), cpu, torch.float32))
    inputs = random_inputs(sum(lengths), cpu, torch.float32)
    before = peak_resident_bytes()
    forward_and_backward(CONTESTANTS[contestant](lengths, cpu), inputs)
    return peak_resident_bytes() - before


def peak_resident_bytes() -> int:
    """Return the peak of this process since it began; getrusage would begin with that of its parent."""
    line = next(line for line in PROCESS_STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def show(outcomes: list[Outcome], device: torch.device) -> None:
    """Print the table for people."""
    heads, key_heads, width = SHAPES[device.type]
    table = Table(title=f"Causal attention, {heads} heads over {key_heads} of width {width}, on {device}")
    for column in ("workload", "dtype", "contestant"):
        table.add_column(column)
    for column in ("forward, tokens/s", "forward + backward, tokens/s", "peak MiB", "difference"):
        table.add_column(column, justify="right")
    table.add_column("remark")
    for row in outcomes:
        table.add_row(
            row.workload,
            row.dtype,
            row.contestant,
            shown(row.forward_tokens_per_second, ",.0f"),
            shown(row.step_tokens_per_second, ",.0f"),
            shown(None if row.peak_bytes is None else row.peak_bytes / 2**20, ",.0f"),
            shown(row.difference, ".1e"),
            row.remark,
            end_section=row.contestant == tuple(CONTESTANTS)[-1],
        )
    Console(width=160).print(table)


def shown(number: float | None, pattern: str) -> str:
    """Format a number; what does not apply is a dash."""
    return "-" if number is None else format(number, pattern)


def report(outcomes: list[Outcome], device: torch.device) -> dict[str, object]:
    """Return everything for machines."""
    return {
        "benchmark": "attention",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "heads_key_heads_width": SHAPES[device.type],
        "outcomes": [asdict(row) for row in outcomes],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
