"""How fast and how tight are plans: hermetic, the packer of TRL, and a plain sort of the same lengths.

    python benchmarks/plan.py                                    10k, 100k and 1M chat-like lengths
    python benchmarks/plan.py --lengths FILE --capacity 4096     lengths of your own

FILE is JSON: ``{"lengths": [...]}``, or a histogram ``{"capacity": N, "counts": [...]}`` with ``counts[i]``
documents of ``i + 1`` tokens. Documents above the capacity are truncated, as TRL's "bfd" does.

What is measured: for hermetic the whole of ``plan_rows`` with its check of conservation, best of three after
a warm-up that compiles. For TRL the whole of ``pack_dataset``, which also moves the tokens; they are one byte
each here, so that moving them costs next to nothing. A stable argsort of the lengths is the yardstick: any
planner that sorts documents pays about that much. A contestant that would take longer than 30 s is left out,
and the table says so. The last line of the output is one JSON document.
"""

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from hermetic.plan import plan_rows

IntArray = npt.NDArray[np.int64]

STRATEGIES = ("best_fit_decreasing", "next_fit", "concat_then_split")
SIZES = (10_000, 100_000, 1_000_000)
RUNS = 3
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One contestant on one set of lengths; what does not apply is None."""

    contestant: str
    documents: int
    rows: int | None = None
    lower_bound: int | None = None
    utilization: float | None = None
    seconds: float | None = None
    documents_per_second: float | None = None
    runs: int = 0
    remark: str = ""


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    arguments = parsed_arguments()
    if arguments.lengths is None:
        capacity = arguments.capacity or 2_048
        data = [chat_like_lengths(size, capacity) for size in arguments.sizes]
    else:
        lengths, own_capacity = lengths_from_file(arguments.lengths)
        capacity = arguments.capacity or own_capacity or 2_048
        data = [lengths]
    for strategy in STRATEGIES:
        plan_rows(data[0][:100], capacity, strategy=strategy, on_overflow="truncate")  # compiles
    outcomes = [outcome for lengths in data for outcome in contest(lengths, capacity)]
    show(outcomes, capacity)
    print(json.dumps(report(outcomes, capacity), separators=(",", ":")))


def parsed_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="a JSON file with lengths or a histogram")
    parser.add_argument("--capacity", type=int, help="tokens per row (default: the file's own, else 2048)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of documents to make")
    return parser.parse_args()


def chat_like_lengths(size: int, capacity: int) -> IntArray:
    """Return ``size`` log-normal lengths (median 200 tokens, long tail), clipped to ``1..capacity``."""
    drawn = np.random.default_rng(0).lognormal(5.3, 0.9, size)
    return np.clip(drawn.astype(np.int64), 1, capacity)


def lengths_from_file(path: Path) -> tuple[IntArray, int | None]:
    """Return the lengths in a JSON file and the capacity that it states, if any."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if "lengths" in content:
        return np.array(content["lengths"], np.int64), content.get("capacity")
    counts = np.array(content["counts"], np.int64)
    sorted_lengths = np.repeat(np.arange(1, len(counts) + 1), counts)
    # A histogram has no order; a sorted one would be a gift to some contestants and a trap for others.
    return np.random.default_rng(0).permutation(sorted_lengths), content["capacity"]


def contest(lengths: IntArray, capacity: int) -> list[Outcome]:
    """Run every contestant on the same lengths."""
    ours = [hermetic_outcome(lengths, capacity, strategy) for strategy in STRATEGIES]
    return [*ours, sort_outcome(lengths), *trl_outcomes(lengths, capacity)]


def hermetic_outcome(lengths: IntArray, capacity: int, strategy: str) -> Outcome:
    """Measure ``plan_rows`` as a user calls it."""
    seconds, runs, plan = best_of(lambda: plan_rows(lengths, capacity, strategy=strategy, on_overflow="truncate"))
    return Outcome(
        contestant=f"hermetic {strategy}",
        documents=len(lengths),
        rows=plan.num_rows,
        lower_bound=plan.lower_bound,
        utilization=plan.utilization,
        seconds=seconds,
        documents_per_second=len(lengths) / seconds,
        runs=runs,
        remark=f"{plan.lost_tokens} tokens truncated" if plan.lost_tokens else "",
    )


def sort_outcome(lengths: IntArray) -> Outcome:
    """Measure what merely sorting the lengths costs in NumPy."""
    seconds, runs, _ = best_of(lambda: np.argsort(lengths, kind="stable"))
    return Outcome(
        contestant="numpy stable argsort",
        documents=len(lengths),
        seconds=seconds,
        documents_per_second=len(lengths) / seconds,
        runs=runs,
        remark="yardstick, plans nothing",
    )


def trl_outcomes(lengths: IntArray, capacity: int) -> list[Outcome]:
    """Measure TRL with its default batches of 1,000 documents and with one batch of all."""
    batches = {"trl bfd, default batches": 1_000, "trl bfd, one batch": len(lengths)}
    if importlib.util.find_spec("trl") is None:
        remark = "left out: trl is not installed (pip install trl datasets)"
        return [Outcome(contestant=name, documents=len(lengths), remark=remark) for name in batches]
    return [trl_outcome(lengths, capacity, name, batch_size) for name, batch_size in batches.items()]


def trl_outcome(lengths: IntArray, capacity: int, name: str, batch_size: int) -> Outcome:
    """Measure TRL on all lengths, unless a tenth of them says that it would take too long."""
    tenth = max(len(lengths) // 10, 1)
    expected = 10 * trl_seconds(lengths[:tenth], capacity, min(batch_size, tenth))[0]
    if expected > PATIENCE_SECONDS:
        return Outcome(contestant=name, documents=len(lengths), remark=f"left out: would take about {expected:.0f} s")
    seconds, runs, rows = trl_seconds(lengths, capacity, batch_size)
    return Outcome(
        contestant=name,
        documents=len(lengths),
        rows=rows,
        utilization=int(np.minimum(lengths, capacity).sum()) / (rows * capacity),
        seconds=seconds,
        documents_per_second=len(lengths) / seconds,
        runs=runs,
    )


def trl_seconds(lengths: IntArray, capacity: int, batch_size: int) -> tuple[float, int, int]:
    """Return the best time of ``trl.pack_dataset``, the runs that it took, and the rows."""
    import datasets
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int8)))
    documents = datasets.Dataset(pa.table({"input_ids": tokens}))
    options = {"batch_size": batch_size, "keep_in_memory": True}
    seconds, runs, packed = best_of(lambda: pack_dataset(documents, capacity, "bfd", options))
    return seconds, runs, len(packed)


def best_of(function: Callable[[], Any]) -> tuple[float, int, Any]:
    """Return the best of up to three times that fit into the patience, their number, and the last result."""
    times: list[float] = []
    while len(times) < RUNS and sum(times) + max(times, default=0.0) < PATIENCE_SECONDS:
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), len(times), result


def show(outcomes: list[Outcome], capacity: int) -> None:
    """Print the table for people."""
    table = Table(title=f"Plans at capacity {capacity:,}")
    table.add_column("contestant")
    for column in ("documents", "rows", "lower bound", "utilization", "seconds", "documents/s", "runs"):
        table.add_column(column, justify="right")
    table.add_column("remark")
    for outcome in outcomes:
        table.add_row(
            outcome.contestant,
            f"{outcome.documents:,}",
            shown(outcome.rows, ","),
            shown(outcome.lower_bound, ","),
            shown(outcome.utilization, ".4%"),
            shown(outcome.seconds, ".4f"),
            shown(outcome.documents_per_second, ",.0f"),
            str(outcome.runs or "-"),
            outcome.remark,
        )
    Console(width=170).print(table)


def shown(number: float | None, pattern: str) -> str:
    """Format a number; what does not apply is a dash."""
    return "-" if number is None else format(number, pattern)


def report(outcomes: list[Outcome], capacity: int) -> dict[str, Any]:
    """Return everything for machines."""
    return {
        "benchmark": "plan",
        "capacity": capacity,
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "machine": platform.machine(),
    }


if __name__ == "__main__":
    main()
