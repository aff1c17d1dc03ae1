"""The four overflow policies: what each keeps, loses and reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.errors import DocumentTooLongError, PlanError
from hermetic.plan import OnlinePacker, plan_histogram, plan_rows
from hermetic.plan.arguments import OVERFLOW_POLICIES, STRATEGIES

LENGTHS = [5, 2, 3, 1]


def placed_tokens_by_document(plan):
    """Every (document, index) that the rows hold, counted from the pieces alone."""
    tokens = []
    for row in range(plan.num_rows):
        columns = (column.tolist() for column in plan.row_pieces(row))
        for document, start, length in zip(*columns, strict=True):
            tokens += [(document, start + index) for index in range(length)]
    return sorted(tokens)


def test_truncate_keeps_ten_of_eleven_tokens_and_reports_the_document_that_lost_one():
    plan = plan_rows(LENGTHS, 4, on_overflow="truncate")
    assert plan.placed_tokens == 10
    assert plan.lost_tokens == 1
    assert plan.lost_tokens_by_document == {0: 1}
    assert plan.dropped.tolist() == []
    assert plan.fragments is None
    assert [column.tolist() for column in plan.row_pieces(0)] == [[0], [0], [4]]


def test_split_keeps_all_eleven_tokens_in_fragments():
    plan = plan_rows(LENGTHS, 4, on_overflow="split")
    assert plan.placed_tokens == 11
    assert plan.lost_tokens == 0
    assert plan.lost_tokens_by_document == {}
    assert plan.fragments.document.tolist() == [0, 0, 1, 2, 3]
    assert plan.fragments.start.tolist() == [0, 4, 0, 0, 0]
    assert plan.fragments.length.tolist() == [4, 1, 2, 3, 1]
    assert [row.tolist() for row in plan.rows()] == [[0], [3, 1], [2, 4]]
    assert [column.tolist() for column in plan.row_pieces(1)] == [[2, 0], [0, 4], [3, 1]]


def test_drop_keeps_six_of_eleven_tokens_and_reports_the_dropped_document():
    plan = plan_rows(LENGTHS, 4, on_overflow="drop")
    assert plan.placed_tokens == 6
    assert plan.lost_tokens == 5
    assert plan.lost_tokens_by_document == {0: 5}
    assert plan.dropped.tolist() == [0]
    assert plan.num_documents == 4
    assert sorted(document for row in plan.rows() for document in row.tolist()) == [1, 2, 3]


def test_error_names_the_first_long_document_and_the_three_other_ways():
    with pytest.raises(DocumentTooLongError, match=r"document 0 has 5 tokens .*\(5 > 4\).*1 of 4") as caught:
        plan_rows(LENGTHS, 4)
    for policy in ("truncate", "split", "drop"):
        assert f"'{policy}'" in str(caught.value)
    assert caught.value.code == "HE101"


def test_error_counts_all_long_documents_but_names_the_first():
    with pytest.raises(DocumentTooLongError, match=r"document 2 has 9 tokens.*\(9 > 4\); too long: 2 of 4"):
        plan_rows([1, 4, 9, 7], 4, on_overflow="error")


def test_dropping_every_document_leaves_a_plan_without_rows():
    plan = plan_rows([5, 6], 4, on_overflow="drop")
    assert (plan.num_rows, plan.utilization, plan.lower_bound) == (0, 1.0, 0)
    assert plan.dropped.tolist() == [0, 1]
    assert plan.lost_tokens == 11


def test_splitting_a_multiple_of_the_capacity_makes_no_empty_fragment():
    plan = plan_rows([8, 0], 4, on_overflow="split")
    assert plan.fragments.length.tolist() == [4, 4]


@pytest.mark.parametrize("options", [{"on_overflow": "split"}, {"strategy": "concat_then_split"}])
def test_a_cut_into_more_fragments_than_a_plan_can_index_is_refused(options):
    with pytest.raises(PlanError, match=r"about 4611686018427387905 fragments; expected at most 2147483647"):
        plan_rows([2**62], 1, **options)


@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 25), max_size=40),
    capacity=st.integers(1, 12),
    strategy=st.sampled_from(STRATEGIES),
    policy=st.sampled_from(OVERFLOW_POLICIES[1:]),
    limit=st.none() | st.integers(1, 4),
    seed=st.none() | st.integers(0, 9),
)
def test_every_token_is_in_exactly_one_row_or_counted_as_lost(*, lengths, capacity, strategy, policy, limit, seed):
    limit = None if strategy == "optimal" else limit
    plan = plan_rows(lengths, capacity, strategy=strategy, on_overflow=policy, max_documents_per_row=limit, seed=seed)
    placed = placed_tokens_by_document(plan)
    assert len(set(placed)) == len(placed)
    lost = plan.lost_tokens_by_document
    for document, length in enumerate(lengths):
        indices = [index for owner, index in placed if owner == document]
        assert indices == list(range(length - lost.get(document, 0)))
    assert len(placed) == plan.placed_tokens == sum(lengths) - plan.lost_tokens
    assert all(plan.row_pieces(row)[2].sum() <= capacity for row in range(plan.num_rows))
    assert all(1 <= len(row) <= (limit or len(row)) for row in plan.rows())
    held = np.concatenate([np.empty(0, np.int64), *(plan.row_pieces(row)[0] for row in range(plan.num_rows))])
    assert set(held.tolist()) | set(plan.dropped.tolist()) | set(plan.empty.tolist()) == set(range(len(lengths)))
    assert plan.num_empty == len(plan.empty) == lengths.count(0)
    assert plan.lower_bound <= plan.num_rows
    assert 0.0 <= plan.utilization <= 1.0


def test_every_planner_names_the_option_to_python_and_to_the_command_line():
    def online():
        OnlinePacker(capacity=4, max_buffered_tokens=8).push("d", 5)

    for refused in (lambda: plan_rows(LENGTHS, 4), lambda: plan_histogram({5: 1}, 4), online):
        with pytest.raises(DocumentTooLongError, match=r"by on_overflow \(--on-overflow on the command line\): 'trunc"):
            refused()
