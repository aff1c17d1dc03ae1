"""The edges that kernels take are read back exactly, and malformed ones are named."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries, collate
from hermetic.batch.dialects import (
    boundaries_from_flash_kwargs,
    boundaries_from_stacked_cu_seqlens,
    boundaries_from_xformers,
    flash_kwargs,
    stacked_cu_seqlens,
    xformers_seqlens,
)
from hermetic.errors import BatchError

lengths_with_empties = st.lists(st.integers(0, 6), max_size=6)
tails = st.integers(0, 4)


def bounds(*lengths):
    return Boundaries.from_lengths(lengths)


def without_empties(lengths):
    return bounds(*(length for length in lengths if length))


def flash(queries=(0, 3, 8), *, dtype=torch.int32, **changes):
    edges = torch.tensor(queries, dtype=dtype)
    return {"cu_seq_lens_q": edges, "cu_seq_lens_k": edges, "max_length_q": 5, "max_length_k": 5} | changes


@dataclass
class SeqInfo:
    """The attributes of xformers' ``_SeqLenInfo``."""

    seqstart: torch.Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]


@dataclass
class BlockDiagonal:
    """The attributes of xformers' ``BlockDiagonalMask`` that hold documents."""

    q_seqinfo: SeqInfo
    k_seqinfo: SeqInfo

    @classmethod
    def from_seqlens(cls, lengths):
        assert not isinstance(lengths, torch.Tensor)
        edges = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
        info = SeqInfo(
            torch.tensor(edges, dtype=torch.int32), max(lengths, default=-1), min(lengths, default=-1), edges
        )
        return cls(info, info)


# transformers' keyword arguments


@given(lengths=lengths_with_empties, tail=tails)
@settings(deadline=None, max_examples=100)
def test_flash_kwargs_lead_back_to_the_documents_that_have_tokens(lengths, tail):
    boundaries = bounds(*lengths)
    kwargs = flash_kwargs(boundaries, num_slots=boundaries.num_tokens + tail)

    assert boundaries_from_flash_kwargs(kwargs, num_tokens=boundaries.num_tokens) == without_empties(lengths)
    assert boundaries_from_flash_kwargs(kwargs) == without_empties([*lengths, tail])


def test_the_inputs_of_a_model_tell_the_documents_of_their_batch():
    batch = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}], pad_to=7)

    assert boundaries_from_flash_kwargs(batch.model_inputs(), num_tokens=5) == batch.boundaries


def test_a_repeated_edge_is_an_empty_document_and_one_at_the_start_of_the_tail_is_kept():
    edges = (0, 3, 3, 5, 5, 9)

    assert boundaries_from_flash_kwargs(flash(edges), num_tokens=5) == bounds(3, 0, 2, 0)
    assert boundaries_from_flash_kwargs(flash(edges)) == bounds(3, 0, 2, 0, 4)


def test_a_longest_length_that_is_too_large_only_costs_time():
    assert boundaries_from_flash_kwargs(flash(max_length_q=4096, max_length_k=4096)) == bounds(3, 5)


@pytest.mark.parametrize(
    ("kwargs", "num_tokens", "message"),
    [
        (flash((3, 6)), None, r"cu_seq_lens_q does not hold edges: cu_seqlens\[0\] is 3, expected 0; .* missing 0"),
        (flash((0, 3, 8, -1, -1)), None, r"cu_seq_lens_q does not hold edges: cu_seqlens\[3\] is -1, below the edge 8"),
        (flash(()), None, r"cu_seq_lens_q does not hold edges: cu_seqlens is empty"),
        (flash(dtype=torch.int64), None, r"cu_seq_lens_q is a tensor of torch.int64, expected a tensor of torch.int32"),
        (flash(cu_seq_lens_k=[0, 3, 8]), None, r"cu_seq_lens_k is of type list, expected a tensor of torch.int32"),
        (
            flash(cu_seq_lens_k=torch.tensor([0, 4, 8], dtype=torch.int32)),
            None,
            r"cu_seq_lens_q and cu_seq_lens_k differ at edge 1, expected the same edges",
        ),
        (
            flash(cu_seq_lens_k=torch.tensor([0, 3], dtype=torch.int32)),
            None,
            r"cu_seq_lens_q and cu_seq_lens_k differ in their number, 3 and 2",
        ),
        (
            flash(max_length_q=3),
            None,
            r"max_length_q is 3, expected 5 or more, .* a kernel leaves out what lies beyond",
        ),
        (flash(max_length_k=4), None, r"max_length_k is 4, expected 5 or more"),
        (flash(max_length_q=torch.tensor(5)), None, r"max_length_q is of type Tensor, expected a Python int"),
        (flash(max_length_q=True), None, r"max_length_q is of type bool, expected a Python int"),
        (flash(max_length_k=None), None, r"lack max_length_k, expected all four of cu_seq_lens_q, .* flash_kwargs"),
        ({}, None, r"lack cu_seq_lens_q and cu_seq_lens_k and max_length_q and max_length_k"),
        (
            flash(),
            4,
            r"num_tokens is 4, where no segment of cu_seq_lens_q ends \(the last one before ends at 3 of 8 tokens\)",
        ),
        (flash(), 9, r"num_tokens is 9, .* ends at 8 of 8 tokens"),
        (flash(), -1, r"num_tokens is -1, .* ends at 0 of 8 tokens"),
        (flash(), 3.0, r"num_tokens is 3.0, expected the whole number of real tokens"),
        (
            flash((0, 3, 5, 6, 7, 8)),
            5,
            r"cu_seq_lens_q has 3 segments beyond the 5 real tokens, the first of 1, expected one tail at most",
        ),
    ],
)
def test_keyword_arguments_that_do_not_describe_documents_are_refused_with_the_reason(kwargs, num_tokens, message):
    with pytest.raises(BatchError, match=message):
        boundaries_from_flash_kwargs(kwargs, num_tokens=num_tokens)


# xformers


@given(lengths=lengths_with_empties, tail=tails)
@settings(deadline=None, max_examples=100)
def test_a_block_diagonal_mask_made_from_the_lengths_leads_back_to_the_documents(lengths, tail):
    boundaries = bounds(*lengths)
    seqlens = xformers_seqlens(boundaries, num_slots=boundaries.num_tokens + tail)
    mask = BlockDiagonal.from_seqlens(seqlens)

    assert all(type(length) is int and length > 0 for length in seqlens)
    assert boundaries_from_xformers(mask, num_tokens=boundaries.num_tokens) == without_empties(lengths)
    assert boundaries_from_xformers(mask) == without_empties([*lengths, tail])


def test_xformers_lengths_of_3_and_5_padded_to_12_and_of_an_empty_document():
    assert xformers_seqlens(bounds(3, 5), num_slots=12) == [3, 5, 4]
    assert xformers_seqlens(bounds(3, 0, 2), num_slots=5) == [3, 2]
    assert xformers_seqlens(bounds(), num_slots=0) == []


def other_keys():
    mask = BlockDiagonal.from_seqlens([3, 5])
    return BlockDiagonal(mask.q_seqinfo, BlockDiagonal.from_seqlens([4, 4]).k_seqinfo)


def shifted_edges():
    mask = BlockDiagonal.from_seqlens([3, 5])
    mask.q_seqinfo.seqstart_py[0] = 1
    return mask


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: boundaries_from_xformers(torch.zeros(2, 2)),
            r"mask of type Tensor has no q_seqinfo.seqstart_py, .* boundaries_from_mask",
        ),
        (lambda: boundaries_from_xformers(None), r"mask of type NoneType has no q_seqinfo.seqstart_py"),
        (
            lambda: boundaries_from_xformers(other_keys()),
            r"q_seqinfo.seqstart_py and k_seqinfo.seqstart_py differ at edge 1",
        ),
        (lambda: boundaries_from_xformers(shifted_edges()), r"q_seqinfo.seqstart_py does not hold edges: .*\[0\] is 1"),
        (
            lambda: boundaries_from_xformers(BlockDiagonal.from_seqlens([3, 5]), num_tokens=5),
            r"num_tokens is 5, where no segment of q_seqinfo.seqstart_py ends",
        ),
        (lambda: xformers_seqlens(bounds(3, 5), num_slots=7), r"num_slots is 7, expected 8"),
    ],
)
def test_a_mask_without_documents_in_it_is_refused_with_the_reason(call, message):
    with pytest.raises(BatchError, match=message):
        call()


# rows of edges


def test_two_rows_of_six_are_read_from_their_stacked_edges():
    assert boundaries_from_stacked_cu_seqlens([[0, 3, 6, 6], [0, 2, 4, 6]]) == bounds(3, 3, 2, 2, 2)


@given(data=st.data(), row_length=st.integers(1, 7), num_rows=st.integers(0, 4))
@settings(deadline=None, max_examples=100)
def test_stacked_edges_lead_back_to_the_documents_that_have_tokens(data, row_length, num_rows):
    lengths = []
    for _ in range(num_rows):
        cuts = sorted(data.draw(st.lists(st.integers(0, row_length), max_size=4)))
        lengths += [end - start for start, end in zip([0, *cuts], [*cuts, row_length], strict=True)]

    assert boundaries_from_stacked_cu_seqlens(stacked_cu_seqlens(bounds(*lengths), row_length)) == without_empties(
        lengths
    )


@pytest.mark.parametrize(
    ("stacked", "message"),
    [
        ([[0, 3, 6], [1, 4, 6]], r"stacked\[1, 0\] is 1, expected 0, where every row starts"),
        (
            [[0, 3, 6, -1], [0, 2, 4, 6]],
            r"stacked\[0, 3\] is -1, expected no less than the edge before it; .* sentinel",
        ),
        ([[0, 3, 6], [0, 2, 5]], r"stacked\[1, 2\] is 5, expected 6, where row 0 ends; give a row's padding an edge"),
        ([0, 3, 6], r"stacked has 1 dimensions \(shape \[3\]\), expected 2"),
        ([[0, 3, 6], [0, 2, 4, 6]], r"stacked is ragged"),
    ],
)
def test_stacked_edges_that_describe_no_rows_are_refused_by_their_first_wrong_cell(stacked, message):
    with pytest.raises(BatchError, match=message):
        boundaries_from_stacked_cu_seqlens(stacked)
