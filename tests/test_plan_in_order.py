"""The two strategies that keep the order: next_fit and concat_then_split, against slow references."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.plan import plan_rows

LENGTHS = st.lists(st.integers(0, 12), max_size=60)
LIMITS = st.none() | st.integers(1, 5)


def rows_of(plan):
    return [row.tolist() for row in plan.rows()]


def pieces_of(plan):
    """Each row as a list of (document, start, length)."""
    return [
        list(zip(*(column.tolist() for column in plan.row_pieces(row)), strict=True)) for row in range(plan.num_rows)
    ]


def next_fit_one_by_one(lengths, capacity, limit):
    rows = []
    free = -1
    for document, length in enumerate(lengths):
        if length == 0:
            continue
        if length > free or (limit is not None and len(rows[-1]) == limit):
            rows.append([])
            free = capacity
        rows[-1].append(document)
        free -= length
    return rows


def stream_cut_token_by_token(lengths, capacity):
    """Row of each token, as the sequence of (document, index) in each row."""
    tokens = [(document, index) for document, length in enumerate(lengths) for index in range(length)]
    return [tokens[begin : begin + capacity] for begin in range(0, len(tokens), capacity)]


@settings(deadline=None, max_examples=200)
@given(LENGTHS, st.integers(12, 30), LIMITS)
def test_next_fit_closes_a_row_when_the_next_document_does_not_fit(lengths, capacity, limit):
    plan = plan_rows(lengths, capacity, strategy="next_fit", max_documents_per_row=limit)
    assert rows_of(plan) == next_fit_one_by_one(lengths, capacity, limit)


def test_next_fit_never_looks_back_at_a_closed_row():
    assert rows_of(plan_rows([6, 5, 4, 1], 10, strategy="next_fit")) == [[0], [1, 2, 3]]
    assert rows_of(plan_rows([3, 8, 1], 10, strategy="next_fit")) == [[0], [1, 2]]


@settings(deadline=None, max_examples=200)
@given(LENGTHS, st.integers(1, 9))
def test_concat_then_split_cuts_the_stream_each_capacity_tokens(lengths, capacity):
    plan = plan_rows(lengths, capacity, strategy="concat_then_split")
    rows = [
        [(document, start + index) for document, start, length in row for index in range(length)]
        for row in pieces_of(plan)
    ]
    assert [row for row in rows if row] == stream_cut_token_by_token(lengths, capacity)
    assert plan.num_rows == plan.lower_bound
    assert plan.lost_tokens == 0


def test_concat_then_split_makes_fragments_in_the_order_of_document_and_start():
    plan = plan_rows([3, 6], 4, strategy="concat_then_split")
    assert pieces_of(plan) == [[(0, 0, 3), (1, 0, 1)], [(1, 1, 4)], [(1, 5, 1)]]
    assert rows_of(plan) == [[0, 1], [2], [3]]
    assert plan.fragments.document.tolist() == [0, 1, 1, 1]
    assert plan.fragments.start.tolist() == [0, 0, 1, 5]
    assert plan.fragments.length.tolist() == [3, 1, 4, 1]
    assert len(plan.fragments) == 4


def test_concat_then_split_makes_no_fragment_of_an_empty_document():
    plan = plan_rows([4, 0, 1], 4, strategy="concat_then_split")
    assert pieces_of(plan) == [[(0, 0, 4)], [(2, 0, 1)]]
    assert (plan.num_empty, plan.empty.tolist()) == (1, [1])


def test_concat_then_split_rounds_the_share_of_each_fragment_up_to_align():
    plan = plan_rows([3, 6], 8, strategy="concat_then_split", align=4)
    assert pieces_of(plan) == [[(0, 0, 3), (1, 0, 4)], [(1, 4, 2)]]
    assert (plan.lower_bound, plan.placed_slots, plan.utilization) == (2, 12, 9 / 16)


def test_concat_then_split_closes_a_row_early_at_the_document_limit():
    plan = plan_rows([1, 1, 1, 4], 4, strategy="concat_then_split", max_documents_per_row=2)
    assert pieces_of(plan) == [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1), (3, 0, 3)], [(3, 3, 1)]]
    assert plan.lower_bound == 2


def test_concat_then_split_cuts_whatever_the_overflow_policy_says():
    plans = [
        plan_rows([9, 2], 4, strategy="concat_then_split", on_overflow=policy)
        for policy in ("error", "truncate", "split", "drop")
    ]
    assert all(plan == plans[0] for plan in plans)
    assert plans[0].on_overflow == "split"
    assert plans[0].placed_tokens == 11


def test_no_documents_make_no_rows_in_either_strategy():
    for strategy in ("next_fit", "concat_then_split"):
        plan = plan_rows([], 4, strategy=strategy)
        assert (plan.num_rows, plan.lower_bound, plan.utilization) == (0, 0, 1.0)
