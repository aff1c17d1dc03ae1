"""A plan that lost, repeated or invented anything cannot be made: each kind of damage is caught by name."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.errors import ConservationError, PlanError
from hermetic.plan import Plan, plan_rows
from hermetic.plan.fragments import Fragments


def ints(*values):
    return np.array(values, np.int64)


# Rows [0, 1] and [3, 2] of 4 tokens each.
WHOLE = plan_rows([3, 1, 2, 2], 4)
# Document 0 is too long and left out; the rows are [1] and [2].
DROPPED = plan_rows([9, 4, 2], 4, on_overflow="drop")
# Fragments (0, 0, 4), (0, 4, 1), (1, 0, 2).
CUT = plan_rows([5, 2], 4, on_overflow="split")


EMPTY = plan_rows([4, 0], 4)
ALIGNED = plan_rows([1, 2], 4)


def with_fragments(**changes):
    return {"fragments": dataclasses.replace(CUT.fragments, **changes)}


def test_the_plans_that_the_damage_below_starts_from_are_sound():
    assert [row.tolist() for row in WHOLE.rows()] == [[0, 1], [2, 3]]
    assert [row.tolist() for row in DROPPED.rows()] == [[1], [2]]
    assert [row.tolist() for row in CUT.rows()] == [[0], [2, 1]]
    assert dataclasses.replace(WHOLE) == WHOLE
    assert dataclasses.replace(CUT) == CUT


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        (WHOLE, {"order": ints(0, 1, 2, 2)}, r"document 2 is placed 2 times, in rows \[1, 1\]"),
        (WHOLE, {"order": ints(0, 1, 0, 3)}, r"document 0 is placed 2 times, in rows \[0, 1\]"),
        (WHOLE, {"order": ints(0, 1, 2, 4)}, r"row 1 holds document 4, but there are 4 documents"),
        (WHOLE, {"order": ints(-1, 1, 2, 3)}, r"row 0 holds document -1, but there are 4 documents"),
        (WHOLE, {"order": ints(0, 1, 2)}, r"row_offsets ends at 4, but 3 pieces are placed"),
        (WHOLE, {"order": ints(0, 1, 2), "row_offsets": ints(0, 2, 3)}, r"document 3 is in no row"),
        (WHOLE, {"lengths": ints(3, 1, 2, 2, 1)}, r"document 4 is in no row"),
        (WHOLE, {"row_offsets": ints(0, 2)}, r"row_offsets ends at 2, but 4 pieces are placed"),
        (WHOLE, {"row_offsets": ints(1, 2, 4)}, r"row_offsets starts with \[1\]; expected \[0\]"),
        (WHOLE, {"row_offsets": ints()}, r"row_offsets starts with \[\]; expected \[0\]"),
        (WHOLE, {"row_offsets": ints(0, 3, 2, 4)}, r"row 1 starts at 3 and ends at 2"),
        (WHOLE, {"row_offsets": ints(0, 2, 2, 4)}, r"row 1 starts at 2 and ends at 2; every row holds"),
        (WHOLE, {"row_offsets": ints(0, 1, 4)}, r"row 1 holds 5 tokens, more than the capacity 4"),
        (WHOLE, {"lengths": ints(3, 2, 2, 2)}, r"row 0 holds 5 tokens, more than the capacity 4"),
        (WHOLE, {"capacity": 3}, r"row 0 holds 4 tokens, more than the capacity 3"),
        (WHOLE, {"max_documents_per_row": 1}, r"row 0 holds 2 documents, more than max_documents_per_row 1"),
        (DROPPED, {"on_overflow": "error"}, r"document 0 is in no row"),
        (DROPPED, {"on_overflow": "truncate"}, r"document 0 is in no row"),
        (
            DROPPED,
            {"order": ints(1, 2, 0), "row_offsets": ints(0, 1, 2, 3)},
            r"document 0 is in row 2, but it is longer than a row and dropped",
        ),
        (EMPTY, {"order": ints(0, 1), "row_offsets": ints(0, 2)}, r"document 1 is in row 0, but it is empty"),
        (ALIGNED, {"align": 4}, r"row 0 holds 8 tokens in slots of 4, more than the capacity 4"),
        (CUT, {"order": ints(0, 2, 2)}, r"fragment 2 is placed 2 times, in rows \[1, 1\]"),
        (CUT, {"order": ints(0, 2), "row_offsets": ints(0, 1, 2)}, r"fragment 1 is in no row"),
        (CUT, {"lengths": ints(6, 2)}, r"fragment 1 \(document 0, start 4, length 1\): it is the last one"),
        (CUT, {"lengths": ints(4, 2)}, r"fragment 1 \(document 0, start 4, length 1\): it reaches outside"),
        (CUT, {"lengths": ints(5, 2, 1)}, r"document 2 has no fragment"),
        (CUT, {"lengths": ints(5)}, r"fragment 2 \(document 1, .*\): there are 1 documents"),
        (CUT, with_fragments(document=ints(0, 0, -1)), r"fragment 2 \(document -1, .*there are 2 documents"),
        (CUT, with_fragments(start=ints(0, 3, 0)), r"fragment 1 .*: it does not start where the fragment"),
        (CUT, with_fragments(start=ints(1, 4, 0)), r"fragment 0 .*: it does not start where the fragment"),
        (CUT, with_fragments(length=ints(4, 1, 1)), r"fragment 2 .*: it is the last one and does not reach"),
        (
            CUT,
            with_fragments(length=ints(4, 0, 2)),
            r"fragment 1 .*: it is empty, and an empty document has no fragment",
        ),
        (CUT, with_fragments(length=ints(4, -1, 2)), r"fragment 1 .*: it reaches outside of its document"),
        (
            CUT,
            with_fragments(start=ints(0, 2**63 - 1, 0), length=ints(4, 2**63 - 1, 2)),
            r"fragment 1 .*: it reaches outside of its document",
        ),
        (
            CUT,
            with_fragments(document=ints(1, 0, 1), start=ints(0, 0, 0), length=ints(2, 5, 2)),
            r"fragment 1 .*: fragments are in the order of their documents, and it is not",
        ),
    ],
)
def test_every_kind_of_damage_is_refused_and_names_the_first_offender(plan, changes, message):
    with pytest.raises(ConservationError, match=message):
        dataclasses.replace(plan, **changes)


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        (WHOLE, {"lengths": ints(3, -1, 2, 2)}, r"document 1 has length -1"),
        (WHOLE, {"capacity": 0}, r"capacity is 0"),
        (WHOLE, {"strategy": "first_fit"}, r"strategy is 'first_fit'; expected one of"),
        (WHOLE, {"strategy": "concat_then_split"}, r"has on_overflow 'error'; expected 'split', for it cuts"),
        (WHOLE, {"on_overflow": "split"}, r"fragments is None; with on_overflow 'split' expected Fragments"),
        (CUT, {"on_overflow": "drop"}, r"fragments is a Fragments; with on_overflow 'drop' expected None"),
        (CUT, {"fragments": [1]}, r"fragments is a list; with on_overflow 'split' expected Fragments"),
        (WHOLE, {"order": [0, 1, 2, 3]}, r"order must be a one-dimensional NumPy array .*but it is list"),
        (WHOLE, {"order": np.zeros(4)}, r"order must be .*but it is shape \(4,\), float64"),
        (WHOLE, {"row_offsets": np.zeros((1, 2), np.int64)}, r"row_offsets must be .*shape \(1, 2\), int64"),
        (WHOLE, {"seed": 1.0}, r"seed is 1\.0, a float"),
        (WHOLE, {"epoch": 1}, r"epoch is 1, but seed is None"),
        (WHOLE, {"align": 3}, r"align is 3 and does not divide the capacity 4"),
        (WHOLE, {"order": np.array([0, 2**64 - 1], np.uint64)}, r"order holds 18446744073709551615; expected at most"),
        (WHOLE, {"prices": ints(1, 2)}, r"prices has 2 entries for 3 distinct sizes of pieces"),
        (WHOLE, {"prices": ints(1, 2, -3)}, r"the price of size 1 is -3; expected 0 to 1099511627776"),
        (WHOLE, {"prices": ints(2**41, 2, 3)}, r"the price of size 3 is 2199023255552; expected 0 to"),
        (WHOLE, {"max_documents_per_row": 0}, r"max_documents_per_row is 0"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_refused(plan, changes, message):
    with pytest.raises(PlanError, match=message):
        dataclasses.replace(plan, **changes)


def test_fragments_of_unequal_columns_are_refused():
    with pytest.raises(PlanError, match=r"1 documents, 2 starts and 1 lengths; expected one of each"):
        Fragments(document=ints(0), start=ints(0, 1), length=ints(1))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=30), st.data())
def test_a_plan_with_any_one_document_replaced_by_another_is_refused(lengths, data):
    plan = plan_rows(lengths, 9)
    place = data.draw(st.integers(0, len(lengths) - 1))
    other = data.draw(st.integers(0, len(lengths) - 1).filter(lambda d: d != plan.order[place]))
    order = plan.order.copy()
    order[place] = other
    with pytest.raises(ConservationError, match=r"is in no row|is placed 2 times"):
        dataclasses.replace(plan, order=order)


def test_the_arrays_of_a_plan_are_read_only_copies():
    order = WHOLE.order.copy()
    plan = dataclasses.replace(WHOLE, order=order)
    order[:] = 0
    assert plan == WHOLE
    for array in (plan.lengths, plan.order, plan.row_offsets, plan.row(0), CUT.fragments.start):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_plan_is_frozen_and_differs_from_a_plan_of_other_rows():
    with pytest.raises(dataclasses.FrozenInstanceError, match="capacity"):
        WHOLE.capacity = 5
    assert dataclasses.replace(WHOLE, order=ints(3, 2, 1, 0)[[3, 2, 0, 1]]) != WHOLE
    assert WHOLE != "a plan"
    assert CUT.fragments != "fragments"
    assert isinstance(WHOLE, Plan)
