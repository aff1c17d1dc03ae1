"""The lower bound never exceeds the optimum, and says more than the volume where it should."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.plan import plan_rows
from hermetic.plan.bound import fewest_rows
from hermetic.plan.histogram import histogram_from_sizes


def fewest_rows_by_search(lengths, capacity, limit):
    """The optimum for a handful of pieces: every way to fill one more row, by recursion."""
    tokens = [sum(lengths[i] for i in range(len(lengths)) if s >> i & 1) for s in range(1 << len(lengths))]

    @cache
    def rows(left):
        if left == 0:
            return 0
        first = left & -left
        best = len(lengths)
        chosen = left
        while chosen:
            if chosen & first and tokens[chosen] <= capacity and chosen.bit_count() <= limit:
                best = min(best, 1 + rows(left & ~chosen))
            chosen = (chosen - 1) & left
        return best

    return rows((1 << len(lengths)) - 1)


def martello_toth_by_definition(lengths, capacity):
    """The bound as it is written down, one threshold and one list comprehension after the other."""
    best = 0
    for threshold in range(capacity // 2 + 1):
        alone = [length for length in lengths if length > capacity - threshold]
        halves = [length for length in lengths if capacity // 2 < length <= capacity - threshold]
        small = [length for length in lengths if threshold <= length <= capacity // 2]
        room = len(halves) * capacity - sum(halves)
        best = max(best, len(alone) + len(halves) + max(0, -((room - sum(small)) // capacity)))
    return best


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 20), st.data())
def test_no_plan_has_fewer_rows_than_the_lower_bound(capacity, data):
    lengths = data.draw(st.lists(st.integers(0, capacity), min_size=1, max_size=7))
    limit = data.draw(st.none() | st.integers(1, 4))
    placed = [length for length in lengths if length > 0]
    optimum = fewest_rows_by_search(placed, capacity, limit or len(lengths))
    plan = plan_rows(lengths, capacity, max_documents_per_row=limit)
    assert plan.lower_bound <= optimum <= plan.num_rows


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 40), st.data())
def test_the_bound_from_the_histogram_is_the_bound_by_its_definition(capacity, data):
    lengths = data.draw(st.lists(st.integers(0, capacity), min_size=1, max_size=60))
    expected = martello_toth_by_definition([length for length in lengths if length > 0], capacity)
    assert fewest_rows(histogram_from_sizes(np.array(lengths, np.int32)), capacity, None) == expected


def test_documents_above_half_the_capacity_never_share_a_row():
    assert plan_rows([6, 6, 6], 10).lower_bound == 3


def test_small_documents_count_only_beyond_the_room_beside_the_large_ones():
    # Threshold 4: the 7s stand alone and the 5s need two rows more. By volume 29 tokens need only 3 rows.
    assert plan_rows([7, 7, 5, 5, 5], 10).lower_bound == 4


def test_the_document_limit_raises_the_lower_bound():
    assert plan_rows([1] * 7, 100, max_documents_per_row=2).lower_bound == 4


def test_dropped_and_truncated_tokens_do_not_raise_the_lower_bound():
    assert plan_rows([50, 2, 2], 4, on_overflow="drop").lower_bound == 1
    assert plan_rows([50, 2, 2], 4, on_overflow="truncate").lower_bound == 2
    assert plan_rows([50, 2, 2], 4, on_overflow="split").lower_bound == 14


def test_a_stream_that_may_be_cut_is_bounded_by_its_volume_alone():
    assert plan_rows([6, 6, 6], 10, strategy="concat_then_split").lower_bound == 2
    assert plan_rows([0, 0], 10, strategy="concat_then_split").lower_bound == 0
