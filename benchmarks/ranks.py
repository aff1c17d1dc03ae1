"""How even is the work of data-parallel ranks: rows dealt out in turn, and as ``Plan.assign`` gives them.

    python benchmarks/ranks.py                                      chat-like lengths
    python benchmarks/ranks.py --lengths FILE --capacity 2048 8192  {"lengths": [...]} as JSON

Documents above the capacity are cut to it. Two measures, both the largest over the mean work of the ranks: ``pass``
sums over all steps first, which is what a pass over the data takes longer than with perfectly even work; ``worst`` is
that of the worst single step. Work is ``tokens + sum(length²) / 49152``, a dense transformer of width 4,096, and
``sum(length²)``, attention alone, which no training is but long rows come near.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from plan import chat_like_lengths, lengths_from_file
from rich.console import Console
from rich.table import Table

from hermetic.plan import assign_rows, plan_rows, work_of_rows
from hermetic.plan.balance import DEFAULT_COST

COSTS = {"dense": DEFAULT_COST, "attention": (0.0, 1.0)}


def main() -> None:
    """Plan, assign, print a table."""
    arguments = parsed_arguments()
    lengths = (
        chat_like_lengths(20_000, 300, 1 << 30)
        if arguments.lengths is None
        else lengths_from_file(arguments.lengths)[0]
    )
    table = Table(title=f"{len(lengths):,} documents on {arguments.ranks} ranks: largest over mean work")
    for column in ("capacity", "rows per rank", "work", "steps", "in turn: pass", "worst", "assigned: pass", "worst"):
        table.add_column(column, justify="right")
    for capacity in arguments.capacity:
        placed = np.minimum(lengths[lengths > 0], capacity)
        plan = plan_rows(placed, capacity, seed=0)
        for rows_per_rank in (1, 4):
            for name, cost in COSTS.items():
                work = work_of_rows(plan.lengths[plan.order], plan.row_offsets, cost)
                assigned = assign_rows(work, arguments.ranks, rows_per_rank=rows_per_rank).work
                in_turn = work[: rows_per_rank * assigned.size].reshape(-1, arguments.ranks, rows_per_rank).sum(axis=2)
                shown = [f"{number:.4f}" for steps in (in_turn, assigned) for number in measures(steps)]
                table.add_row(f"{capacity:,}", str(rows_per_rank), name, f"{len(assigned):,}", *shown)
    Console(width=120).print(table)


def parsed_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="a JSON file of lengths")
    parser.add_argument("--capacity", type=int, nargs="+", default=(2_048, 8_192), help="tokens per row")
    parser.add_argument("--ranks", type=int, default=8, help="data-parallel ranks")
    return parser.parse_args()


def measures(work: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return largest over mean work, over all steps and of the worst, for ``work [steps, ranks]``."""
    largest, mean = work.max(axis=1), work.mean(axis=1)
    return float(largest.sum() / mean.sum()), float((largest / mean).max())


if __name__ == "__main__":
    main()
