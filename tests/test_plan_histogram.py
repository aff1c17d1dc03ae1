"""Plans from a histogram alone, against plans of the documents themselves."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.errors import ConservationError, DocumentTooLongError, PlanError
from hermetic.plan import HistogramPlan, plan_histogram, plan_rows
from hermetic.plan.arguments import OVERFLOW_POLICIES

PLAN = plan_histogram({6: 2, 4: 1, 3: 1}, 10)


def expanded(counts):
    return np.repeat(np.array(list(counts), np.int64), np.array(list(counts.values()), np.int64))


@settings(deadline=None, max_examples=200)
@given(
    counts=st.dictionaries(st.integers(0, 30), st.integers(0, 40), max_size=12),
    capacity=st.sampled_from([6, 12, 24]),
    policy=st.sampled_from(OVERFLOW_POLICIES[1:]),
    limit=st.none() | st.integers(1, 5),
    align=st.sampled_from([1, 2, 3]),
)
def test_a_histogram_has_as_many_rows_as_its_documents(*, counts, capacity, policy, limit, align):
    options = {"on_overflow": policy, "max_documents_per_row": limit, "align": align}
    plan = plan_histogram(counts, capacity, **options)
    rows = plan_rows(expanded(counts), capacity, **options)
    assert plan.num_rows == rows.num_rows
    assert (plan.num_documents, plan.num_empty) == (rows.num_documents, rows.num_empty)
    assert (plan.placed_tokens, plan.lost_tokens) == (rows.placed_tokens, rows.lost_tokens)
    assert (plan.utilization, plan.lower_bound, plan.certified) == (rows.utilization, rows.lower_bound, rows.certified)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.integers(1, 20), st.integers(1, 9), max_size=8))
def test_the_optimum_of_a_histogram_is_at_most_best_fit_and_at_least_its_bound(counts):
    plan = plan_histogram(counts, 20, strategy="optimal", time_limit=5)
    assert plan.lower_bound <= plan.num_rows <= plan_histogram(counts, 20).num_rows


def test_two_patterns_fill_two_rows():
    assert PLAN.patterns == (((6, 1), (3, 1)), ((6, 1), (4, 1)))
    assert PLAN.rows_per_pattern == (1, 1)
    assert (PLAN.num_rows, PLAN.lower_bound, PLAN.certified, PLAN.utilization) == (2, 2, True, 19 / 20)
    assert repr(PLAN) == (
        "<HistogramPlan best_fit_decreasing: 4 documents in 2 rows of 10 tokens, 2 patterns, utilization 0.9500>"
    )


def test_equal_patterns_are_one_pattern():
    plan = plan_histogram({6: 5_000, 4: 5_000}, 10)
    assert (plan.patterns, plan.rows_per_pattern) == ((((6, 1), (4, 1)),), (5_000,))


@pytest.mark.parametrize(
    "counts", [[0, 0, 1, 1, 0, 2], (0, 0, 1, 1, 0, 2), np.array([0, 0, 1, 1, 0, 2]), {3: 1, 4: 1, 6: np.int64(2), 9: 0}]
)
def test_counts_in_a_sequence_begin_with_documents_of_one_token(counts):
    assert plan_histogram(counts, 10) == PLAN


def test_a_plan_of_no_documents_has_no_rows():
    plan = plan_histogram({}, 4)
    assert (plan.num_rows, plan.patterns, plan.utilization, plan.lower_bound) == (0, (), 1.0, 0)
    assert plan_histogram({0: 7}, 4).num_empty == 7


def test_align_rounds_sizes_up_and_utilization_counts_tokens():
    plan = plan_histogram({5: 2, 3: 1}, 16, align=8)
    assert plan.patterns == (((8, 2),), ((8, 1),))
    assert plan.utilization == 13 / 32


def test_a_trillion_documents_are_planned_exactly():
    plan = plan_histogram({3: 10**12, 2: 10**12}, 10)
    assert plan.patterns == (((3, 3),), ((3, 1), (2, 3)), ((2, 5),), ((2, 2),))
    assert plan.rows_per_pattern == (333_333_333_333, 1, 199_999_999_999, 1)
    assert plan.lower_bound == 500_000_000_000


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({3: -1}, r"the number of documents of 3 tokens is -1; expected a whole number of at least 0"),
        ({-3: 1}, r"a length of the histogram is -3; expected a whole number of at least 0"),
        ({2.5: 1}, r"a length of the histogram is 2\.5, a float"),
        ([1, 2.0], r"the number of documents of 2 tokens is 2\.0, a float"),
        ([1, True], r"the number of documents of 2 tokens is True, a boolean"),
        (np.ones((2, 2), np.int64), r"counts of type ndarray has 2 dimensions; expected the number of documents"),
        (7, r"counts of type int has 0 dimensions"),
        ({3: 2**61}, r"holds 2305843009213693952 documents of 6917529027641081856 tokens; expected at most"),
    ],
)
def test_counts_that_are_no_histogram_are_refused_by_name(counts, message):
    with pytest.raises(PlanError, match=message):
        plan_histogram(counts, 10)


def test_documents_longer_than_a_row_are_refused_with_the_ways_out():
    with pytest.raises(DocumentTooLongError, match=r"5 documents have more than 4 tokens, the longest 9\. .*'split'"):
        plan_histogram({9: 2, 5: 3, 2: 1}, 4)


def test_a_strategy_that_needs_an_order_is_refused():
    with pytest.raises(PlanError, match=r"strategy is 'next_fit'; expected one of: best_fit_decreasing, optimal"):
        plan_histogram({3: 1}, 4, strategy="next_fit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows_per_pattern": (2, 1)}, r"2 pieces of 3 tokens are placed; expected 1"),
        ({"patterns": (((6, 1),), ((6, 1), (4, 1)))}, r"0 pieces of 3 tokens are placed; expected 1"),
        ({"patterns": (((6, 2),), ((4, 1), (3, 1)))}, r"pattern \(\(6, 2\),\) takes 12 of 10 tokens"),
        ({"max_documents_per_row": 1}, r"with 2 documents in 1 rows; .* at most 1 documents"),
        ({"counts": ((3, 1), (4, 1), (6, 3))}, r"2 pieces of 6 tokens are placed; expected 3"),
    ],
)
def test_patterns_that_do_not_hold_every_document_once_are_refused(changes, message):
    with pytest.raises(ConservationError, match=message):
        dataclasses.replace(PLAN, **changes)


def test_patterns_without_a_number_of_rows_are_refused():
    with pytest.raises(PlanError, match=r"there are 2 patterns and 1 numbers of rows"):
        dataclasses.replace(PLAN, rows_per_pattern=(1,))


def test_a_histogram_plan_is_frozen_and_compared_by_value():
    with pytest.raises(dataclasses.FrozenInstanceError, match="capacity"):
        PLAN.capacity = 5
    assert dataclasses.replace(PLAN) == PLAN
    assert dataclasses.replace(PLAN, prices=np.array([1, 1, 1])) != PLAN
    assert PLAN != "a plan"
    assert isinstance(PLAN, HistogramPlan)
