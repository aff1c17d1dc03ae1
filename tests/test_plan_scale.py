"""Millions of documents: no more memory than promised, and what the real length files must give.

A test of the real files fails without HERMETIC_LENGTHS_DIR and says so.
"""

import subprocess
import sys

import numpy as np
import pytest
from length_files import length_file

from hermetic.plan import plan_histogram, plan_rows
from hermetic.plan.arguments import OVERFLOW_POLICIES

PEAK = """
import sys, tracemalloc
import numpy as np
from hermetic.plan import plan_rows
lengths = np.minimum(np.exp(np.random.default_rng(0).normal(np.log(300), 1, {number})) + 1, 8192).astype(np.{dtype})
plan_rows(lengths[:99], 8192, on_overflow="{policy}", seed={seed})
tracemalloc.start()
plan = plan_rows(lengths, 8192, on_overflow="{policy}", seed={seed})
print(tracemalloc.get_traced_memory()[1] / len(lengths))
"""


def peak_bytes_per_document(**values):
    command = [sys.executable, "-c", PEAK.format(**values)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("policy", ["error", "split"])
def test_a_million_documents_are_planned_and_checked_in_24_bytes_each(dtype, seed, policy):
    assert 8 < peak_bytes_per_document(number=1_000_000, dtype=dtype, seed=seed, policy=policy) <= 24


def test_the_measure_of_memory_sees_an_array_of_eight_bytes_a_document():
    program = PEAK.replace("tracemalloc.start()", "tracemalloc.start(); kept = np.zeros(2 * len(lengths))")
    command = [sys.executable, "-c", program.format(number=1_000_000, dtype="int32", seed=None, policy="error")]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) > 24


@pytest.mark.slow
@pytest.mark.lengths
@pytest.mark.parametrize(("capacity", "rows"), [(2_048, 4_673), (4_096, 2_326), (8_192, 1_163)])
@pytest.mark.parametrize("strategy", ["best_fit_decreasing", "optimal"])
def test_open_chat_lengths_take_at_most_these_rows(capacity, rows, strategy):
    lengths = length_file("openchat_v1_lengths.json")["lengths"]
    plan = plan_rows(lengths, capacity, strategy=strategy, time_limit=20 if strategy == "optimal" else None)
    assert plan.lower_bound <= plan.num_rows <= rows


@pytest.mark.slow
@pytest.mark.lengths
def test_sixteen_million_wikipedia_documents_are_planned_to_within_one_row_of_the_proven_bound():
    counts = length_file("wikipedia_512_histogram.json")["counts"]
    first, plan = plan_histogram(counts, 512), plan_histogram(counts, 512, strategy="optimal", time_limit=100)
    assert first.num_rows <= 8_138_483
    assert plan.lower_bound == 8_135_727
    assert plan.num_rows <= 8_135_728


@pytest.mark.slow
@pytest.mark.lengths
def test_squad_takes_40195_rows_and_not_one_less():
    counts = length_file("squad_384_histogram.json")["counts"]
    plan = plan_histogram(counts, 384, strategy="optimal", time_limit=60)
    assert (plan.num_rows, plan.lower_bound, plan.certified) == (40_195, 40_195, True)


@pytest.mark.slow
@pytest.mark.lengths
@pytest.mark.parametrize("strategy", ["best_fit_decreasing", "next_fit", "concat_then_split"])
@pytest.mark.parametrize("policy", OVERFLOW_POLICIES[1:])
def test_the_ledger_of_every_policy_adds_up_on_share_gpt_to_the_token(strategy, policy):
    lengths = np.array(length_file("sharegpt_lengths.json")["lengths"])
    plan = plan_rows(lengths, 8_192, strategy=strategy, on_overflow=policy, seed=0)
    pieces = [plan.row_pieces(row) for row in range(plan.num_rows)]
    document, start, length = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.lexsort((start, document))
    document, start, length = document[order], start[order], length[order]
    fresh = np.concatenate([[True], document[1:] != document[:-1]])
    assert (start == np.where(fresh, 0, np.concatenate([[0], (start + length)[:-1]]))).all()
    kept = np.bincount(document, weights=length, minlength=len(lengths)).astype(np.int64)
    lost = np.zeros(len(lengths), np.int64)
    lost[list(plan.lost_tokens_by_document)] = list(plan.lost_tokens_by_document.values())
    assert (len(lengths), lengths.max(), plan.num_empty) == (17_671, 221_070, int((lengths == 0).sum()))
    assert (kept + lost == lengths).all()
    assert plan.placed_tokens + plan.lost_tokens == lengths.sum()
    assert sorted({*document.tolist(), *plan.dropped.tolist(), *plan.empty.tolist()}) == list(range(len(lengths)))
