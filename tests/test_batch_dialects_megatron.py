"""Real and padded offsets of Megatron's thd format are kept apart, and lead back to the documents."""

from dataclasses import dataclass, field, fields, make_dataclass
from math import lcm

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries
from hermetic.batch.dialects import (
    boundaries_from_packed_seq_params,
    mamba_seq_idx,
    packed_seq_kwargs,
    padded_index,
)
from hermetic.errors import BatchError

lengths_with_empties = st.lists(st.integers(0, 9), max_size=6)
multiples = {"context_parallel": st.integers(1, 4), "pad_each_to": st.integers(1, 6)}


@dataclass(kw_only=True)
class Params:
    """The fields that every release of Megatron-core's PackedSeqParams has."""

    qkv_format: str | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_kv: torch.Tensor | None = None
    cu_seqlens_q_padded: torch.Tensor | None = None
    cu_seqlens_kv_padded: torch.Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None


@dataclass(kw_only=True)
class NewerParams(Params):
    """Those of releases whose Mamba layers ask for the number of slots."""

    total_tokens: int | None = None
    seq_idx: torch.Tensor | None = field(default=None)


def bounds(*lengths):
    return Boundaries.from_lengths(lengths)


def params(*lengths, of=Params, context_parallel=2, pad_each_to=1, num_slots=None, **changes):
    kwargs = packed_seq_kwargs(
        bounds(*lengths), of, context_parallel=context_parallel, pad_each_to=pad_each_to, num_slots=num_slots
    )
    return of(**kwargs | changes)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_real_and_padded_edges_of_9_tokens_in_12_slots():
    made = params(9, context_parallel=2, pad_each_to=6)

    assert made.qkv_format == "thd"
    assert made.cu_seqlens_q.tolist() == made.cu_seqlens_kv.tolist() == [0, 9]
    assert made.cu_seqlens_q_padded.tolist() == made.cu_seqlens_kv_padded.tolist() == [0, 12]
    assert (made.max_seqlen_q, made.max_seqlen_kv) == (12, 12)
    assert made.cu_seqlens_q.dtype == made.cu_seqlens_q_padded.dtype == torch.int32


def test_without_context_parallelism_nothing_is_padded():
    made = params(3, 0, 5, context_parallel=1)

    assert made.cu_seqlens_q.tolist() == made.cu_seqlens_q_padded.tolist() == [0, 3, 8]
    assert made.max_seqlen_q == 5


def test_a_tail_is_one_more_segment_in_both_kinds_of_edges():
    made = params(3, 5, num_slots=16)

    assert made.cu_seqlens_q.tolist() == [0, 3, 8, 12]
    assert made.cu_seqlens_q_padded.tolist() == [0, 4, 12, 16]
    assert boundaries_from_packed_seq_params(made, num_tokens=8) == bounds(3, 5)
    assert boundaries_from_packed_seq_params(made) == bounds(3, 5, 4)


@given(lengths=lengths_with_empties, tails=st.integers(0, 2), **multiples)
@settings(deadline=None, max_examples=100)
def test_every_rank_gets_equal_pieces_of_each_document_and_the_documents_come_back(
    lengths, tails, context_parallel, pad_each_to
):
    options = {"context_parallel": context_parallel, "pad_each_to": pad_each_to}
    pieces = 2 * context_parallel if context_parallel > 1 else 1
    multiple = lcm(pieces, pad_each_to)
    end = int(params(*lengths, **options).cu_seqlens_q_padded[-1])
    made = params(*lengths, **options, num_slots=end + tails * multiple)
    real, padded = made.cu_seqlens_q.diff(), made.cu_seqlens_q_padded.diff()

    assert not (padded % pieces).any()
    assert not (padded % pad_each_to).any()
    assert ((padded >= real) & (padded - real < multiple)).all()
    assert made.max_seqlen_q == max(padded.tolist(), default=0)
    assert boundaries_from_packed_seq_params(made, num_tokens=sum(lengths)) == bounds(*filter(None, lengths))


@given(lengths=lengths_with_empties, **multiples)
@settings(deadline=None, max_examples=100)
def test_the_index_lays_every_token_into_its_documents_padded_room_and_takes_it_back(
    lengths, context_parallel, pad_each_to
):
    options = {"context_parallel": context_parallel, "pad_each_to": pad_each_to}
    made = params(*lengths, **options)
    index = padded_index(bounds(*lengths), **options)
    flat = torch.arange(100, 100 + sum(lengths))
    padded = torch.full((int(made.cu_seqlens_q_padded[-1]),), -1)
    padded[index] = flat

    assert torch.equal(padded[index], flat)
    starts = zip(made.cu_seqlens_q_padded[:-1].tolist(), made.cu_seqlens_q[:-1].tolist(), strict=True)
    for (slot, token), length in zip(starts, filter(None, lengths), strict=True):
        assert padded[slot : slot + length].tolist() == flat[token : token + length].tolist()
    assert int((padded == -1).sum()) == len(padded) - sum(lengths)


def test_the_slots_are_counted_only_where_the_class_asks_for_them():
    asks = packed_seq_kwargs(bounds(3, 5), NewerParams, context_parallel=2, num_slots=16)
    does_not = packed_seq_kwargs(bounds(3, 5), Params, context_parallel=2, num_slots=16)

    assert asks["total_tokens"] == 16
    assert set(asks) - set(does_not) == {"total_tokens"}
    assert set(does_not) == {part.name for part in fields(Params)}


def test_the_padded_edges_number_the_slots_as_mamba_wants_them():
    made = params(3, 5, of=NewerParams, num_slots=16)
    padded = Boundaries.from_cu_seqlens(made.cu_seqlens_q_padded)

    assert mamba_seq_idx([padded], capacity=made.total_tokens).tolist() == [[0] * 4 + [1] * 8 + [2] * 4]


def test_edges_repeated_to_a_fixed_number_are_empty_documents_and_no_padded_edges_mean_no_padding():
    edges = int32(0, 3, 8, 8, 8)
    made = Params(qkv_format="thd", cu_seqlens_q=edges, cu_seqlens_kv=edges, max_seqlen_q=5, max_seqlen_kv=5)

    assert boundaries_from_packed_seq_params(made) == bounds(3, 5, 0, 0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (params(3, 5, qkv_format="sbhd"), r"qkv_format is 'sbhd', expected 'thd'"),
        (object(), r"qkv_format is None, expected 'thd'"),
        (params(3, 5, cu_seqlens_q=None), r"cu_seqlens_q is of type NoneType, expected a tensor of torch.int32"),
        (params(3, 5, cu_seqlens_kv=torch.tensor([0, 3, 8])), r"cu_seqlens_kv is a tensor of torch.int64"),
        (params(3, 5, cu_seqlens_kv=int32(0, 4, 8)), r"cu_seqlens_q and cu_seqlens_kv differ at edge 1"),
        (params(3, 5, cu_seqlens_kv_padded=None), r"cu_seqlens_kv_padded is of type NoneType"),
        (params(3, 5, cu_seqlens_kv_padded=int32(0, 8, 12)), r"cu_seqlens_q_padded and cu_seqlens_kv_padded differ at"),
        (params(3, 5, cu_seqlens_q=int32(0, 3, 8, -1)), r"cu_seqlens_q does not hold edges: .*\[3\] is -1, below"),
        (
            params(3, 5, cu_seqlens_q_padded=int32(0, 12), cu_seqlens_kv_padded=int32(0, 12)),
            r"cu_seqlens_q has 2 documents, cu_seqlens_q_padded 1; expected the same documents",
        ),
        (
            params(
                3,
                5,
                cu_seqlens_q=int32(0, 4, 12),
                cu_seqlens_kv=int32(0, 4, 12),
                cu_seqlens_q_padded=int32(0, 3, 8),
                cu_seqlens_kv_padded=int32(0, 3, 8),
            ),
            r"document 0 has 4 tokens and 3 padded slots, .* exchanged\?",
        ),
        (params(3, 5, max_seqlen_q=4), r"max_seqlen_q is 4, expected 5 or more"),
        (params(3, 5, max_seqlen_kv=torch.tensor(8)), r"max_seqlen_kv is of type Tensor, expected a Python int"),
        (params(3, 5, of=NewerParams, total_tokens=8), r"total_tokens is 8, expected None or 12 or more"),
        (params(3, 5, of=NewerParams, total_tokens=12.0), r"total_tokens is 12.0, expected None or 12"),
    ],
)
def test_parameters_that_mix_offsets_or_describe_no_documents_are_refused(made, message):
    with pytest.raises(BatchError, match=message):
        boundaries_from_packed_seq_params(made)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: params(3, context_parallel=0), r"context_parallel is 0, expected 1 or more"),
        (lambda: params(3, pad_each_to=0), r"pad_each_to is 0, expected 1 or more"),
        (lambda: padded_index(bounds(3), context_parallel=-2), r"context_parallel is -2, expected 1 or more"),
        (
            lambda: params(3, 5, num_slots=8),
            r"num_slots is 8, expected a multiple of 4 from 12 \(the padded documents\)",
        ),
        (lambda: params(3, 5, num_slots=14), r"num_slots is 14, expected a multiple of 4 from 12"),
        (lambda: params(3, of=dict), r"params_class dict has no field qkv_format, .* megatron.core.packed_seq_params"),
        (
            lambda: params(3, of=make_dataclass("Old", ["qkv_format", "cu_seqlens_q", "cu_seqlens_kv"])),
            r"params_class Old has no field cu_seqlens_q_padded, cu_seqlens_kv_padded, max_seqlen_q, max_seqlen_kv",
        ),
    ],
)
def test_what_megatron_could_not_take_is_refused_with_the_reason(call, message):
    with pytest.raises(BatchError, match=message):
        call()
