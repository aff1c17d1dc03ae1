"""What each backend reads is what transformers' own helpers say, and what the kernels' arguments say."""

from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.masking_utils import find_packed_sequence_indices
from transformers.modeling_flash_attention_utils import _is_packed_sequence, prepare_fa_kwargs_from_position_ids

from hermetic.audit.reading import (
    COLUMN,
    FLASH_ATTENTION,
    SDPA,
    STATE,
    VARLEN,
    edges_by_minimum,
    edges_by_steps,
    readings,
    text_plane,
)
from hermetic.batch import Boundaries
from hermetic.batch.dialects import additive_mask, dense_mask

POSITIONS = st.lists(st.integers(0, 4), min_size=1, max_size=12)


def by_name(batch):
    return {reading.name: reading.documents for reading in readings(batch)}


def edges_of_transformers_mask_helper(positions):
    numbers = find_packed_sequence_indices(torch.tensor([positions]))
    runs = [0] * len(positions) if numbers is None else numbers[0].tolist()
    starts = [index for index, number in enumerate(runs) if index == 0 or number != runs[index - 1]]
    return (*starts, len(positions))


def edges_of_transformers_flash_helper(positions):
    tensor = torch.tensor([positions])
    if not _is_packed_sequence(tensor, 1):
        return (0, len(positions))
    (edges, _), _ = prepare_fa_kwargs_from_position_ids(tensor)
    return tuple(edges.tolist())


@given(POSITIONS)
def test_steps_are_read_as_the_mask_helper_of_transformers_reads_them(positions):
    assert edges_by_steps(np.array(positions)) == edges_of_transformers_mask_helper(positions)


@given(POSITIONS)
def test_smallest_positions_are_read_as_the_flash_helper_of_transformers_reads_them(positions):
    assert edges_by_minimum(np.array(positions)) == edges_of_transformers_flash_helper(positions)


@pytest.mark.parametrize(
    ("positions", "by_steps", "by_minimum"),
    [
        ([3, 4, 5, 0, 1, 2], (0, 3, 6), (3, 6)),
        ([1, 1, 1, 0, 1, 2], (0, 1, 2, 3, 6), (3, 6)),
        ([2, 3, 4, 2, 3, 1, 1], (0, 3, 5, 6, 7), (5, 6, 7)),
        ([0, 1, 2, 10, 11], (0, 3, 5), (0, 5)),
        ([0, 1, 1, 1, 2], (0, 2, 3, 5), (0, 5)),
        ([0, 1, 2, 0, 1, 0], (0, 3, 5, 6), (0, 3, 5, 6)),
        ([0, 0, 0], (0, 1, 2, 3), (0, 1, 2, 3)),
        ([0, 1, 2, 0, 0, 1], (0, 3, 4, 6), (0, 3, 4, 6)),
        ([0, 1, 2, 3, 4], (0, 5), (0, 5)),
    ],
)
def test_the_two_helpers_read_these_positions_as_was_measured(positions, by_steps, by_minimum):
    batch = {"input_ids": [list(range(len(positions)))], "position_ids": [positions]}

    assert by_name(batch) == {SDPA: (by_steps,), FLASH_ATTENTION: (by_minimum,)}


def test_two_rows_are_read_row_by_row_and_by_flash_attention_not_at_all():
    batch = {"input_ids": np.zeros((2, 6), int), "position_ids": [[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]]}

    assert by_name(batch) == {SDPA: ((0, 3, 6), (0, 2, 4, 6)), FLASH_ATTENTION: ((0, 6), (0, 6))}


def test_flat_edges_are_cut_where_rows_start_and_a_document_over_a_row_end_has_no_reading():
    rows = {"input_ids": np.zeros((2, 6), int)}
    cut = by_name(rows | {"cu_seqlens": np.array([0, 3, 6, 8, 10, 12])})
    joined = by_name(rows | {"cu_seqlens": np.array([0, 3, 8, 12])})

    assert cut[VARLEN] == ((0, 3, 6), (0, 2, 4, 6))
    assert joined[VARLEN] is None


def test_stacked_edges_are_those_of_each_row():
    batch = {"input_ids": np.zeros((2, 6), int), "cu_seqlens": np.array([[0, 3, 6, 6], [0, 2, 4, 6]])}

    assert by_name(batch)[VARLEN] == ((0, 3, 6), (0, 2, 4, 6))


def test_document_numbers_in_a_mask_are_one_document_to_sdpa_and_nothing_to_flash_attention():
    numbers = {"input_ids": [[5] * 8], "attention_mask": [[1, 1, 1, 2, 2, 2, 2, 2]]}
    restarts = numbers | {"position_ids": [[0, 1, 2, 0, 1, 2, 3, 4]]}

    assert by_name(numbers) == {SDPA: ((0, 8),), FLASH_ATTENTION: ((0, 8),)}
    assert by_name(restarts) == {SDPA: ((0, 8),), FLASH_ATTENTION: ((0, 3, 8),)}


def test_a_mask_with_zeros_hides_positions_and_edges_from_both():
    inputs = {
        "input_ids": [[5] * 6],
        "attention_mask": [[1, 1, 1, 1, 1, 0]],
        "position_ids": [[0, 1, 2, 0, 1, 0]],
        "cu_seq_lens_q": [0, 3, 5, 6],
        "cu_seq_lens_k": [0, 3, 5, 6],
        "max_length_q": 3,
        "max_length_k": 3,
    }

    assert by_name(inputs) == {SDPA: ((0, 5),), FLASH_ATTENTION: ((0, 5),), VARLEN: ((0, 3, 5, 6),)}


def test_flash_attention_takes_edges_only_with_all_four_arguments():
    three = {
        "input_ids": [[5] * 5],
        "cu_seq_lens_q": np.array([0, 3, 5], dtype=np.int32),
        "cu_seq_lens_k": np.array([0, 3, 5], dtype=np.int32),
        "max_length_q": 3,
    }

    assert by_name(three)[FLASH_ATTENTION] == ((0, 5),)
    assert by_name(three | {"max_length_k": 3})[FLASH_ATTENTION] == ((0, 3, 5),)


def test_a_cache_turns_looking_at_positions_off_for_the_mask_and_not_for_flash_attention():
    batch = {"input_ids": [[5, 6, 7]], "position_ids": [[0, 1, 0]], "use_cache": True}

    assert by_name(batch) == {SDPA: ((0, 3),), FLASH_ATTENTION: ((0, 2, 3),)}


def test_of_four_planes_the_first_is_read_and_of_three_none():
    text, time = [0, 1, 2, 0, 1], [0, 1, 1, 1, 2]
    four = {"input_ids": [[5] * 5], "position_ids": np.array([text, time, time, time])[:, None]}
    three = {"input_ids": [[5] * 5], "position_ids": np.array([text, text, text])[:, None]}

    assert by_name(four) == {SDPA: ((0, 3, 5),), FLASH_ATTENTION: ((0, 3, 5),)}
    assert by_name(three) == {SDPA: ((0, 5),), FLASH_ATTENTION: ((0, 5),)}
    assert text_plane(np.zeros((3, 1, 5), dtype=np.int64)) is None


def test_a_mask_over_pairs_is_read_by_who_sees_the_token_before_unless_it_blocks_nothing():
    boundaries, ids = Boundaries.from_lengths([2, 3]), {"input_ids": torch.arange(5)[None]}
    booleans = dense_mask(boundaries)[None, None]
    masks = (booleans, additive_mask(boundaries, dtype=torch.bfloat16), booleans.float())

    assert [by_name(ids | {"attention_mask": mask})[SDPA] for mask in masks] == [((0, 2, 5),), ((0, 2, 5),), ((0, 5),)]
    assert by_name(ids | {"attention_mask": booleans})[FLASH_ATTENTION] is None


def test_numbers_and_lengths_have_readers_of_their_own():
    batch = {"input_ids": [[5] * 5], "seq_idx": [[0, 0, 1, 1, 1]], "seq_lengths": [[2, 3]]}

    assert by_name(batch) | {SDPA: None, FLASH_ATTENTION: None} == {
        SDPA: None,
        FLASH_ATTENTION: None,
        STATE: ((0, 2, 5),),
        COLUMN: ((0, 2, 5),),
    }


def test_every_name_of_the_package_is_there_and_is_no_module():
    package = import_module("hermetic.audit")
    homes = [import_module(f"hermetic.audit.{name}") for name in ("batch.audit", "folder", "reading")]

    assert [name for name in package.__all__ if isinstance(getattr(package, name), ModuleType)] == []
    assert [package.audit_batch, package.audit_folder, package.readings] == [
        home.__dict__[name] for home, name in zip(homes, ("audit_batch", "audit_folder", "readings"), strict=True)
    ]
