"""Boundaries hold one fact, read it from every honest form, and refuse what does not describe documents."""

import dataclasses
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries, views
from hermetic.batch.boundaries import MAX_DOCUMENT_ID
from hermetic.constants import INT32_MAX
from hermetic.errors import BoundariesError

lengths_with_empties = st.lists(st.integers(0, 9), max_size=12)


def token_by_token(lengths):
    """The views written out with plain loops: slow, and obviously right."""
    positions = [position for length in lengths for position in range(length)]
    ids = [document for document, length in enumerate(lengths) for _ in range(length)]
    edges = [0]
    for length in lengths:
        if length:
            edges.append(edges[-1] + length)
    return positions, ids, edges


def test_lengths_3_and_5_give_the_known_views():
    boundaries = Boundaries.from_lengths([3, 5])

    assert boundaries.cu_seqlens.tolist() == [0, 3, 8]
    assert boundaries.max_seqlen == 5
    assert boundaries.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert boundaries.document_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert boundaries.lengths.tolist() == [3, 5]
    assert (boundaries.num_documents, boundaries.num_tokens) == (2, 8)


def test_an_empty_document_stays_in_the_lengths_and_has_no_edge():
    boundaries = Boundaries.from_lengths([3, 0, 2])

    assert boundaries.cu_seqlens.tolist() == [0, 3, 5]
    assert boundaries.max_seqlen == 3
    assert boundaries.num_documents == 3
    assert boundaries.lengths.tolist() == [3, 0, 2]
    assert boundaries.document_ids.tolist() == [0, 0, 0, 2, 2]


def test_no_documents_and_only_empty_documents_have_no_tokens_and_no_longest_one():
    for lengths in ([], [0, 0]):
        boundaries = Boundaries.from_lengths(lengths)

        assert boundaries.cu_seqlens.tolist() == [0]
        assert boundaries.max_seqlen == 0
        assert boundaries.position_ids.shape == (0,)
        assert boundaries.document_ids.shape == (0,)
        assert boundaries.num_documents == len(lengths)


def test_views_have_the_promised_dtypes_and_counts_are_python_ints():
    boundaries = Boundaries.from_lengths(np.array([3, 5]))

    assert boundaries.cu_seqlens.dtype == torch.int32
    assert boundaries.position_ids.dtype == torch.int64
    assert boundaries.document_ids.dtype == torch.int32
    assert boundaries.lengths.dtype == torch.int64
    assert all(type(n) is int for n in (boundaries.max_seqlen, boundaries.num_tokens, boundaries.num_documents))


@given(lengths=lengths_with_empties)
@settings(deadline=None, max_examples=200)
def test_every_view_equals_the_token_by_token_loop_for_any_lengths(lengths):
    boundaries = Boundaries.from_lengths(lengths)
    positions, ids, edges = token_by_token(lengths)

    assert boundaries.position_ids.tolist() == positions
    assert boundaries.document_ids.tolist() == ids
    assert boundaries.cu_seqlens.tolist() == edges
    assert boundaries.lengths.tolist() == lengths
    assert boundaries.num_tokens == sum(lengths)
    assert views.first_tokens_from_lengths(lengths).tolist() == edges[:-1]


@given(lengths=lengths_with_empties)
@settings(deadline=None, max_examples=100)
def test_lengths_edges_and_document_ids_describe_the_same_boundaries(lengths):
    boundaries = Boundaries.from_lengths(lengths)
    edges = list(accumulate(lengths, initial=0))

    assert Boundaries.from_cu_seqlens(edges) == boundaries
    last = max((index for index, length in enumerate(lengths) if length), default=-1)
    assert Boundaries.from_document_ids(boundaries.document_ids) == Boundaries.from_lengths(lengths[: last + 1])


@given(lengths=lengths_with_empties, tail=st.integers(0, 5))
@settings(deadline=None, max_examples=100)
def test_a_tail_in_document_ids_is_not_part_of_the_boundaries(lengths, tail):
    real = Boundaries.from_lengths(lengths)
    ids = views.document_ids_from_lengths(lengths, num_slots=sum(lengths) + tail)

    assert ids.tolist()[sum(lengths) :] == [-1] * tail
    assert Boundaries.from_document_ids(ids) == Boundaries.from_document_ids(real.document_ids)


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda v: np.array(v, dtype=np.uint16)])
def test_lists_arrays_and_tensors_are_read_alike(form):
    expected = Boundaries.from_lengths([3, 0, 2])

    assert Boundaries.from_lengths(form([3, 0, 2])) == expected
    assert Boundaries.from_cu_seqlens(form([0, 3, 3, 5])) == expected
    assert Boundaries.from_document_ids(form([0, 0, 0, 2, 2])) == expected
    assert Boundaries.infer_from_position_ids(form([0, 1, 2, 0, 1])).document_lengths == (3, 2)


def test_document_ids_may_carry_a_batch_dimension_of_one():
    assert Boundaries.from_document_ids([[0, 0, 1, -1]]) == Boundaries.from_lengths([2, 1])


def test_edges_may_end_before_the_tensor_they_describe():
    assert Boundaries.from_cu_seqlens([0, 3, 8], num_tokens=12) == Boundaries.from_lengths([3, 5])


def test_boundaries_are_values_equal_hashable_and_frozen():
    one, same, other = (Boundaries.from_lengths(lengths) for lengths in ([3, 5], np.array([3, 5]), [3, 0, 5]))

    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.document_lengths = (8,)


def test_views_are_made_anew_so_that_writing_into_one_changes_nothing():
    boundaries = Boundaries.from_lengths([3, 5])
    boundaries.cu_seqlens.fill_(7)
    boundaries.position_ids.fill_(7)

    assert boundaries.cu_seqlens.tolist() == [0, 3, 8]
    assert boundaries.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]


def test_reading_does_not_write_into_what_it_was_given():
    lengths, edges, ids = np.array([3, 5]), torch.tensor([0, 3, 8]), torch.tensor([0, 0, 1, -1])
    Boundaries.from_lengths(lengths)
    Boundaries.from_cu_seqlens(edges)
    Boundaries.from_document_ids(ids)

    assert lengths.tolist() == [3, 5]
    assert edges.tolist() == [0, 3, 8]
    assert ids.tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, -2], r"lengths\[1\] is -2, expected a whole number of tokens, 0 or more"),
        ([3.0, 2.0], r"lengths has dtype float64, expected whole numbers"),
        (
            torch.tensor([3.0]),
            r"lengths has dtype torch.float32, expected whole numbers; convert it to torch.int64",
        ),
        (torch.tensor([3.0], dtype=torch.bfloat16), r"lengths has dtype torch.bfloat16"),
        ([3, True], r"lengths\[1\] is True, expected a whole number; booleans are not numbers here"),
        (torch.tensor([True, False]), r"lengths has dtype bool, expected whole numbers"),
        ([[3, 5]], r"lengths has 2 dimensions \(shape \[1, 2\]\), expected 1"),
        (torch.tensor(3), r"lengths has 0 dimensions"),
        ([[3, 5], [2]], r"lengths is ragged .* give every nested list the same length"),
        (["3"], r"lengths has dtype <U1"),
        ("35", r"lengths is of type str, expected a list, a NumPy array or a torch tensor"),
        (7, r"lengths is of type int, expected a list"),
        ([2**70], r"lengths has dtype object, expected whole numbers that fit 64 bits"),
        (np.array([2**63], dtype=np.uint64), r"lengths holds 9223372036854775808, which does not fit int64"),
        ([INT32_MAX, 1], r"lengths sum to 2147483648 tokens, expected at most 2147483647.*fewer documents"),
    ],
)
def test_lengths_that_describe_no_documents_are_refused_with_the_reason(lengths, message):
    with pytest.raises(BoundariesError, match=message):
        Boundaries.from_lengths(lengths)


def test_as_many_tokens_as_int32_can_index_are_allowed():
    assert Boundaries.from_lengths([INT32_MAX - 1, 1]).cu_seqlens.tolist() == [0, INT32_MAX - 1, INT32_MAX]


def test_even_the_bare_constructor_refuses_what_is_not_a_length():
    with pytest.raises(BoundariesError, match=r"lengths\[0\] is 2.5, expected a whole number"):
        Boundaries(document_lengths=(2.5,))


@pytest.mark.parametrize(
    ("edges", "num_tokens", "message"),
    [
        ([3, 6], None, r"cu_seqlens\[0\] is 3, expected 0.*put the missing 0 in front"),
        ([], None, r"cu_seqlens is empty, expected at least the edge 0"),
        (
            [0, 5, 3],
            None,
            r"cu_seqlens\[2\] is 3, below the edge 5 before it; expected edges that never fall",
        ),
        ([0, 3, 8], 7, r"cu_seqlens\[2\] is 8, beyond the 7 tokens that the tensor has"),
        (
            [0, 3, 2**31],
            None,
            r"cu_seqlens\[2\] is 2147483648, beyond the 2147483647 tokens that int32 can index",
        ),
        ([[0, 3]], None, r"cu_seqlens has 2 dimensions"),
        ([0.0, 3.0], None, r"cu_seqlens has dtype float64"),
        ([False, 3], None, r"cu_seqlens\[0\] is False"),
    ],
)
def test_edges_that_describe_no_documents_are_refused_with_index_and_value(edges, num_tokens, message):
    with pytest.raises(BoundariesError, match=message):
        Boundaries.from_cu_seqlens(edges, num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            [0, 1, 0],
            r"document_ids\[2\] is 0 after document 1; expected a document's tokens to stand together",
        ),
        ([0, -1, 1], r"document_ids\[2\] is 1 after the tail began at token 1; expected -1 only at the end"),
        ([0, -2], r"document_ids\[1\] is -2, expected 0 to 16777216, or -1 on the tail"),
        (
            [0, MAX_DOCUMENT_ID + 1],
            r"document_ids\[1\] is 16777217.*number the documents of this batch from 0",
        ),
        ([[0, 0], [0, 0]], r"document_ids has shape \[2, 2\], expected \[T\] or \[1, T\]"),
        ([[[0]]], r"document_ids has 3 dimensions"),
        ([0.0], r"document_ids has dtype float64"),
        ([[0, True]], r"document_ids\[0\]\[1\] is True"),
    ],
)
def test_document_ids_that_describe_no_documents_are_refused_with_index_and_value(ids, message):
    with pytest.raises(BoundariesError, match=message):
        Boundaries.from_document_ids(ids)


def test_lengths_that_are_no_tuple_are_refused_with_the_constructor_that_reads_them():
    with pytest.raises(
        BoundariesError, match=r"document_lengths is a list, expected a tuple .* Boundaries\.from_lengths"
    ):
        Boundaries(document_lengths=[3, 5])


@pytest.mark.parametrize("num_tokens", [float("nan"), "8", -1, 7.5])
def test_a_number_of_tokens_that_is_none_is_refused(num_tokens):
    with pytest.raises(BoundariesError, match=r"num_tokens is .*, expected a whole number"):
        Boundaries.from_cu_seqlens([0, 3, 5], num_tokens=num_tokens)
    with pytest.raises(BoundariesError, match=r"num_tokens is .*, expected 0 to 5"):
        Boundaries.infer_from_position_ids([0, 1, 2, 0, 1], num_tokens=num_tokens)
