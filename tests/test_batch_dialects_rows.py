"""Rows of numbered slots and rows of lengths are read back exactly, and numbers that tell no documents are named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries
from hermetic.batch.boundaries import MAX_DOCUMENT_ID
from hermetic.batch.dialects import (
    boundaries_from_flash_kwargs,
    jax_segments,
    mamba_seq_idx,
    rows_from_jax_segments,
    rows_from_mamba_seq_idx,
    rows_from_segment_ids,
    rows_from_trl_seq_lengths,
    segment_ids,
    trl_seq_lengths,
)
from hermetic.errors import BatchError

some_rows = st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=4)
slack = st.integers(0, 3)


def rows_of(*rows):
    return [Boundaries.from_lengths(row) for row in rows]


def without_last_empties(row):
    """What numbers can hold: no later number shows the gap of an empty document at the end."""
    return row[: max((index + 1 for index, length in enumerate(row) if length), default=0)]


def without_empties(rows):
    return rows_of(*([length for length in row if length] for row in rows))


def capacity_for(rows, spare):
    return max(map(sum, rows), default=0) + spare


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


# segment ids


@given(rows=some_rows, spare=slack, first_id=st.sampled_from([0, 1]))
@settings(deadline=None, max_examples=100)
def test_segment_ids_lead_back_to_the_rows_but_for_empty_documents_at_their_end(rows, spare, first_id):
    capacity = capacity_for(rows, spare)
    ids = segment_ids(rows_of(*rows), capacity=capacity, first_id=first_id)

    assert ids.shape == (len(rows), capacity)
    assert ids.dtype == torch.int32
    assert rows_from_segment_ids(ids, first_id=first_id) == rows_of(*map(without_last_empties, rows))


def test_an_empty_document_is_a_skipped_number_and_the_padding_is_the_number_below_the_first():
    rows = rows_of([3, 0, 2], [6])

    assert segment_ids(rows, capacity=6, first_id=0).tolist() == [[0, 0, 0, 2, 2, -1], [0] * 6]
    assert segment_ids(rows, capacity=6, first_id=1).tolist() == [[1, 1, 1, 3, 3, 0], [1] * 6]


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [
        ([1, 1, 1, 2, 2, 2, 2, 2], [3, 5]),
        ([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0], [4, 3, 3]),
        ([1, 1, 2, 2, 2, 0], [2, 3]),
    ],
)
def test_a_mask_of_document_numbers_is_read_as_documents_and_a_cast_to_booleans_destroys_it(mask, lengths):
    cast = torch.tensor([mask]).bool()

    assert rows_from_segment_ids([mask], first_id=1) == rows_of(lengths)
    with pytest.raises(BatchError, match=r"segment_ids has dtype bool, expected whole numbers"):
        rows_from_segment_ids(cast, first_id=1)
    assert rows_from_segment_ids(cast.int(), first_id=1) == rows_of([sum(lengths)])


@pytest.mark.parametrize(
    ("ids", "first_id", "message"),
    [
        (
            [[0, 0, 1], [0, 1, 0]],
            0,
            r"segment_ids\[1, 2\] is 0, after document 1 began, expected 1 or more; .* stand together",
        ),
        ([[1, 2, 1, 0]], 1, r"segment_ids\[0, 2\] is 1, after document 2 began"),
        ([[2, 2, 1, 1]], 1, r"segment_ids\[0, 2\] is 1, after document 2 began"),
        ([[1, 0, 2]], 1, r"segment_ids\[0, 2\] is 2, after the padding began, expected 0 up to the row's end"),
        ([[0, 1, 1]], 1, r"segment_ids\[0, 1\] is 1, after the padding began"),
        ([[0, -1, 0]], 0, r"segment_ids\[0, 2\] is 0, after the padding began, expected -1"),
        ([[1, -1]], 1, rf"segment_ids\[0, 1\] is -1, expected 0 to {MAX_DOCUMENT_ID + 1}; number .* from 1"),
        ([[0, -2]], 0, rf"segment_ids\[0, 1\] is -2, expected -1 to {MAX_DOCUMENT_ID}; number .* from 0"),
        ([[0, 2**40]], 0, r"segment_ids\[0, 1\] is 1099511627776, expected -1 to"),
        ([1, 1, 2], 1, r"segment_ids has 1 dimensions \(shape \[3\]\), expected 2"),
        ([[1, 1], [2]], 1, r"segment_ids is ragged"),
        ([[True, True]], 1, r"segment_ids\[0\]\[0\] is True, expected a whole number"),
        ([[1, 1]], 2, r"first_id is 2, expected 0 \(padding is -1\) or 1 \(padding is 0\)"),
    ],
)
def test_numbers_that_tell_no_documents_are_refused_by_their_first_wrong_slot(ids, first_id, message):
    with pytest.raises(BatchError, match=message):
        rows_from_segment_ids(ids, first_id=first_id)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: segment_ids(rows_of([3], [3, 4]), capacity=6, first_id=0),
            r"row 1 has 7 tokens, expected at most the capacity of 6; plan the rows for this capacity",
        ),
        (lambda: mamba_seq_idx(rows_of([7]), capacity=6), r"row 0 has 7 tokens, expected at most the capacity of 6"),
        (lambda: jax_segments(rows_of([7]), capacity=6), r"row 0 has 7 tokens, expected at most the capacity of 6"),
        (lambda: segment_ids(rows_of([0]), capacity=-1, first_id=0), r"row 0 has 0 tokens, .* capacity of -1"),
        (
            lambda: segment_ids(Boundaries.from_lengths([3]), capacity=6, first_id=0),
            r"rows is one Boundaries, expected one for each row; pass \[boundaries\]",
        ),
        (lambda: trl_seq_lengths(Boundaries.from_lengths([3])), r"rows is one Boundaries"),
        (lambda: segment_ids(rows_of([3]), capacity=6, first_id=-1), r"first_id is -1, expected 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_reason(call, message):
    with pytest.raises(BatchError, match=message):
        call()


# Mamba


@given(rows=some_rows, spare=slack)
@settings(deadline=None, max_examples=100)
def test_seq_idx_leads_back_to_the_rows_and_holds_every_empty_document_before_a_tail(rows, spare):
    capacity = capacity_for(rows, spare)
    seq_idx = mamba_seq_idx(rows_of(*rows), capacity=capacity)
    kept = [row if sum(row) < capacity else without_last_empties(row) for row in rows]

    assert (seq_idx.dtype, seq_idx.shape, seq_idx.is_contiguous()) == (torch.int32, (len(rows), capacity), True)
    assert rows_from_mamba_seq_idx(seq_idx, num_tokens=[sum(row) for row in rows]) == rows_of(*kept)


def test_the_tail_is_one_more_number_so_that_no_state_runs_into_it():
    seq_idx = mamba_seq_idx(rows_of([3, 5], [12]), capacity=12)

    assert seq_idx.tolist() == [[0] * 3 + [1] * 5 + [2] * 4, [0] * 12]
    assert rows_from_mamba_seq_idx(seq_idx, num_tokens=[8, 12]) == rows_of([3, 5], [12])
    assert rows_from_mamba_seq_idx(seq_idx) == rows_of([3, 5, 4], [12])


def convolve(x, weight, seq_idx):
    """A causal convolution that looks back only while the number stays the same, slot by slot."""
    out = torch.zeros_like(x)
    for slot in range(len(x)):
        for back, factor in enumerate(weight):
            if slot >= back and seq_idx[slot - back] == seq_idx[slot]:
                out[slot] += factor * x[slot - back]
    return out


def test_a_convolution_over_seq_idx_is_the_convolution_of_each_document_alone():
    x, weight = torch.arange(1.0, 13.0), [1.0, 10.0, 100.0]
    packed = convolve(x, weight, mamba_seq_idx(rows_of([3, 0, 5]), capacity=12)[0])
    joined = convolve(x, weight, torch.zeros(12, dtype=torch.int32))
    parts = (slice(0, 3), slice(3, 8), slice(8, 12))

    assert all(torch.equal(packed[part], convolve(x[part], weight, [0] * 12)) for part in parts)
    assert not torch.equal(joined[3:], packed[3:])


@pytest.mark.parametrize(
    ("seq_idx", "num_tokens", "message"),
    [
        ([[0, 0, 1]], None, r"seq_idx is of type list, expected a tensor of torch.int32"),
        (torch.zeros(1, 3).long(), None, r"seq_idx is a tensor of torch.int64, expected a tensor of torch.int32"),
        (int32([0, 0, 1]), None, r"seq_idx has 1 dimensions \(shape \[3\]\), expected 2"),
        (int32([[0, 1, 0]]), None, r"seq_idx\[0, 2\] is 0, after document 1 began"),
        (int32([[0, 0, -1]]), None, rf"seq_idx\[0, 2\] is -1, expected 0 to {MAX_DOCUMENT_ID}"),
        (int32([[0, 0, 1]]), [1], r"num_tokens is 1, where no segment of seq_idx\[0\] ends"),
        (int32([[0, 0, 1, 2]]), [2], r"seq_idx\[0\] has 2 segments beyond the 2 real tokens"),
        (int32([[0, 0, 1]]), [2, 3], r"num_tokens has 2 values, expected 1, one for each row of seq_idx"),
    ],
)
def test_seq_idx_that_kernels_cannot_take_or_that_tells_no_documents_is_refused(seq_idx, num_tokens, message):
    with pytest.raises(BatchError, match=message):
        rows_from_mamba_seq_idx(seq_idx, num_tokens=num_tokens)


# JAX


@given(rows=some_rows, spare=slack)
@settings(deadline=None, max_examples=100)
def test_jax_segments_lead_back_to_the_rows_but_for_empty_documents_at_their_end(rows, spare):
    ids, positions = jax_segments(rows_of(*rows), capacity=capacity_for(rows, spare))

    assert ids.dtype == positions.dtype == np.int32
    assert ids.shape == positions.shape == (len(rows), capacity_for(rows, spare))
    assert rows_from_jax_segments(ids, positions) == rows_of(*map(without_last_empties, rows))


def test_jax_segments_of_two_rows_count_from_one_and_pad_with_zeros():
    ids, positions = jax_segments(rows_of([3, 2], [6]), capacity=6)

    assert ids.tolist() == [[1, 1, 1, 2, 2, 0], [1] * 6]
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]


def test_the_positions_of_the_padding_are_not_looked_at():
    assert rows_from_jax_segments([[1, 1, 0, 0]], [[0, 1, 2, 3]]) == rows_of([2])


@pytest.mark.parametrize(
    ("ids", "positions", "message"),
    [
        (
            [[1, 1, 1], [1, 2, 2]],
            [[0, 1, 2], [0, 1, 2]],
            r"positions\[1, 1\] is 1, expected 0, counted from the start of document 2",
        ),
        ([[1, 1, 2]], [[0, 1]], r"positions have shape \[1, 2\], expected \[1, 3\], that of segment_ids"),
        ([[1, 1, 2]], [[0.0, 1.0, 0.0]], r"positions has dtype float64, expected whole numbers"),
        ([[1, 2, 1]], [[0, 0, 0]], r"segment_ids\[0, 2\] is 1, after document 2 began"),
    ],
)
def test_jax_arrays_that_tell_two_stories_or_none_are_refused(ids, positions, message):
    with pytest.raises(BatchError, match=message):
        rows_from_jax_segments(ids, positions)


# TRL


@given(rows=some_rows)
@settings(deadline=None, max_examples=100)
def test_seq_lengths_lead_back_to_the_documents_that_have_tokens(rows):
    assert rows_from_trl_seq_lengths(trl_seq_lengths(rows_of(*rows))) == without_empties(rows)


@pytest.mark.parametrize(
    ("seq_lengths", "message"),
    [
        (
            [[3, 3], [2, 0, 4]],
            r"seq_lengths\[1\]\[1\] is 0, expected 1 or more, for TRL's collator joins .* leave it out",
        ),
        ([[3, -1]], r"seq_lengths\[0\] does not hold the lengths of a row: lengths\[1\] is -1"),
        ([[3, 1.5]], r"seq_lengths\[0\] does not hold .*: lengths has dtype float64"),
        ([3, 5], r"seq_lengths\[0\] does not hold .*: lengths is of type int, expected a list"),
    ],
)
def test_a_column_that_holds_no_lengths_is_refused_with_its_row(seq_lengths, message):
    with pytest.raises(BatchError, match=message):
        rows_from_trl_seq_lengths(seq_lengths)


def trl_batch(seq_lengths, **options):
    trainer = pytest.importorskip("trl.trainer.sft_trainer", reason="trl is an optional extra")
    collator = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True, **options)
    return collator([{"input_ids": [7] * sum(row), "seq_lengths": row} for row in seq_lengths])


@pytest.mark.parametrize("rows", [[[3, 3], [2, 2, 2]], [[1], [1, 1], [4]], [[3, 0, 2]], [[5]]])
def test_trls_collator_makes_of_our_seq_lengths_the_documents_that_we_meant(rows):
    batch = trl_batch(trl_seq_lengths(rows_of(*rows)))
    flat = Boundaries.from_lengths([length for row in rows for length in row if length])

    assert boundaries_from_flash_kwargs(batch) == flat
    assert rows_from_mamba_seq_idx(batch["seq_idx"]) == [flat]
    assert Boundaries.infer_from_position_ids(batch["position_ids"]) == flat
    assert batch["position_ids"].tolist() == [flat.position_ids.tolist()]


def test_trls_collator_joins_the_documents_around_an_empty_one_which_is_why_none_is_handed_to_it():
    joined = boundaries_from_flash_kwargs(trl_batch([[3, 0, 2]]))

    assert joined == Boundaries.from_lengths([5])
    assert boundaries_from_flash_kwargs(trl_batch([[3, 2]])) == Boundaries.from_lengths([3, 2])


def test_trls_padding_is_a_document_for_each_token_which_is_no_tail():
    batch = trl_batch([[3, 2]], pad_to_multiple_of=8)

    assert boundaries_from_flash_kwargs(batch) == Boundaries.from_lengths([3, 2, 1, 1, 1])
    with pytest.raises(BatchError, match=r"cu_seq_lens_q has 3 segments beyond the 5 real tokens"):
        boundaries_from_flash_kwargs(batch, num_tokens=5)
