"""Rows to ranks: every row once, equal counts, nearly equal work, and a true report of how nearly."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from length_files import length_file

import hermetic.plan.balance
from hermetic.errors import ConservationError, PlanError
from hermetic.plan import Assignment, assign_rows, plan_rows, work_of_rows

WORK = st.lists(st.integers(0, 50) | st.floats(0, 1e6), max_size=40)


@settings(deadline=None, max_examples=150)
@given(work=WORK, ranks=st.integers(1, 9), rows_per_rank=st.integers(1, 5), seed=st.integers(0, 2**40))
def test_every_row_is_at_one_place_or_remains_and_every_rank_has_as_many(work, ranks, rows_per_rank, seed):
    made = assign_rows(work, ranks, rows_per_rank=rows_per_rank, seed=seed)
    steps, remain = divmod(len(work), ranks * rows_per_rank)
    assert made.rows.shape == (steps, ranks, rows_per_rank)
    assert sorted([*made.rows.ravel().tolist(), *made.remainder.tolist()]) == list(range(len(work)))
    assert len(made.remainder) == remain
    assert made.num_steps == steps
    placed = [work[row] for row in made.rows.ravel()]
    assert all(work[row] <= min(placed, default=np.inf) for row in made.remainder), "a heavier row was left out"


@settings(deadline=None, max_examples=100)
@given(work=WORK, ranks=st.integers(1, 5), rows_per_rank=st.integers(1, 4))
def test_the_reported_imbalance_is_the_one_of_the_rows(work, ranks, rows_per_rank):
    made = assign_rows(work, ranks, rows_per_rank=rows_per_rank)
    sums = [[sum(work[row] for row in rank) for rank in step] for step in made.rows.tolist()]
    ratios = [max(step) / (sum(step) / ranks) if sum(step) else 1.0 for step in sums]
    total = sum(map(sum, sums)) / ranks
    np.testing.assert_allclose(made.work, np.array(sums).reshape(made.work.shape), rtol=1e-12)
    np.testing.assert_allclose(made.imbalance, ratios, rtol=1e-9)
    assert made.slowdown == pytest.approx(sum(map(max, sums)) / total if total else 1.0, rel=1e-9)


def smallest_sum_of_largest(work, ranks):
    """By trying every order: the least sum over steps of the largest work, one row per rank."""
    return min(sum(map(max, batches(order, ranks))) for order in itertools.permutations(work))


def batches(values, size):
    return [values[start : start + size] for start in range(0, len(values), size)]


@settings(deadline=None, max_examples=25)
@given(work=st.lists(st.integers(0, 20), min_size=6, max_size=6), ranks=st.sampled_from([2, 3]))
def test_with_one_row_per_rank_no_other_steps_are_faster(work, ranks):
    made = assign_rows(work, ranks)
    assert made.work.max(axis=1).sum() == smallest_sum_of_largest(work, ranks)


def test_largest_differencing_lays_the_largest_of_one_tuple_onto_the_smallest_of_the_other():
    assert assign_rows([4, 1, 3, 2], 2, rows_per_rank=2).work.tolist() == [[5, 5]]
    assert assign_rows([9, 6, 5, 4, 2, 1], 3, rows_per_rank=2).work.tolist() == [[10, 8, 9]]


def test_several_rows_per_rank_come_closer_than_dealing_them_out_in_turn():
    work = np.random.default_rng(0).lognormal(0, 1, 8 * 4 * 50)
    dealt = np.sort(work)[::-1].reshape(4, 50, 8).sum(axis=0)
    made = assign_rows(work, 8, rows_per_rank=4)
    assert made.slowdown < dealt.max(axis=1).sum() / dealt.mean(axis=1).sum()


def test_the_same_seed_gives_the_same_assignment_and_another_one_other_steps():
    work = np.random.default_rng(0).random(400)
    first, again, other = (assign_rows(work, 8, rows_per_rank=2, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.rows, again.rows)
    assert not np.array_equal(first.rows, other.rows)
    assert first.slowdown == pytest.approx(other.slowdown)


def test_fewer_rows_than_ranks_make_no_step_and_all_of_them_remain():
    made = assign_rows([1.0, 2.0], 3)
    assert (made.num_steps, made.remainder.tolist(), made.slowdown) == (0, [0, 1], 1.0)
    assert made.imbalance.shape == (0,)


def test_the_example_of_an_assignment_is_true():
    made = assign_rows([4, 1, 3, 1, 3], 2)
    assert {tuple(sorted(step.ravel().tolist())) for step in made.rows} == {(0, 2), (1, 4)}
    assert made.remainder.tolist() == [3]
    assert made.slowdown == (4 + 3) / (3.5 + 2)


def test_the_work_of_a_row_counts_its_tokens_and_the_squares_of_its_lengths():
    work = work_of_rows(np.array([3, 1, 4]), np.array([0, 2, 3]), (1, 2))
    assert work.tolist() == [4 + 2 * 10, 4 + 2 * 16]
    assert work_of_rows(np.empty(0, np.int64), np.array([0])).tolist() == []


@pytest.mark.parametrize("policy", ["truncate", "split", "drop"])
def test_a_plan_assigns_its_own_rows_by_the_lengths_that_it_placed(policy):
    plan = plan_rows([9, 5, 4, 4, 2, 1, 7], 6, on_overflow=policy)
    made = plan.assign(2, cost=(10, 1))
    for row in range(plan.num_rows):
        _, _, length = plan.row_pieces(row)
        assert made.row_work[row] == 10 * length.sum() + (length**2).sum()
    assert len(made.remainder) == plan.num_rows % 2


def test_natural_lengths_are_within_two_percent_at_eight_ranks():
    lengths = np.clip(np.random.default_rng(0).lognormal(6.5, 1.0, 20_000).astype(np.int64), 1, 8_192)
    plan = plan_rows(lengths, 8_192, seed=0)
    in_turn = plan.assign(1).row_work[: plan.num_rows // 8 * 8].reshape(-1, 8)
    assert plan.assign(8).slowdown <= 1.02 < in_turn.max(axis=1).sum() / in_turn.mean(axis=1).sum()


@pytest.mark.slow
@pytest.mark.lengths
@pytest.mark.parametrize("name", ["openchat_v1_lengths.json", "sharegpt_lengths.json"])
@pytest.mark.parametrize("capacity", [2_048, 4_096, 8_192])
@pytest.mark.parametrize("rows_per_rank", [1, 4])
def test_real_lengths_are_within_a_thousandth_over_a_pass_and_within_two_percent_in_all_steps_but_one(
    name, capacity, rows_per_rank
):
    lengths = length_file(name)["lengths"]
    plan = plan_rows(lengths, capacity, on_overflow="truncate", seed=0)
    made = plan.assign(8, rows_per_rank=rows_per_rank)
    assert made.slowdown <= 1.001
    assert (made.imbalance > 1.02).sum() <= (rows_per_rank == 1 and capacity == 8_192), "a single uneven step at most"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks is 0; expected a whole number of at least 1"),
        ({"rows_per_rank": 1.5}, r"rows_per_rank is 1\.5, a float"),
        ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
        ({"row_work": [1.0, -2.0]}, r"row 1 has work -2\.0; expected a finite number of at least 0"),
        ({"row_work": [np.nan]}, "row 0 has work nan; expected a finite number"),
        ({"row_work": [[1.0]]}, r"row_work has the shape \(1, 1\); expected one number for each row"),
        ({"row_work": ["x"]}, "row_work is no array of numbers"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises(PlanError, match=message):
        assign_rows(**({"row_work": [1.0], "ranks": 1} | arguments))


@pytest.mark.parametrize("cost", [5, (1,), (1, 2, 3), ("a", 1), None])
def test_a_cost_that_is_no_pair_of_numbers_is_refused(cost):
    with pytest.raises(PlanError, match=r"cost is .*; expected \(a, b\), the work of a token and of a squared length"):
        plan_rows([1], 2).assign(1, cost=cost)


@pytest.mark.parametrize("cost", [(0, 0), (-1, 2), (np.inf, 1), (1, np.nan)])
def test_a_cost_without_work_is_refused(cost):
    with pytest.raises(PlanError, match="expected two finite numbers of at least 0, and not both 0"):
        plan_rows([1], 2).assign(1, cost=cost)


@pytest.mark.parametrize(("rows", "remainder"), [([[[0]]], []), ([[[0]], [[0]]], []), ([[[0]]], [0]), ([[[2]]], [0])])
def test_an_assignment_that_loses_or_repeats_a_row_cannot_be_made(rows, remainder):
    with pytest.raises(ConservationError, match="but not each of the 2 exactly once"):
        Assignment(
            rows=np.array(rows, np.int64), remainder=np.array(remainder, np.int64), row_work=np.array([1.0, 2.0])
        )


def test_an_assignment_cannot_be_written_to():
    made = assign_rows([1.0, 2.0, 3.0], 2)
    for array in (made.rows, made.remainder, made.row_work):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_the_examples_of_the_module_are_true():
    assert doctest.testmod(hermetic.plan.balance) == (0, 1)
