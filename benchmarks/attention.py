"""How fast is attention inside documents, and what memory does it take: hermetic beside what others do.

    python benchmarks/attention.py                      float32 on the CPU
    python benchmarks/attention.py --device cuda        float32 and bfloat16
    python benchmarks/attention.py --lengths-dir DIR    also real lengths, by default from HERMETIC_LENGTHS_DIR

Contestants, in the same run and on the same flat row, forward and backward:

- ``hermetic sdpa``, and on CUDA ``hermetic flex``, ``flash`` and ``torch_varlen``: ``packed_attention``.
- ``padded``: the documents as right-padded rows under a causal mask, as training without packing has them. Laying them
  out and taking them back is timed; tokens per second count real tokens only.
- ``dense mask``: the whole row with a block-diagonal boolean mask, as transformers runs packed rows. Making the mask is
  not timed.
- ``leaky causal``: one causal call over the whole row, in which documents see each other. It is wrong; the column
  *difference* shows by how much, and it is what packing without isolation costs.
- on CUDA, where they are installed: flash-attn's ``flash_attn_varlen_func``, FlexAttention compiled with a document
  mask, and PyTorch's ``varlen_attn``, all called as their documentation does. Making the mask is not timed.

*To the floor* is the time of a step over that of PyTorch's kernel alone, on one batch of equal documents with as many
tokens and as large a sum of squared lengths (rounded to whole documents) that lies in memory as the kernel wants it:
what is above 1 is the price of packing.

Everyone and the floor take turns, and the best of up to five turns after a first one counts. Peak memory is that of one
forward and backward beyond its inputs: on the CPU by the resident set (Linux), on CUDA by the allocator. On the CPU
dense mask, padded and leaky rows are left out above 12,000 tokens. Set OMP_NUM_THREADS to hold everyone to so many
cores. The last line of the output is one JSON document.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from attention_contestants import SHAPES, Attend, Contestant, Lengths, causal_kernel, contestants
from attention_layout import MIXED, best_seconds, real_workloads
from rich.console import Console
from rich.table import Table

OURS = "hermetic sdpa"
"""From whose outputs the differences are counted."""

LONGEST_CPU_PEER = 12_000  # tokens


WORKLOADS: dict[str, Lengths] = {
    "2k in documents of 300": (300,) * 7,
    "8k in documents of 300": (300,) * 28,
    "32k in documents of 300": (300,) * 109,
    "2k in documents of 20": (20,) * 105,
    "8k in documents of 20": (20,) * 420,
    "32k in documents of 20": (20,) * 1_635,
    "10k in documents of 20 to 2000": MIXED,
    "one document of 8k": (8_400,),
}
MEMORY_WORKLOADS = tuple(WORKLOADS)[:3]
REAL_ROWS = (8_192, 32_768)  # tokens

PROCESS = Path("/proc/self")

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One contestant on one workload; what does not apply is None."""

    workload: str
    contestant: str
    dtype: str
    tokens: int
    documents: int
    forward_seconds: float | None
    step_seconds: float | None
    floor_seconds: float
    """A step of the kernel alone."""
    difference: float | None
    """Largest difference of the outputs from hermetic sdpa's."""
    peak_bytes: int | None
    remark: str

    @property
    def ratio_to_floor(self) -> float | None:
        """Of a step."""
        return None if self.step_seconds is None else self.step_seconds / self.floor_seconds

    def per_second(self, seconds: float | None) -> float | None:
        """Tokens."""
        return None if seconds is None else self.tokens / seconds


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    arguments = parsed_arguments()
    device = torch.device(arguments.device)
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    workloads = dict(WORKLOADS)
    for tokens in REAL_ROWS:
        workloads |= real_workloads(arguments.lengths_dir, tokens)
    everyone = contestants(device)
    for contestant in everyone.values():  # whatever the first step of a process costs is nobody's
        if contestant.lacks(device, dtypes[-1]) is None:
            forward_and_backward(contestant.make((300, 300), device), random_inputs(600, device, dtypes[-1]))
    outcomes = [
        outcome
        for dtype in dtypes
        for workload, lengths in workloads.items()
        for outcome in contest(everyone, workload, lengths, device, dtype)
    ]
    show(outcomes, device, last=tuple(everyone)[-1])
    print(json.dumps(report(outcomes, device), separators=(",", ":")))


def parsed_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    folder = os.environ.get("HERMETIC_LENGTHS_DIR")
    parser.add_argument("--lengths-dir", type=Path, default=folder and Path(folder), help="folder of length files")
    return parser.parse_args()


def contest(
    everyone: dict[str, Contestant], workload: str, lengths: Lengths, device: torch.device, dtype: torch.dtype
) -> list[Outcome]:
    """Measure everyone on one workload."""
    inputs = random_inputs(sum(lengths), device, dtype)
    lacking = {name: lack_of(contestant, sum(lengths), device, dtype) for name, contestant in everyone.items()}
    attends = {name: everyone[name].make(lengths, device) for name, lack in lacking.items() if lack is None}
    with torch.no_grad():
        outputs = {name: attend(*inputs).float() for name, attend in attends.items()}
        forwards = best_seconds([partial(attend, *inputs) for attend in attends.values()], device)
    steps = [partial(forward_and_backward, attend, inputs) for attend in attends.values()]
    floor, *seconds = best_seconds([floor_step(lengths, device, dtype), *steps], device)
    times = dict(zip(attends, zip(forwards, seconds, strict=True), strict=True))
    return [
        Outcome(
            workload=workload,
            contestant=name,
            dtype=str(dtype).removeprefix("torch."),
            tokens=sum(lengths),
            documents=len(lengths),
            forward_seconds=times[name][0] if lack is None else None,
            step_seconds=times[name][1] if lack is None else None,
            floor_seconds=floor,
            difference=float((outputs[name] - outputs[OURS]).abs().max()) if lack is None else None,
            peak_bytes=peak_bytes(attends[name], inputs) if lack is None and workload in MEMORY_WORKLOADS else None,
            remark=lack or "",
        )
        for name, lack in lacking.items()
    ]


def lack_of(contestant: Contestant, tokens: int, device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why a contestant does not run, or None."""
    if device.type == "cpu" and contestant.is_peer and tokens > LONGEST_CPU_PEER:
        return "left out on the CPU"
    return contestant.lacks(device, dtype)


def floor_step(lengths: Lengths, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """A step of the kernel alone, on equal documents with the same tokens and sum of squares."""
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    rows = max(1, round(tokens**2 / squares))
    width = round((squares / rows) ** 0.5)
    q, k, v = (
        x.detach().unflatten(0, (rows, width)).transpose(1, 2).requires_grad_()
        for x in random_inputs(rows * width, device, dtype)
    )
    return partial(forward_and_backward, causal_kernel, (q, k, v))


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


def peak_bytes(attend: Attend, inputs: Inputs) -> int | None:
    """Peak memory of a step beyond its inputs."""
    if inputs[0].device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward_and_backward(attend, inputs)
        return torch.cuda.max_memory_allocated() - before
    if not (PROCESS / "clear_refs").exists():
        return None
    before = forgotten_peak()
    forward_and_backward(attend, inputs)
    return peak_resident_bytes() - before


def forgotten_peak() -> int:
    """Give freed memory back, forget the peak of the resident set and return it: what is held now, in bytes."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    (PROCESS / "clear_refs").write_text("5", encoding="ascii")
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the peak of the resident set since it was forgotten."""
    status = (PROCESS / "status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def show(outcomes: list[Outcome], device: torch.device, last: str) -> None:
    """Print the table for people; a line under the ``last`` contestant."""
    heads, key_heads, width = SHAPES[device.type]
    table = Table(title=f"Causal attention, {heads} heads over {key_heads} of width {width}, on {device}")
    for column in ("workload", "dtype", "contestant"):
        table.add_column(column)
    for column in ("forward ms", "tokens/s", "step ms", "tokens/s", "to the floor", "peak MiB", "difference"):
        table.add_column(column, justify="right")
    table.add_column("remark")
    for row in outcomes:
        table.add_row(
            row.workload,
            row.dtype,
            row.contestant,
            shown(row.forward_seconds, ",.1f", 1e3),
            shown(row.per_second(row.forward_seconds), ",.0f"),
            shown(row.step_seconds, ",.1f", 1e3),
            shown(row.per_second(row.step_seconds), ",.0f"),
            shown(row.ratio_to_floor, ".2f"),
            shown(row.peak_bytes, ",.0f", 2**-20),
            shown(row.difference, ".1e"),
            row.remark,
            end_section=row.contestant == last,
        )
    Console(width=180).print(table)


def shown(number: float | None, pattern: str, factor: float = 1.0) -> str:
    """Format a number times a factor; what does not apply is a dash."""
    return "-" if number is None else format(number * factor, pattern)


def report(outcomes: list[Outcome], device: torch.device) -> dict[str, object]:
    """Return everything for machines."""
    return {
        "benchmark": "attention",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "heads_key_heads_width": SHAPES[device.type],
        "outcomes": [asdict(row) | {"ratio_to_floor": row.ratio_to_floor} for row in outcomes],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
