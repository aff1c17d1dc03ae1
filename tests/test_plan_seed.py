"""A seed changes neighbours and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.plan import plan_rows
from hermetic.plan.arguments import STRATEGIES

LENGTHS = np.random.default_rng(5).integers(0, 9, size=300)


def lengths_in_rows(plan):
    return sorted(tuple(plan.row_pieces(row)[2].tolist()) for row in range(plan.num_rows))


def neighbours(plan):
    return {frozenset(row.tolist()) for row in plan.rows()}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_gives_the_same_plan(strategy):
    assert plan_rows(LENGTHS, 16, strategy=strategy, seed=7) == plan_rows(LENGTHS, 16, strategy=strategy, seed=7)


def test_no_seed_gives_the_same_plan_each_time():
    assert plan_rows(LENGTHS, 16) == plan_rows(LENGTHS, 16)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_seed_gives_other_neighbours_in_rows_of_the_same_lengths(strategy):
    natural = plan_rows(LENGTHS, 16, strategy=strategy)
    plans = [plan_rows(LENGTHS, 16, strategy=strategy, seed=seed) for seed in range(4)]
    for plan in plans:
        assert lengths_in_rows(plan) == lengths_in_rows(natural)
        assert (plan.num_rows, plan.utilization) == (natural.num_rows, natural.utilization)
    assert len({frozenset(neighbours(plan)) for plan in [natural, *plans]}) == 5


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(0, 20), max_size=50),
    policy=st.sampled_from(["truncate", "split", "drop"]),
    limit=st.none() | st.integers(1, 4),
    seed=st.integers(0, 2**64),
)
def test_a_seed_keeps_the_lengths_of_every_row_under_every_policy(lengths, policy, limit, seed):
    natural, exchanged = (
        plan_rows(lengths, 9, on_overflow=policy, max_documents_per_row=limit, seed=chosen) for chosen in (None, seed)
    )
    assert lengths_in_rows(exchanged) == lengths_in_rows(natural)
    assert exchanged.lost_tokens_by_document == natural.lost_tokens_by_document


def test_a_seed_shuffles_the_rows_even_when_no_two_lengths_are_equal():
    natural = plan_rows(range(1, 60), 59)
    exchanged = plan_rows(range(1, 60), 59, seed=3)
    assert neighbours(exchanged) == neighbours(natural)
    assert [row.tolist() for row in exchanged.rows()] != [row.tolist() for row in natural.rows()]


def test_every_epoch_pairs_other_neighbours_at_the_same_number_of_rows():
    plans = [plan_rows(LENGTHS, 16, seed=7, epoch=epoch) for epoch in range(4)]
    assert len({frozenset(neighbours(plan)) for plan in plans}) == 4
    assert {plan.num_rows for plan in plans} == {plan_rows(LENGTHS, 16).num_rows}
    assert plan_rows(LENGTHS, 16, seed=7, epoch=3) == plans[3]
    assert plan_rows(LENGTHS, 16, seed=7) == plans[0]


def test_the_shuffle_of_a_seed_is_the_same_on_every_platform_and_release():
    plan = plan_rows([4, 4, 4, 4, 2, 2, 2, 2, 1, 1], 6, seed=2024, epoch=1)
    assert [row.tolist() for row in plan.rows()] == [[0, 6], [1, 7], [2, 5], [9, 8], [3, 4]]
