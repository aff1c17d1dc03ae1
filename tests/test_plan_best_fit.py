"""Best-fit-decreasing against a slow reference that places one document at a time."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.plan import plan_rows
from hermetic.plan.best_fit import _add, _empty_bitmap, _lowest_bit, _next_member, _remove


@dataclass
class SlowRow:
    free: int
    documents: list[int] = field(default_factory=list)
    arrived: int = 0  # when the row came to its present free space


def best_fit_decreasing_one_by_one(lengths, capacity, limit=None):
    """The definition: longest first, tightest row first, among equally tight rows the latest arrival."""
    rows = []
    longest_first = sorted(range(len(lengths)), key=lambda document: -lengths[document])
    longest_first = [document for document in longest_first if lengths[document] > 0]
    for clock, document in enumerate(longest_first):
        fitting = [
            row for row in rows if row.free >= lengths[document] and (limit is None or len(row.documents) < limit)
        ]
        if not fitting:
            rows.append(SlowRow(free=capacity))
            fitting = rows[-1:]
        row = min(fitting, key=lambda row: (row.free, -row.arrived))
        row.documents.append(document)
        row.free -= lengths[document]
        row.arrived = clock
    return [row.documents for row in rows]


def best_fit_decreasing_in_groups(lengths, capacity):
    """The same definition with a stack of rows for each free space, fast enough for thousands of documents."""
    rows, stacks = [], {}
    for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
        free = min((space for space in stacks if space >= lengths[document]), default=None)
        if free is None:
            rows.append([])
            row, free = len(rows) - 1, capacity
        else:
            row = stacks[free].pop()
            if not stacks[free]:
                del stacks[free]
        rows[row].append(document)
        stacks.setdefault(free - lengths[document], []).append(row)
    return rows


def rows_of(plan):
    return [row.tolist() for row in plan.rows()]


@st.composite
def packing_problems(draw, *, largest_capacity):
    capacity = draw(st.integers(1, largest_capacity))
    lengths = draw(st.lists(st.integers(0, capacity), max_size=80))
    limit = draw(st.none() | st.integers(1, 6))
    return lengths, capacity, limit


@settings(deadline=None, max_examples=200)
@given(packing_problems(largest_capacity=30))
def test_the_rows_are_those_of_document_by_document_best_fit_decreasing(problem):
    lengths, capacity, limit = problem
    plan = plan_rows(lengths, capacity, max_documents_per_row=limit)
    assert rows_of(plan) == best_fit_decreasing_one_by_one(lengths, capacity, limit)


@settings(deadline=None, max_examples=100)
@given(packing_problems(largest_capacity=2**31 - 1).filter(lambda problem: sum(problem[0]) < 3_000_000))
def test_the_rows_are_the_same_when_the_capacity_exceeds_all_tokens(problem):
    lengths, capacity, limit = problem
    plan = plan_rows(lengths, capacity, max_documents_per_row=limit)
    assert rows_of(plan) == best_fit_decreasing_one_by_one(lengths, capacity, limit)


@pytest.mark.parametrize("capacity", [63, 64, 65, 4_095, 4_096, 4_097, 300_000])
@pytest.mark.parametrize("limit", [None, 3])
def test_the_rows_are_the_same_at_every_number_of_bitmap_levels(capacity, limit):
    generator = np.random.default_rng(capacity)
    lengths = np.minimum(generator.geometric(4 / capacity, size=400), capacity)
    plan = plan_rows(lengths, capacity, max_documents_per_row=limit)
    assert rows_of(plan) == best_fit_decreasing_one_by_one(lengths.tolist(), capacity, limit)


def test_six_documents_fill_two_rows_exactly():
    plan = plan_rows([6, 4, 3, 3, 2, 2], 10)
    assert [[int(plan.lengths[document]) for document in row] for row in plan.rows()] == [
        [6, 4],
        [3, 3, 2, 2],
    ]
    assert plan.utilization == 1.0


def test_thousands_of_one_token_documents_share_one_row():
    plan = plan_rows([1] * 2_500, 4_096)
    assert plan.num_rows == 1
    assert sorted(plan.row(0).tolist()) == list(range(2_500))


def test_equal_lengths_are_placed_in_the_order_of_their_documents():
    assert rows_of(plan_rows([2, 2, 2, 2, 2], 4)) == [[0, 1], [2, 3], [4]]


def test_among_equally_tight_rows_the_latest_arrival_is_filled_first():
    # Both rows have 3 tokens free when the documents of 2 tokens come; row 1 arrived there last.
    assert rows_of(plan_rows([7, 7, 2, 2], 10)) == [[0, 3], [1, 2]]


def test_empty_documents_are_counted_and_not_placed():
    plan = plan_rows([0, 4, 3, 0], 4)
    assert rows_of(plan) == [[1], [2]]
    assert (plan.num_documents, plan.num_empty, plan.empty.tolist()) == (4, 2, [0, 3])
    assert plan.placed_tokens == 7


def test_empty_documents_alone_make_no_row():
    plan = plan_rows([0, 0, 0], 4)
    assert rows_of(plan) == []
    assert (plan.num_documents, plan.num_empty, plan.lower_bound, plan.utilization) == (3, 3, 0, 1.0)


@pytest.mark.parametrize("capacity", [2**22 - 1, 2**22, 2**24 + 1, 2**29])
@pytest.mark.parametrize("limit", [None, 3])
def test_the_rows_are_the_same_where_neighbouring_free_spaces_share_a_place(capacity, limit):
    generator = np.random.default_rng(capacity)
    steps = generator.integers(1, 20, size=300) * (capacity // 37) + generator.integers(0, 9, size=300)
    lengths = np.minimum(steps, capacity)
    plan = plan_rows(lengths, capacity, max_documents_per_row=limit)
    assert rows_of(plan) == best_fit_decreasing_one_by_one(lengths.tolist(), capacity, limit)


def test_many_equal_documents_are_placed_as_one_group():
    lengths = np.repeat([700, 400, 90], [5_000, 7_000, 11_000])
    plan = plan_rows(lengths, 1_000)
    assert rows_of(plan) == best_fit_decreasing_in_groups(lengths.tolist(), 1_000)


def test_no_documents_make_no_rows():
    plan = plan_rows([], 4)
    assert (plan.num_rows, plan.num_documents, plan.lower_bound, plan.utilization) == (0, 0, 0, 1.0)
    assert rows_of(plan) == []


def test_a_row_at_its_document_limit_is_closed_even_with_free_space():
    assert rows_of(plan_rows([1, 1, 1, 1, 1], 100, max_documents_per_row=2)) == [[0, 1], [2, 3], [4]]


def test_the_largest_capacity_costs_no_memory_when_the_documents_are_short():
    assert rows_of(plan_rows([3, 5], 2**31 - 1)) == [[1, 0]]


@settings(deadline=None, max_examples=100)
@given(
    size=st.sampled_from([1, 64, 65, 4_096, 4_097, 300_000]),
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 60),
)
def test_the_bitmap_answers_like_a_sorted_set(size, seed, steps):
    generator = np.random.default_rng(seed)
    words, levels = _empty_bitmap(size)
    members = set()
    for _ in range(steps):
        number = int(generator.integers(size))
        if number in members:
            _remove(words, levels, number)
            members.remove(number)
        else:
            _add(words, levels, number)
            members.add(number)
        least = int(generator.integers(size + 1))
        expected = min((member for member in members if member >= least), default=-1)
        assert _next_member(words, levels, least) == expected


def test_the_lowest_bit_of_every_power_of_two_is_its_exponent():
    assert [_lowest_bit(np.uint64(2**bit)) for bit in range(64)] == list(range(64))
    assert _lowest_bit(np.uint64(0b1011000)) == 3
