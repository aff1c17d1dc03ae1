"""What a kernel call costs, what a token and what a pair of tokens, and whether the layout made of it is the fastest.

    python benchmarks/attention_layout.py                      on one core of the CPU
    python benchmarks/attention_layout.py --device cuda
    python benchmarks/attention_layout.py --lengths-dir DIR    also real lengths, by default from HERMETIC_LENGTHS_DIR

The first table has the four prices of ``hermetic.attention.layout``, forward and backward, in float32 on the CPU and
bfloat16 on CUDA: those measured now beside those in use. A *call* is what each of 300 documents of one token costs
beyond the token. *Token* and *pair* are fitted to batches of equal documents of 16 to 1,024 tokens, so that the
relative errors are least. *Move* is what documents of 32 tokens cost more when they have to be brought together.

The second table runs each workload in four layouts: a *loop* over documents; *grouped*, where equal documents share a
call; *padded*, as few calls as a quarter of padding allows; and *chosen*, what ``packed_attention`` does. *Behind* is
how much longer the chosen one takes than the best of the four, *made in* what the host needs for the layout, once per
batch. The layouts take turns, and the best of up to five turns after a first one counts; on the CPU the seconds are
those that the core worked. The last line is one JSON document.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate, takewhile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hermetic.attention.layout import Group, Layout, Prices, layout_from_lengths, prices_on
from hermetic.attention.options import AttentionOptions
from hermetic.attention.sdpa import attend_in, on_device

HEADS, KEY_HEADS, WIDTH = 4, 2, 64
CHANNELS = HEADS * WIDTH
TURNS = 5
PATIENCE_SECONDS = 1.0
FITTED_WIDTHS = (16, 32, 64, 128, 256, 512, 1_024)
FITTED_TOKENS = 8_192
OPTIONS = AttentionOptions(
    causal=True, window=None, chunk=None, scale=WIDTH**-0.5, softcap=None, sinks=None, dropout=0.0
)
LENGTH_FILES = {"OpenChat": "openchat_v1_lengths.json", "ShareGPT": "sharegpt_lengths.json"}
ROW_TOKENS = 8_192
COLUMNS = ("documents", "tokens", "loop", "grouped", "padded", "chosen", "behind", "calls", "pads", "moves", "made in")

Lengths = tuple[int, ...]


def short_lengths() -> Lengths:
    """400 documents of 5 to 40 tokens."""
    return tuple(np.random.default_rng(0).integers(5, 41, 400).tolist())


MIXED = tuple(int(20 * 100 ** (i / 24)) for i in range(25))  # 20 to 2,000 tokens, evenly spread in their logarithm

WORKLOADS: dict[str, Lengths] = {
    "28 of 300": (300,) * 28,
    "420 of 20": (20,) * 420,
    "400 of 5 to 40": short_lengths(),
    "25 of 20 to 2000": MIXED,
    "20 and 380 in turn": (20, 380) * 21,
    "one of 6000, 120 of 20": (6_000, *(20,) * 120),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One workload; milliseconds of a forward and backward in each layout."""

    workload: str
    documents: int
    tokens: int
    loop: float
    grouped: float
    padded: float
    chosen: float
    chosen_calls: int
    chosen_padding: float
    """Pads per token."""
    chosen_moves: bool
    made_in: float
    """Milliseconds that making the chosen layout takes."""

    @property
    def behind(self) -> float:
        """How much longer the chosen layout takes than the best."""
        return self.chosen / min(self.loop, self.grouped, self.padded, self.chosen) - 1


def main() -> None:
    """Measure, print two tables, print one line of JSON."""
    arguments = parsed_arguments()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    measured, in_use = measured_prices(device), prices_on(device.type, CHANNELS)
    workloads = WORKLOADS | real_workloads(arguments.lengths_dir, ROW_TOKENS)
    outcomes = [outcome(name, lengths, device) for name, lengths in workloads.items()]
    show(measured, in_use, outcomes)
    print(json.dumps(report(measured, in_use, outcomes, device), separators=(",", ":")))


def parsed_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    folder = os.environ.get("HERMETIC_LENGTHS_DIR")
    parser.add_argument("--lengths-dir", type=Path, default=folder and Path(folder), help="folder of length files")
    return parser.parse_args()


def real_workloads(folder: Path | None, tokens: int) -> dict[str, Lengths]:
    """From each length file the first documents that fit into a row of so many tokens; nothing without a folder."""
    if folder is None:
        return {}
    return {f"{tokens // 1024}k of {name}": first_row(folder / file, tokens) for name, file in LENGTH_FILES.items()}


def first_row(path: Path, tokens: int) -> Lengths:
    """Documents in the order of the file, those too long for the row left out, until the row is full."""
    lengths = [x for x in json.loads(path.read_text(encoding="utf-8"))["lengths"] if 0 < x <= tokens]
    fitting = takewhile(lambda total: total <= tokens, accumulate(lengths))
    return tuple(lengths[: sum(1 for _ in fitting)])


def loop(lengths: Lengths) -> Layout:
    """One call for each document."""
    return Layout(groups=tuple(Group(width=x, lengths=(x,)) for x in lengths if x), tokens=None, slots=None)


def grouped(lengths: Lengths) -> Layout:
    """Equal documents share a call, wherever they lie: any padding is dearer than a call."""
    return layout_from_lengths(lengths, Prices(call=1e-6, token=1.0, pair=0.0, move=0.0))


def padded(lengths: Lengths) -> Layout:
    """As few calls as possible: a call is dearer than any padding."""
    return layout_from_lengths(lengths, Prices(call=1e9, token=1.0, pair=0.0, move=0.0))


def chosen(lengths: Lengths, device: torch.device) -> Layout:
    """What ``packed_attention`` takes."""
    return layout_from_lengths(lengths, prices_on(device.type, CHANNELS))


def moved(lengths: Lengths) -> Layout:
    """The batch of equal documents, which could lie where it is, in another order."""
    (width,) = set(lengths)
    order = np.random.default_rng(0).permutation(len(lengths))
    tokens = (order[:, None] * width + np.arange(width)).ravel()
    return Layout(groups=(Group(width=width, lengths=lengths),), tokens=tokens, slots=np.argsort(tokens))


def measured_prices(device: torch.device) -> Prices:
    """Measure all four; see the module's docstring."""
    documents = [(width,) * (FITTED_TOKENS // width) for width in FITTED_WIDTHS]
    times = np.array([core_seconds([step(chosen(lengths, device), device)], device)[0] for lengths in documents])
    # Dividing each equation by its time makes the errors relative.
    factors = FITTED_TOKENS * np.stack([np.ones(len(times)), np.array(FITTED_WIDTHS)], axis=1)
    token, pair = np.linalg.lstsq(factors / times[:, None], np.ones(len(times)), rcond=None)[0].tolist()
    few, many = core_seconds([step(loop((1,) * count), device) for count in (50, 350)], device)
    equal = (32,) * (FITTED_TOKENS // 32)
    lying, brought = core_seconds([step(layout(equal), device) for layout in (padded, moved)], device)
    prices = {
        "call": (many - few) / 300 - token,
        "token": token,
        "pair": pair,
        "move": (brought - lying) / FITTED_TOKENS,
    }
    return Prices(**{name: 1e6 * float(price) for name, price in prices.items()})


def step(layout: Layout, device: torch.device) -> Callable[[], object]:
    """A forward and backward in a layout."""
    tokens = sum(sum(group.lengths) for group in layout.groups)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(tokens, heads, WIDTH, device=device, dtype=dtype, generator=generator).requires_grad_()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    upstream, placed = torch.ones_like(q), on_device(layout, device)
    return lambda: torch.autograd.grad(attend_in(placed, q, k, v, OPTIONS), (q, k, v), upstream)


def best_seconds(
    functions: list[Callable[[], object]], device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the best time of each function; they take turns, so that a busy moment meets all.

    Each has a first turn that counts only if it alone tries the patience, and then turns until it does.
    """

    def timed(function: Callable[[], object]) -> float:
        start = clock()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    times = [[timed(function)] for function in functions]
    for _ in range(TURNS):
        for function, taken in zip(functions, times, strict=True):
            if sum(taken) < PATIENCE_SECONDS:
                taken.append(timed(function))
    return [min(taken[1:] or taken) for taken in times]


def core_seconds(functions: list[Callable[[], object]], device: torch.device) -> list[float]:
    """Return the best time of each; on the CPU only while the core worked for it."""
    return best_seconds(functions, device, time.process_time if device.type == "cpu" else time.perf_counter)


def outcome(workload: str, lengths: Lengths, device: torch.device) -> Outcome:
    """Run one workload in all layouts."""
    choice = chosen(lengths, device)
    tokens = sum(lengths)
    layouts = (loop(lengths), grouped(lengths), padded(lengths), choice)
    times = core_seconds([step(layout, device) for layout in layouts], device)
    loop_ms, grouped_ms, padded_ms, chosen_ms = (1e3 * seconds for seconds in times)
    (making,) = core_seconds([lambda: chosen(lengths, device)], torch.device("cpu"))
    return Outcome(
        workload=workload,
        documents=len(lengths),
        tokens=tokens,
        loop=loop_ms,
        grouped=grouped_ms,
        padded=padded_ms,
        chosen=chosen_ms,
        chosen_calls=len(choice.groups),
        chosen_padding=sum(group.num_slots for group in choice.groups) / tokens - 1,
        chosen_moves=choice.slots is not None,
        made_in=1e3 * making,
    )


def show(measured: Prices, in_use: Prices, outcomes: list[Outcome]) -> None:
    """Print both tables for people."""
    prices = Table(title=f"Prices in microseconds, {HEADS} heads over {KEY_HEADS} of width {WIDTH}")
    for column in ("", "a call", "a token", "a pair", "a move"):
        prices.add_column(column, justify="right")
    for name, price in (("measured", measured), ("in use", in_use)):
        prices.add_row(name, f"{price.call:.1f}", f"{price.token:.3f}", f"{price.pair:.5f}", f"{price.move:.3f}")
    table = Table(title="Forward and backward, milliseconds")
    table.add_column("workload")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in outcomes:
        times = (f"{x:.1f}" for x in (row.loop, row.grouped, row.padded, row.chosen))
        choice = (f"{row.chosen_calls}", f"{row.chosen_padding:.1%}", "yes" if row.chosen_moves else "no")
        counts = (f"{row.documents}", f"{row.tokens:,}")
        table.add_row(row.workload, *counts, *times, f"{row.behind:.1%}", *choice, f"{row.made_in:.2f}")
    console = Console(width=140)
    console.print(prices)
    console.print(table)


def report(measured: Prices, in_use: Prices, outcomes: list[Outcome], device: torch.device) -> dict[str, object]:
    """Return everything for machines."""
    return {
        "benchmark": "attention_layout",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "heads_key_heads_width": (HEADS, KEY_HEADS, WIDTH),
        "measured": asdict(measured),
        "in_use": asdict(in_use),
        "outcomes": [asdict(row) | {"behind": row.behind} for row in outcomes],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
