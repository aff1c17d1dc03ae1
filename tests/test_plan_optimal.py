"""Strategy optimal: never worse than best fit, and a bound that is a proof."""

import dataclasses
import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.errors import PlanError
from hermetic.plan import Plan, optimal, plan_rows
from hermetic.plan.certificate import PRICE_OF_A_ROW, rows_from_prices
from hermetic.plan.histogram import Histogram, histogram_from_sizes
from hermetic.plan.knapsack import best_rows, best_value, packets_from_histogram, rows_from_taken

# Best fit makes 3 rows of 13 tokens of these (6 6, 5 4 3 and 2), the optimum is 2 (6 5 2 and 6 4 3).
HARD = [6, 6, 5, 4, 3, 2]
# By volume and L2, six times these need 14 rows of 13 tokens; prices prove 15, and best fit takes 16.
HARDER = [6, 5, 5, 5, 4, 4] * 6


def fewest_rows_by_search(lengths, capacity):
    """The optimum for a handful of pieces: every way to fill one more row, by recursion."""

    @cache
    def rows(left):
        if not left:
            return 0
        first, *others = left
        best = len(left)
        for number in range(len(others) + 1):
            for chosen in set(itertools.combinations(range(len(others)), number)):
                if first + sum(others[place] for place in chosen) <= capacity:
                    rest = tuple(length for place, length in enumerate(others) if place not in chosen)
                    best = min(best, 1 + rows(rest))
        return best

    return rows(tuple(sorted(lengths, reverse=True)))


def uniform_lengths():
    return np.random.default_rng(7).integers(50, 111, size=600)


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 30), st.data())
def test_the_optimal_strategy_finds_and_proves_the_optimum_of_small_problems(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=8))
    plan = plan_rows(lengths, capacity, strategy="optimal")
    optimum = fewest_rows_by_search(lengths, capacity)
    assert plan.lower_bound <= optimum == plan.num_rows


@settings(deadline=None, max_examples=50)
@given(st.integers(10, 60), st.data())
def test_the_optimal_strategy_is_never_worse_than_best_fit_and_never_below_its_bound(capacity, data):
    lengths = data.draw(st.lists(st.integers(0, capacity), max_size=60))
    plan, first = (plan_rows(lengths, capacity, strategy=name) for name in ("optimal", "best_fit_decreasing"))
    assert first.lower_bound <= plan.lower_bound <= plan.num_rows <= first.num_rows
    assert plan.certified == (plan.num_rows == plan.lower_bound)


def test_two_rows_are_found_where_best_fit_needs_three():
    first, plan = plan_rows(HARD, 13), plan_rows(HARD, 13, strategy="optimal")
    assert (first.num_rows, first.lower_bound, first.certified) == (3, 2, False)
    assert (plan.num_rows, plan.lower_bound, plan.certified) == (2, 2, True)
    assert plan.utilization == 1.0


def test_prices_prove_more_than_volume_and_l2_can():
    first, plan = plan_rows(HARDER, 13), plan_rows(HARDER, 13, strategy="optimal")
    assert (first.num_rows, first.lower_bound) == (16, 14)
    assert (plan.num_rows, plan.lower_bound, plan.certified) == (15, 15, True)


def test_what_best_fit_leaves_empty_on_middling_lengths_is_not_needed():
    lengths = uniform_lengths()
    first, plan = plan_rows(lengths, 205), plan_rows(lengths, 205, strategy="optimal", time_limit=20)
    assert plan.num_rows < 0.96 * first.num_rows
    assert plan.num_rows - plan.lower_bound <= 2


def test_a_plan_that_l2_proves_optimal_needs_no_prices():
    plan = plan_rows([6, 6, 6], 10, strategy="optimal")
    assert (plan.num_rows, plan.certified, plan.prices) == (3, True, None)


def test_a_time_limit_too_short_for_anything_gives_best_fit_and_an_honest_bound():
    lengths = uniform_lengths()
    plan, first = plan_rows(lengths, 205, strategy="optimal", time_limit=1e-9), plan_rows(lengths, 205)
    assert [row.tolist() for row in plan.rows()] == [row.tolist() for row in first.rows()]
    assert plan.lower_bound == first.lower_bound < plan.num_rows
    assert not plan.certified


def test_tables_that_would_not_fit_into_memory_are_refused_before_they_are_made():
    lengths = np.arange(300_000, 400_000, 7)
    with pytest.raises(PlanError, match=r"would need a table of \d+ bytes for 14286 distinct sizes .*Raise align"):
        plan_rows(lengths, 1_000_003, strategy="optimal")


def test_rows_too_large_for_exact_sums_of_prices_are_refused():
    lengths = [5_000_000, 4_000_000, 3_000_001, 3_000_000, 3_000_000, 2_000_001, 1_999_998]
    with pytest.raises(PlanError, match=r"rows of up to 4194304 units of align, and this is 11000000\. Raise align"):
        plan_rows(lengths, 11_000_000, strategy="optimal")
    with pytest.raises(PlanError, match=r"prices prove nothing for a row of 11000000 units of align"):
        dataclasses.replace(plan_rows(lengths, 11_000_000), prices=np.zeros(6, np.int64))


def test_every_way_into_the_optimum_keeps_the_ledger():
    lengths = np.random.default_rng(3).integers(0, 400, size=500)
    for policy in ("truncate", "split", "drop"):
        plan = plan_rows(lengths, 256, strategy="optimal", on_overflow=policy, align=4, seed=1, time_limit=5)
        assert plan.placed_tokens + plan.lost_tokens == lengths.sum()
        assert plan.num_rows <= plan_rows(lengths, 256, on_overflow=policy, align=4).num_rows


def test_a_saved_plan_keeps_its_certificate(tmp_path):
    plan = plan_rows(HARDER, 13, strategy="optimal")
    assert plan.prices is not None
    plan.save(tmp_path / "plan.npz")
    loaded = Plan.load(tmp_path / "plan.npz")
    assert loaded == plan
    assert (loaded.lower_bound, loaded.certified) == (plan.lower_bound, plan.certified)


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 25), st.data())
def test_no_prices_whatsoever_prove_more_rows_than_are_needed(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=7))
    sizes = sorted(set(lengths), reverse=True)
    prices = data.draw(st.lists(st.integers(0, PRICE_OF_A_ROW), min_size=len(sizes), max_size=len(sizes)))
    plan = dataclasses.replace(plan_rows(lengths, capacity), prices=np.array(prices, np.int64))
    assert plan.lower_bound <= fewest_rows_by_search(lengths, capacity)


def test_a_price_of_one_row_for_each_of_three_that_never_meet_proves_three_rows():
    histogram = histogram_from_sizes(np.array([6, 6, 6], np.int32))
    assert rows_from_prices(histogram, np.array([PRICE_OF_A_ROW]), 10) == 3
    assert rows_from_prices(histogram, np.array([0]), 10) == 0


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 20), st.data())
def test_the_knapsack_finds_the_most_valuable_row_of_all_rows(capacity, data):
    sizes = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=4, unique=True).map(sorted))[::-1]
    counts = data.draw(st.lists(st.integers(1, 5), min_size=len(sizes), max_size=len(sizes)))
    prices = np.array(data.draw(st.lists(st.integers(0, 50), min_size=len(sizes), max_size=len(sizes))))
    histogram = Histogram(sizes=np.array(sizes), counts=np.array(counts))
    packets = packets_from_histogram(histogram, capacity)
    rows = [row for row in itertools.product(*(range(n + 1) for n in counts)) if np.dot(row, sizes) <= capacity]
    expected = max(int(np.dot(row, prices)) for row in rows)
    best, taken = best_rows(histogram.sizes, prices, packets, capacity)
    row = rows_from_taken(histogram.sizes, packets, taken, np.array([capacity]))[:, 0]
    assert best_value(histogram.sizes, prices, packets, capacity) == best[-1] == row @ prices == expected
    assert tuple(row.tolist()) in rows


def test_a_search_that_finds_nothing_better_returns_best_fit(monkeypatch):
    def none_better(task, relaxation, near_one):  # noqa: ARG001 - the signature of what it stands in for
        return optimal._Rows(np.ones((5, 3), np.int64), np.ones(3, np.int64))

    monkeypatch.setattr(optimal, "_dive", none_better)
    plan, first = plan_rows(HARD, 13, strategy="optimal"), plan_rows(HARD, 13)
    assert [row.tolist() for row in plan.rows()] == [row.tolist() for row in first.rows()]
    assert plan.num_rows == 3


@pytest.mark.slow
def test_ten_thousand_documents_of_500_to_1100_tokens_need_a_twentieth_fewer_rows_than_best_fit_gives_them():
    lengths = np.random.default_rng(0).integers(500, 1101, size=10_000)
    first, plan = plan_rows(lengths, 2_048), plan_rows(lengths, 2_048, strategy="optimal", time_limit=60)
    assert first.num_rows == 4_218
    assert plan.lower_bound == 3_981
    assert plan.num_rows <= 3_983
