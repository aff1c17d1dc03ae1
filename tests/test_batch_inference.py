"""The one function that guesses documents from positions guesses by one rule, and says so in its name."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries
from hermetic.batch.views import position_ids_from_lengths
from hermetic.errors import BoundariesError

infer = Boundaries.infer_from_position_ids
full_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("position_ids", "lengths"),
    [
        ([0, 1, 2, 0, 1, 0], (3, 2, 1)),
        ([0, 0, 0], (1, 1, 1)),
        ([0, 1, 2, 0, 0, 1], (3, 1, 2)),
        ([3, 4, 5, 0, 1, 2], (3, 3)),
        ([0, 1, 2, 5, 6], (3, 2)),
        ([[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]], (3, 3, 2, 2, 2)),
        ([], ()),
    ],
)
def test_a_document_starts_at_a_row_start_and_wherever_the_step_is_not_one(position_ids, lengths):
    assert infer(position_ids).document_lengths == lengths


def test_three_documents_of_one_token_have_a_longest_of_one():
    assert infer([0, 0, 0]).max_seqlen == 1
    assert infer([0, 1, 2, 0, 1, 0]).cu_seqlens.tolist() == [0, 3, 5, 6]
    assert infer([3, 4, 5, 0, 1, 2]).cu_seqlens.tolist() == [0, 3, 6]


def test_padding_after_the_real_tokens_is_not_read_as_documents():
    position_ids = [2, 3, 4, 2, 3, 1, 1]

    assert infer(position_ids, num_tokens=5).cu_seqlens.tolist() == [0, 3, 5]
    assert infer(position_ids).cu_seqlens.tolist() == [0, 3, 5, 6, 7]  # what ignoring the padding costs


def test_two_rows_never_join_even_where_positions_run_on_across_them():
    assert infer([[0, 1, 2], [3, 4, 5]]).cu_seqlens.tolist() == [0, 3, 6]
    assert infer([0, 1, 2, 3, 4, 5]).cu_seqlens.tolist() == [0, 6]


def test_equal_planes_of_text_split_where_they_restart():
    planes = torch.tensor([0, 1, 2, 0, 1]).expand(3, 1, 5)

    assert infer(planes).cu_seqlens.tolist() == [0, 3, 5]


def test_a_restart_of_all_planes_splits_even_when_another_plane_differs_from_text():
    text = torch.tensor([0, 1, 2, 0, 1])
    image = torch.tensor([0, 1, 1, 0, 1])

    assert infer(torch.stack([image, text, text])[:, None]).cu_seqlens.tolist() == [0, 3, 5]


def test_one_plane_that_repeats_within_an_image_does_not_split_the_document():
    temporal, text = torch.tensor([0, 1, 1, 1, 2]), torch.arange(5)

    assert infer(torch.stack([temporal, text, text])[:, None]).cu_seqlens.tolist() == [0, 5]
    assert infer(temporal).num_documents == 3  # the one-plane rule would have split it


def test_plain_multi_axis_rows_are_one_document_each_and_axes_are_not_tokens():
    boundaries = infer(torch.arange(4).expand(3, 2, 4))

    assert boundaries.cu_seqlens.tolist() == [0, 4, 8]
    assert boundaries.num_tokens == 8


def test_text_on_several_axes_follows_the_same_rule_as_on_one():
    row = torch.tensor([3, 4, 5, 0, 1, 2])

    assert infer(row.expand(3, 1, 6)) == infer(row)


def test_each_row_of_a_multi_axis_batch_is_read_by_its_own_planes():
    image = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]])
    text = torch.tensor([5, 6, 0, 1]).expand(3, 4)

    assert infer(torch.stack([image, text], dim=1)).document_lengths == (4, 2, 2)


@given(lengths=full_lengths)
@settings(deadline=None, max_examples=100)
def test_restarting_positions_are_read_back_exactly_for_any_lengths(lengths):
    assert infer(position_ids_from_lengths(lengths)).document_lengths == tuple(lengths)


@given(lengths=full_lengths, tail=st.integers(0, 6))
@settings(deadline=None, max_examples=100)
def test_the_tail_beyond_the_real_tokens_never_changes_the_result(lengths, tail):
    positions = position_ids_from_lengths([*lengths, *[1] * tail])

    assert infer(positions, num_tokens=sum(lengths)).document_lengths == tuple(lengths)


@pytest.mark.parametrize(
    ("position_ids", "num_tokens", "message"),
    [
        ([0, -1], None, r"position_ids\[1\] is -1, expected 0 or more"),
        ([[0, 1], [0, -3]], None, r"position_ids\[1, 1\] is -3"),
        ([0.0, 1.0], None, r"position_ids has dtype float64"),
        ([True, False], None, r"position_ids\[0\] is True"),
        (torch.zeros(1, 1, 1, 1, dtype=torch.int64), None, r"has 4 dimensions .* expected 1 or 2 or 3"),
        (torch.zeros(0, 2, 3, dtype=torch.int64), None, r"position_ids has no planes \(shape \[0, 2, 3\]\)"),
        (
            [0, 1],
            3,
            r"num_tokens is 3, expected 0 to 2, the tokens that position_ids of shape \[2\] describe",
        ),
        ([0, 1], -1, r"num_tokens is -1, expected 0 to 2"),
    ],
)
def test_positions_that_count_nothing_are_refused_with_the_reason(position_ids, num_tokens, message):
    with pytest.raises(BoundariesError, match=message):
        infer(position_ids, num_tokens=num_tokens)
