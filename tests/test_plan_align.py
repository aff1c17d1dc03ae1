"""Align rounds every document's share of its row up, and costs nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.plan import plan_rows


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 60), max_size=40),
    align=st.sampled_from([1, 2, 4, 8]),
    strategy=st.sampled_from(["best_fit_decreasing", "next_fit", "concat_then_split"]),
    policy=st.sampled_from(["truncate", "split", "drop"]),
    limit=st.none() | st.integers(1, 4),
    seed=st.none() | st.integers(0, 9),
)
def test_every_document_starts_at_a_multiple_of_align_and_no_row_overflows(
    *, lengths, align, strategy, policy, limit, seed
):
    options = {"strategy": strategy, "on_overflow": policy, "max_documents_per_row": limit, "seed": seed}
    plan = plan_rows(lengths, 32, align=align, **options)
    slots = [plan.row_slots(row) for row in range(plan.num_rows)]
    assert all((taken % align == 0).all() and taken.sum() <= 32 for taken in slots)
    assert all(
        ((taken - plan.row_pieces(row)[2] >= 0) & (taken - plan.row_pieces(row)[2] < align)).all()
        for row, taken in enumerate(slots)
    )
    assert sum(int(taken.sum()) for taken in slots) == plan.placed_slots
    assert plan.lower_bound <= plan.num_rows


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 32), max_size=50), st.sampled_from([2, 4, 8]))
def test_the_rows_are_those_of_documents_whose_lengths_were_rounded_up(lengths, align):
    plan = plan_rows(lengths, 32, align=align)
    rounded = plan_rows([-(-length // align) * align for length in lengths], 32)
    assert [row.tolist() for row in plan.rows()] == [row.tolist() for row in rounded.rows()]
    assert plan.lower_bound == rounded.lower_bound


def test_utilization_counts_tokens_and_not_what_align_rounds_up():
    plan = plan_rows([5, 2], 8, align=4)
    assert [row.tolist() for row in plan.rows()] == [[0], [1]]
    assert (plan.placed_slots, plan.placed_tokens, plan.utilization) == (12, 7, 7 / 16)
    assert [plan.row_slots(row).tolist() for row in range(2)] == [[8], [4]]


@pytest.mark.parametrize("capacity", [2**31 - 2, 2**30])
def test_rounding_up_the_longest_documents_leaves_32_bits_unharmed(capacity):
    plan = plan_rows([capacity, capacity - 1, 1], capacity, align=capacity // 2)
    assert [row.tolist() for row in plan.rows()] == [[0], [1], [2]]
    assert plan.placed_slots == 2 * capacity + capacity // 2


def test_an_empty_document_takes_no_share_and_every_other_a_whole_number_of_them():
    lengths = np.array([0, 1, 127, 128, 129])
    assert plan_rows(lengths, 256, align=128).placed_slots == 128 + 128 + 128 + 256
