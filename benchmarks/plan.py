"""How fast and how tight are plans: hermetic and the packers that are in use, on the same lengths in the same run.

    python benchmarks/plan.py                                            10k, 100k and 1M chat-like lengths
    python benchmarks/plan.py --sizes 10000000 --median 300 --capacity 8192
    python benchmarks/plan.py --lengths FILE --capacity 4096             lengths of your own
    python benchmarks/plan.py --only "hermetic best"                     some of the contestants

FILE is JSON: ``{"lengths": [...]}``, or a histogram ``{"capacity": N, "counts": [...]}`` with ``counts[i]`` documents
of ``i + 1`` tokens. Documents above the capacity are cut to it beforehand, and empty ones left out.

What is measured: the call that its documentation shows, from lengths in the type that the packer takes to rows of
documents; for hermetic the whole of ``plan_rows`` with its check of conservation. TRL also moves the tokens; they are
one byte each here, so that moving them costs next to nothing. Each contestant first packs 200 documents, which
compiles; then the best of up to three runs counts. One that would take longer than 30 s by what a tenth of the
documents took is left out, and one that cannot be imported is "not installed": the table says so. Whether every
document is in exactly one row and no row is too full is checked for each; TRL keeps no ids, so there the lengths have
to agree.

The gap is rows above the lower bound of these lengths, uncut. Seconds and documents/s are those of repeated calls, with
memory that the process holds already. CPU seconds leave out what the process waited while others had its core, on a
busy machine the better measure. One more run starts with memory given back to the system and shows what a single
call costs: cold seconds, and as peak memory what the resident set grew by (Linux only; memory that an allocator of the
packer's own, such as Arrow's, held already does not show). A stable argsort is the yardstick: any planner that sorts
documents pays about that much. Set OMP_NUM_THREADS=1 to hold everyone to one core. The last line of the output is one
JSON document.
"""

import argparse
import ctypes
import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from hermetic.plan import OnlinePacker, plan_rows
from hermetic.plan.arguments import STRATEGIES

IntArray = npt.NDArray[np.int64]
Packing = Callable[[], Any]

SIZES = (10_000, 100_000, 1_000_000)
RUNS = 3
PATIENCE_SECONDS = 30.0
WARM_UP_DOCUMENTS = 200
OPTIMAL_SECONDS = 10
ONLINE_BUFFER_DOCUMENTS = 10_000
GLIBC_TRIM_THRESHOLD, GLIBC_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """A packer that can be measured."""

    name: str
    prepare: Callable[[IntArray, int], Packing]
    """Gets the input ready, for lengths and a capacity, and returns the call to measure."""
    judge: Callable[[Any, IntArray, int], tuple[int, bool]]
    """Rows in what that call returned, and whether every document is in exactly one of them and none is too full."""
    remark: str = ""
    limited: bool = False
    """Whether it stops by itself, so that a tenth of the documents says nothing about its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One contestant on one set of lengths; what does not apply is None."""

    contestant: str
    documents: int
    rows: int | None = None
    lower_bound: int | None = None
    gap: float | None = None
    placed_once: bool | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    cold_seconds: float | None = None
    documents_per_second: float | None = None
    peak_bytes_per_document: float | None = None
    runs: int = 0
    remark: str = ""


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    arguments = parsed_arguments()
    keep_freed_memory()
    if arguments.lengths is None:
        capacity = arguments.capacity or 2_048
        data = [chat_like_lengths(size, arguments.median, capacity) for size in arguments.sizes]
    else:
        lengths, own_capacity = lengths_from_file(arguments.lengths)
        capacity = arguments.capacity or own_capacity or 2_048
        data = [np.minimum(lengths[lengths > 0], capacity)]
    chosen = [contestant for contestant in contestants() if arguments.only in contestant.name]
    outcomes = [outcome for lengths in data for outcome in contest(chosen, lengths, capacity)]
    show(outcomes, capacity)
    print(json.dumps(report(outcomes, capacity), separators=(",", ":")))


def parsed_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="a JSON file with lengths or a histogram")
    parser.add_argument("--capacity", type=int, help="tokens per row (default: the file's own, else 2048)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of documents to make")
    parser.add_argument("--median", type=float, default=200.0, help="of the lengths to make")
    parser.add_argument("--only", default="", help="leave out everyone whose name does not contain this")
    return parser.parse_args()


def chat_like_lengths(size: int, median: float, capacity: int) -> IntArray:
    """Return ``size`` log-normal lengths with a long tail, clipped to ``1..capacity``."""
    drawn = np.random.default_rng(0).lognormal(np.log(median), 0.9, size)
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


def contestants() -> list[Contestant]:
    """Everyone, ours first."""
    remarks = {"optimal": f"stops after {OPTIMAL_SECONDS} s", "concat_then_split": "cuts documents"}
    ours = [
        Contestant(
            name=f"hermetic {strategy}",
            prepare=hermetic_strategy(strategy),
            judge=judge_plan,
            remark=remarks.get(strategy, ""),
            limited=strategy == "optimal",
        )
        for strategy in STRATEGIES
    ]
    return [
        *ours,
        Contestant(name="hermetic OnlinePacker, 10k documents", prepare=hermetic_online, judge=judge_lists),
        Contestant(
            name="numpy stable argsort", prepare=stable_argsort, judge=judge_nothing, remark="yardstick, plans nothing"
        ),
        Contestant(
            name="trl pack_dataset bfd, default", prepare=trl_packing(1_000), judge=judge_trl, remark="moves tokens"
        ),
        Contestant(
            name="trl pack_dataset bfd, whole set", prepare=trl_packing(None), judge=judge_trl, remark="moves tokens"
        ),
        Contestant(name="lightbinpack obfd", prepare=lightbinpack_obfd, judge=judge_lists),
        Contestant(name="nemo-automodel greedy_knapsack", prepare=nemo_knapsack, judge=judge_lists),
        Contestant(name="ai2-olmo-core InstancePacker", prepare=olmo_packer, judge=judge_olmo),
        Contestant(name="axolotl pack_parallel", prepare=axolotl_packing, judge=judge_lists),
    ]


def contest(chosen: list[Contestant], lengths: IntArray, capacity: int) -> list[Outcome]:
    """Run the chosen contestants on the same lengths."""
    bound = plan_rows(lengths, capacity).lower_bound
    outcomes = []
    for contestant in chosen:
        print(f"{len(lengths):,} documents: {contestant.name}", file=sys.stderr)
        outcome = measured(contestant, lengths, capacity)
        if outcome.rows is not None:
            outcome = replace(outcome, lower_bound=bound, gap=outcome.rows / bound - 1)
        outcomes.append(outcome)
    return outcomes


def measured(contestant: Contestant, lengths: IntArray, capacity: int) -> Outcome:
    """Measure one contestant, unless it is not installed or a tenth says that it would take too long."""
    unmeasured = Outcome(contestant=contestant.name, documents=len(lengths), remark=contestant.remark)
    try:
        contestant.prepare(lengths[:WARM_UP_DOCUMENTS], capacity)()
    except ImportError as error:
        return replace(unmeasured, remark=f"not installed ({error})")
    expected = 0.0 if contestant.limited else expected_seconds(contestant, lengths, capacity)
    if expected > PATIENCE_SECONDS:
        return replace(unmeasured, remark=f"left out: would take about {expected:.0f} s")
    packing = contestant.prepare(lengths, capacity)
    times = [timed(packing)[:2]]
    while len(times) < RUNS and sum(wall for wall, _ in times) + max(times)[0] < PATIENCE_SECONDS:
        times.append(timed(packing)[:2])
    before = reset_peak_memory()
    cold_seconds, _, result = timed(packing)
    peak = peak_memory()
    rows, sound = contestant.judge(result, lengths, capacity)
    return replace(
        unmeasured,
        rows=rows or None,
        placed_once=sound if rows else None,
        seconds=min(times)[0],
        cpu_seconds=min(cpu for _, cpu in times),
        cold_seconds=cold_seconds,
        documents_per_second=len(lengths) / min(times)[0],
        peak_bytes_per_document=max(peak - before, 0) / len(lengths) if peak else None,
        runs=len(times),
    )


def expected_seconds(contestant: Contestant, lengths: IntArray, capacity: int) -> float:
    """Ten times what a tenth of the documents takes."""
    return 10 * timed(contestant.prepare(lengths[: max(len(lengths) // 10, 1)], capacity))[0]


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, for everyone alike; by default that depends on who allocated what before."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        most = 32 << 20  # glibc takes larger blocks from the system each time
        for option, value in ((GLIBC_MMAP_THRESHOLD, most), (GLIBC_TRIM_THRESHOLD, 2**31 - 1)):
            tune(option, value)


def timed(packing: Packing) -> tuple[float, float, Any]:
    """Return the seconds that a call takes, those that a core works for it, and what it returns."""
    start, cpu_start = time.perf_counter(), time.process_time()
    result = packing()
    return time.perf_counter() - start, time.process_time() - cpu_start, result


def reset_peak_memory() -> int:
    """Give memory back and forget the peak of the resident set; return it in bytes, 0 where Linux does not say."""
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        return 0
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    forget.write_text("5", encoding="ascii")
    return peak_memory()


def peak_memory() -> int:
    """Return the peak of the resident set in bytes since it was forgotten, 0 where Linux does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    (line,) = (line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def hermetic_strategy(strategy: str) -> Callable[[IntArray, int], Packing]:
    """``plan_rows`` as a user calls it."""
    options = {"time_limit": OPTIMAL_SECONDS} if strategy == "optimal" else {}
    return lambda lengths, capacity: lambda: plan_rows(lengths, capacity, strategy=strategy, **options)


def hermetic_online(lengths: IntArray, capacity: int) -> Packing:
    """Document after document through a buffer."""
    buffered = max(int(lengths.mean() * ONLINE_BUFFER_DOCUMENTS), capacity)
    documents = list(enumerate(lengths.tolist()))

    def pack() -> list[list[Any]]:
        packer = OnlinePacker(capacity, max_buffered_tokens=buffered)
        rows = [row for document, length in documents for row in packer.push(document, length)]
        return rows + packer.flush()

    return pack


def stable_argsort(lengths: IntArray, capacity: int) -> Packing:  # noqa: ARG001 - a sort knows no capacity
    """What merely sorting costs."""
    return lambda: np.argsort(lengths, kind="stable")


def trl_packing(batch_size: int | None) -> Callable[[IntArray, int], Packing]:
    """TRL's packer in windows of ``batch_size`` documents, or in one of all."""

    def prepare(lengths: IntArray, capacity: int) -> Packing:
        import datasets
        import pyarrow as pa
        from trl import pack_dataset

        datasets.disable_progress_bars()
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int8)))
        documents = datasets.Dataset(pa.table({"input_ids": tokens}))
        options = {"batch_size": batch_size or len(lengths), "keep_in_memory": True}
        return lambda: pack_dataset(documents, capacity, "bfd", options)

    return prepare


def lightbinpack_obfd(lengths: IntArray, capacity: int) -> Packing:
    """Its fastest best-fit-decreasing on one core."""
    import lightbinpack

    documents = lengths.tolist()
    return lambda: lightbinpack.obfd(documents, capacity)


def nemo_knapsack(lengths: IntArray, capacity: int) -> Packing:
    """NeMo Automodel's packer."""
    from nemo_automodel.components.datasets.llm.neat_packing import greedy_knapsack

    documents = lengths.tolist()
    return lambda: greedy_knapsack(documents, capacity)


def olmo_packer(lengths: IntArray, capacity: int) -> Packing:
    """OLMo-core's packer, from the edges of documents."""
    from olmo_core.data.utils import InstancePacker

    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    documents = np.stack([edges[:-1], edges[1:]], axis=1)
    return lambda: InstancePacker(capacity).pack_documents(documents)


def axolotl_packing(lengths: IntArray, capacity: int) -> Packing:
    """Axolotl's packer in groups of 100,000 documents, in this process."""
    from axolotl.utils.samplers.multipack import pack_parallel

    documents = lengths.astype(np.int32)
    return lambda: pack_parallel(documents, capacity, 100_000, capacity, 1)


def judge_plan(plan: Any, lengths: IntArray, capacity: int) -> tuple[int, bool]:
    """Check a plan by its rows, or by its fragments if it cuts."""
    if plan.fragments is None:
        return plan.num_rows, soundly_placed(plan.order, plan.row_offsets, lengths, capacity)
    pieces = plan.fragments
    tokens = np.bincount(pieces.document, weights=pieces.length, minlength=len(lengths))
    whole = np.array_equal(tokens, lengths)
    return plan.num_rows, whole and soundly_placed(plan.order, plan.row_offsets, pieces.length, capacity)


def judge_lists(rows: Sequence[Sequence[int]], lengths: IntArray, capacity: int) -> tuple[int, bool]:
    """Check rows that are lists of documents."""
    filled = [row for row in rows if len(row)]
    offsets = np.cumsum([0, *map(len, filled)])
    return len(filled), soundly_placed(np.concatenate(filled), offsets, lengths, capacity)


def judge_olmo(result: Any, lengths: IntArray, capacity: int) -> tuple[int, bool]:
    """Check OLMo-core's rows, which hold ranks in its own table of edges."""
    rows, edges, _ = result
    same = np.array_equal(np.sort(edges[:, 0]), np.cumsum(lengths) - lengths)
    count, sound = judge_lists(rows, edges[:, 1] - edges[:, 0], capacity)
    return count, bool(same and sound)


def judge_trl(packed: Any, lengths: IntArray, capacity: int) -> tuple[int, bool]:
    """Check TRL's rows by the lengths that they state, for it keeps no ids."""
    rows = packed.with_format("arrow")["seq_lengths"]
    sizes = np.array([sum(row) for row in rows.to_pylist()])
    stated = np.sort(np.concatenate([np.asarray(row) for row in rows.to_pylist()]))
    return len(packed), bool(np.array_equal(stated, np.sort(lengths)) and sizes.max() <= capacity)


def judge_nothing(result: Any, lengths: IntArray, capacity: int) -> tuple[int, bool]:  # noqa: ARG001 - no rows
    """Rows of someone who makes none."""
    return 0, False


def soundly_placed(order: IntArray, offsets: IntArray, lengths: IntArray, capacity: int) -> bool:
    """Whether every document is in exactly one row and no row is above the capacity."""
    once = np.array_equal(np.sort(order), np.arange(len(lengths)))
    return bool(once and np.add.reduceat(lengths[order], offsets[:-1]).max() <= capacity)


def show(outcomes: list[Outcome], capacity: int) -> None:
    """Print the table for people."""
    table = Table(title=f"Plans at capacity {capacity:,}")
    table.add_column("contestant")
    for column in (
        "documents",
        "rows",
        "gap",
        "placed once",
        "seconds",
        "CPU seconds",
        "cold seconds",
        "documents/s",
        "peak B/document",
        "runs",
    ):
        table.add_column(column, justify="right")
    table.add_column("remark")
    for outcome in outcomes:
        table.add_row(
            outcome.contestant,
            f"{outcome.documents:,}",
            shown(outcome.rows, ","),
            shown(outcome.gap, ".3%"),
            {True: "yes", False: "NO", None: "-"}[outcome.placed_once],
            shown(outcome.seconds, ".4f"),
            shown(outcome.cpu_seconds, ".4f"),
            shown(outcome.cold_seconds, ".4f"),
            shown(outcome.documents_per_second, ",.0f"),
            shown(outcome.peak_bytes_per_document, ",.0f"),
            str(outcome.runs or "-"),
            outcome.remark,
        )
    Console(width=200).print(table)


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
