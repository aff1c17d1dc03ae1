"""How fast is a BlockMask made: from the boundaries, and by evaluating its rule for each pair of tokens.

    python benchmarks/block_mask.py

Contestants, on one core of the CPU and in the same run:

- ``hermetic``: ``block_mask_from_boundaries``, made anew each time.
- ``create_block_mask``: PyTorch's, of the very same ``mask_mod``, up to 16k tokens; its memory grows with the square.

Best of up to seven runs after a first one. The masks are compared, all eight tensors of them, wherever both are made.
The last line of the output is one JSON document.
"""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from hermetic.attention.block_mask import BLOCK_SIZE, block_mask_from_boundaries
from hermetic.batch import Boundaries

TOKENS = (2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
LONGEST_PEER = 16_384  # tokens
PATTERNS: dict[str, tuple[int, int | None]] = {
    "documents of 300": (300, None),
    "one document, window 1000": (TOKENS[-1], 1000),
}
"""Tokens of the longest document, and the window."""

RUNS = 7
PATIENCE_SECONDS = 1.0
TENSORS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One row under one pattern; what was not measured is None."""

    pattern: str
    tokens: int
    hermetic_seconds: float
    create_block_mask_seconds: float | None = None
    equal: bool | None = None

    @property
    def ratio(self) -> float | None:
        """How many times faster hermetic is."""
        return (
            None if self.create_block_mask_seconds is None else self.create_block_mask_seconds / self.hermetic_seconds
        )


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    torch.set_num_threads(1)
    for pattern in PATTERNS:  # whatever the first mask of a process costs is nobody's
        outcome(pattern, BLOCK_SIZE)
    outcomes = [outcome(pattern, tokens) for pattern in PATTERNS for tokens in TOKENS]
    show(outcomes)
    print(json.dumps(report(outcomes), separators=(",", ":")))


def outcome(pattern: str, tokens: int) -> Outcome:
    """Measure one row under one pattern."""
    longest, window = PATTERNS[pattern]
    boundaries = documents(tokens, longest)

    def ours() -> BlockMask:
        return block_mask_from_boundaries(boundaries, window=window)

    mask = ours()
    if tokens > LONGEST_PEER:
        return Outcome(pattern=pattern, tokens=tokens, hermetic_seconds=best_of(ours))

    def theirs() -> BlockMask:
        return create_block_mask(mask.mask_mod, 1, 1, tokens, tokens, device="cpu", BLOCK_SIZE=BLOCK_SIZE)

    return Outcome(
        pattern=pattern,
        tokens=tokens,
        hermetic_seconds=best_of(ours),
        create_block_mask_seconds=best_of(theirs),
        equal=same(mask, theirs()),
    )


def same(one: BlockMask, other: BlockMask) -> bool:
    """Compare all tensors, the unused entries of the tables included."""
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in TENSORS)


def documents(tokens: int, longest: int) -> Boundaries:
    """As many of the longest documents as there is room for, and what is left."""
    return Boundaries.from_lengths([longest] * (tokens // longest) + [tokens % longest])


def best_of(function: Callable[[], object]) -> float:
    """Return the best time in seconds of as many runs as fit into the patience; the first is the warm-up."""

    def timed() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    times = [timed()]  # counts only if it alone tries the patience
    while len(times) <= RUNS and sum(times) < PATIENCE_SECONDS:
        times.append(timed())
    return min(times[1:] or times)


def show(outcomes: list[Outcome]) -> None:
    """Print the table for people."""
    table = Table(title=f"A causal BlockMask in blocks of {BLOCK_SIZE}, on one core")
    table.add_column("pattern")
    for column in ("tokens", "hermetic, ms", "create_block_mask, ms", "ratio", "equal"):
        table.add_column(column, justify="right")
    for row in outcomes:
        peer = row.create_block_mask_seconds
        table.add_row(
            row.pattern,
            f"{row.tokens:,}",
            shown(1e3 * row.hermetic_seconds, ",.2f"),
            shown(None if peer is None else 1e3 * peer, ",.0f"),
            shown(row.ratio, ",.0f"),
            {True: "yes", False: "NO", None: "-"}[row.equal],
            end_section=row.tokens == TOKENS[-1],
        )
    Console(width=120).print(table)


def shown(number: float | None, pattern: str) -> str:
    """Format a number; what does not apply is a dash."""
    return "-" if number is None else format(number, pattern)


def report(outcomes: list[Outcome]) -> dict[str, object]:
    """Return everything for machines."""
    return {
        "benchmark": "block_mask",
        "device": platform.machine(),
        "threads": torch.get_num_threads(),
        "block_size": BLOCK_SIZE,
        "outcomes": [{**asdict(row), "ratio": row.ratio} for row in outcomes],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
