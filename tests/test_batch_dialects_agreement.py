"""All dialects made from one Boundaries tell the same documents, and a moved boundary shows in every one of them."""

from dataclasses import make_dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries, collate
from hermetic.batch.dialects import (
    additive_mask,
    boundaries_from_flash_kwargs,
    boundaries_from_mask,
    boundaries_from_packed_seq_params,
    boundaries_from_stacked_cu_seqlens,
    boundaries_from_xformers,
    flash_kwargs,
    jax_segments,
    mamba_seq_idx,
    packed_seq_kwargs,
    rows_from_jax_segments,
    rows_from_mamba_seq_idx,
    rows_from_segment_ids,
    rows_from_trl_seq_lengths,
    segment_ids,
    stacked_cu_seqlens,
    trl_seq_lengths,
    xformers_seqlens,
)

Params = make_dataclass(
    "Params",
    [
        *("qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"),
        *("max_seqlen_q", "max_seqlen_kv", "total_tokens"),
    ],
)
SPELLING = {
    "flash": lambda b, slots: flash_kwargs(b, num_slots=slots),
    "xformers": lambda b, slots: xformers_seqlens(b, num_slots=slots),
    "mask": lambda b, slots: additive_mask(b, dtype=torch.float32, num_slots=slots),
    "megatron": lambda b, _: Params(**packed_seq_kwargs(b, Params, context_parallel=2)),
    "mamba": lambda b, slots: mamba_seq_idx([b], capacity=slots),
    "ids from 0": lambda b, slots: segment_ids([b], capacity=slots, first_id=0),
    "ids from 1": lambda b, slots: segment_ids([b], capacity=slots, first_id=1),
    "jax": lambda b, slots: jax_segments([b], capacity=slots),
    "trl": lambda b, _: trl_seq_lengths([b]),
    "stacked": lambda b, _: stacked_cu_seqlens(b, max(1, b.num_tokens)),
    "positions": lambda b, _: b.position_ids,
}
READING = {
    "flash": lambda said, real: boundaries_from_flash_kwargs(said, num_tokens=real),
    "xformers": lambda said, real: boundaries_from_xformers(block_diagonal(said), num_tokens=real),
    "mask": lambda said, real: boundaries_from_mask(said, dtype=torch.float32, num_tokens=real),
    "megatron": lambda said, _: boundaries_from_packed_seq_params(said),
    "mamba": lambda said, real: rows_from_mamba_seq_idx(said, num_tokens=[real])[0],
    "ids from 0": lambda said, _: rows_from_segment_ids(said, first_id=0)[0],
    "ids from 1": lambda said, _: rows_from_segment_ids(said, first_id=1)[0],
    "jax": lambda said, _: rows_from_jax_segments(*said)[0],
    "trl": lambda said, _: rows_from_trl_seq_lengths(said)[0],
    "stacked": lambda said, _: boundaries_from_stacked_cu_seqlens(said),
    "positions": lambda said, _: Boundaries.infer_from_position_ids(said),
}


def block_diagonal(lengths):
    edges = SimpleNamespace(seqstart_py=[sum(lengths[:count]) for count in range(len(lengths) + 1)])
    return SimpleNamespace(q_seqinfo=edges, k_seqinfo=edges)


def told(boundaries, slots):
    """What each dialect says of the boundaries, read back."""
    return {name: READING[name](spell(boundaries, slots), boundaries.num_tokens) for name, spell in SPELLING.items()}


def bounds(*lengths):
    return Boundaries.from_lengths(lengths)


@given(lengths=st.lists(st.integers(1, 6), max_size=6), tail=st.integers(0, 4))
@settings(deadline=None, max_examples=100)
def test_every_dialect_leads_back_to_the_same_boundaries(lengths, tail):
    boundaries = bounds(*lengths)

    assert told(boundaries, sum(lengths) + tail) == dict.fromkeys(SPELLING, boundaries)


@given(lengths=st.lists(st.integers(1, 6), min_size=2, max_size=6), data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_boundary_that_moved_by_one_token_is_told_by_every_dialect(lengths, data):
    index = data.draw(st.integers(0, len(lengths) - 2))
    moved = [*lengths]
    moved[index] += 1
    moved[index + 1] -= 1
    read = told(bounds(*moved), sum(lengths))

    assert [name for name, boundaries in read.items() if boundaries == bounds(*lengths)] == []


@pytest.mark.parametrize("slots", [12, 128])
def test_3_and_5_with_a_tail_are_told_by_every_dialect(slots):
    assert told(bounds(3, 5), slots) == dict.fromkeys(SPELLING, bounds(3, 5))
    assert flash_kwargs(bounds(3, 5), num_slots=slots)["cu_seq_lens_q"].tolist() == [0, 3, 8, slots]


def test_an_empty_document_is_dropped_where_there_are_edges_and_kept_where_there_are_numbers():
    numbered = {"mamba", "ids from 0", "ids from 1", "jax"}

    read = told(bounds(3, 0, 2), 6)

    assert {name for name, boundaries in read.items() if boundaries == bounds(3, 0, 2)} == numbered
    assert {name for name, boundaries in read.items() if boundaries == bounds(3, 2)} == set(SPELLING) - numbered


def test_1234_tokens_padded_to_a_multiple_of_8_fill_1240_slots_in_every_dialect():
    batch = collate([{"input_ids": [7] * length} for length in (1000, 234)], pad_to_multiple=8)
    inputs, boundaries, slots = batch.model_inputs(), batch.boundaries, batch.num_slots
    said = {name: spell(boundaries, slots) for name, spell in SPELLING.items()}
    wide = ("mask", "mamba", "ids from 0", "ids from 1")

    assert {inputs[name].shape[-1] for name in ("input_ids", "labels", "position_ids")} == {1240}
    assert {said[name].shape[-1] for name in wide} | {array.shape[-1] for array in said["jax"]} == {1240}
    assert int(inputs["cu_seq_lens_q"][-1]) == sum(said["xformers"]) == 1240
    assert told(boundaries, slots) == dict.fromkeys(SPELLING, bounds(1000, 234))
