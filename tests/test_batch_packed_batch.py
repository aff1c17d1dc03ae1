"""A packed batch that exists is sound, tells models of every boundary, and unpacks what they return."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries, PackedBatch, collate
from hermetic.errors import BatchError


def batch_of(lengths, **padding):
    return collate([{"input_ids": list(range(1, length + 1))} for length in lengths], **padding)


@pytest.mark.parametrize(("pad_to", "edges"), [(12, [0, 3, 8, 12]), (128, [0, 3, 8, 128])])
def test_the_padded_tail_is_one_more_segment_for_models_and_none_in_the_boundaries(pad_to, edges):
    batch = batch_of([3, 5], pad_to=pad_to)
    inputs = batch.model_inputs()

    assert batch.boundaries.cu_seqlens.tolist() == [0, 3, 8]
    assert inputs["cu_seq_lens_q"].tolist() == edges
    assert inputs["cu_seq_lens_k"].tolist() == edges
    assert inputs["position_ids"][0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, *range(pad_to - 8)]
    assert inputs["labels"][0, 8:].tolist() == [-100] * (pad_to - 8)
    assert inputs["max_length_q"] == inputs["max_length_k"] == max(5, pad_to - 8)
    assert batch.num_slots == pad_to


def test_model_inputs_are_exactly_what_a_hugging_face_model_needs_and_carry_no_mask():
    inputs = batch_of([3, 5]).model_inputs()

    assert set(inputs) == {
        "input_ids",
        "labels",
        "position_ids",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "use_cache",
    }
    assert inputs["use_cache"] is False
    assert type(inputs["max_length_q"]) is type(inputs["max_length_k"]) is int
    assert inputs["cu_seq_lens_q"].dtype == inputs["cu_seq_lens_k"].dtype == torch.int32
    assert inputs["input_ids"].shape == inputs["labels"].shape == inputs["position_ids"].shape == (1, 8)
    assert inputs["position_ids"].dtype == torch.int64


def test_an_empty_document_unpacks_to_an_empty_tensor_of_the_right_shape():
    batch = batch_of([3, 0, 2])
    parts = batch.unpack(torch.arange(10.0).reshape(1, 5, 2))

    assert [tuple(part.shape) for part in parts] == [(3, 2), (0, 2), (2, 2)]
    assert batch.model_inputs()["cu_seq_lens_q"].tolist() == [0, 3, 5]
    assert batch.model_inputs()["max_length_q"] == 3


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8), tail=st.integers(0, 4))
@settings(deadline=None, max_examples=100)
def test_unpacking_then_joining_gives_back_every_real_token_in_both_layouts(lengths, tail):
    batch = batch_of(lengths, pad_to=max(1, sum(lengths) + tail))
    x = torch.arange(float(batch.num_slots * 2)).reshape(batch.num_slots, 2)

    for layout in (x, x[None]):
        parts = batch.unpack(layout)
        assert [len(part) for part in parts] == lengths
        assert torch.equal(torch.cat(parts), x[: sum(lengths)])


def test_a_batch_of_one_slot_unpacks_model_outputs_of_shape_1_1_v():
    assert [tuple(part.shape) for part in batch_of([1]).unpack(torch.zeros(1, 1, 7))] == [(1, 7)]
    assert [tuple(part.shape) for part in batch_of([1]).unpack(torch.zeros(1, 7))] == [(1, 7)]


@pytest.mark.parametrize("shape", [(7,), (9, 2), (1, 7, 2), (2, 8), ()])
def test_a_tensor_of_another_length_cannot_be_unpacked(shape):
    with pytest.raises(BatchError, match=r"expected \[8, \.\.\.\] or \[1, 8, \.\.\.\]"):
        batch_of([3, 5]).unpack(torch.zeros(shape))


def test_moving_a_batch_moves_its_tensors_and_keeps_its_boundaries():
    batch = batch_of([3, 5])
    moved = batch.to("cpu")

    assert moved.boundaries == batch.boundaries
    assert torch.equal(moved.labels, batch.labels)
    assert moved.input_ids.device.type == "cpu"


@pytest.mark.gpu
def test_a_batch_on_the_gpu_hands_its_model_tensors_on_the_gpu():
    inputs = batch_of([3, 5], pad_to=12).to("cuda").model_inputs()

    tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5
    assert {tensor.device.type for tensor in tensors} == {"cuda"}


def test_a_batch_cannot_be_changed_after_it_was_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch_of([3]).labels = torch.zeros(3)


def made(input_ids=(5, 6, 7, 0), labels=(-100, 6, -100, -100), lengths=(2, 1), **dtypes):
    return PackedBatch(
        input_ids=torch.tensor(input_ids, dtype=dtypes.get("ids", torch.int64)),
        labels=torch.tensor(labels, dtype=dtypes.get("labels", torch.int64)),
        boundaries=Boundaries.from_lengths(lengths),
    )


def test_the_batch_that_the_refusals_start_from_is_sound():
    assert made().num_supervised_tokens == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ids": torch.int32},
            r"input_ids has shape \[4\] and dtype torch.int32, expected \[T\] of torch.int64",
        ),
        ({"labels": [[-100, 6, -100, -100]]}, r"labels has shape \[1, 4\]"),
        ({"labels": [-100, 6, -100]}, r"labels have shape \[3\] on cpu, expected the shape \[4\]"),
        ({"lengths": [3, 2]}, r"boundaries describe 5 tokens, but input_ids has 4"),
        ({"input_ids": [5, -6, 7, 0]}, r"input_ids\[1\] is -6, expected a token id of 0 or more; replace it"),
        ({"labels": [-100, -1, -100, -100]}, r"labels\[1\] is -1, expected a token id of 0 or more or -100"),
        ({"labels": [5, 6, -100, -100]}, r"labels\[0\] is 5 on the first token of document 0, expected -100"),
        ({"labels": [-100, 6, 7, -100]}, r"labels\[2\] is 7 on the first token of document 1, expected -100"),
        ({"labels": [-100, 6, -100, 9]}, r"labels\[3\] is 9 on the padded tail, expected -100"),
        ({"lengths": [2, 0, 1], "labels": [-100, 6, 7, -100]}, r"on the first token of document 2"),
    ],
)
def test_a_batch_that_could_train_across_documents_or_is_misshapen_is_refused(change, message):
    dtypes = {key: value for key, value in change.items() if isinstance(value, torch.dtype)}
    columns = {key: value for key, value in change.items() if not isinstance(value, torch.dtype)}
    with pytest.raises(BatchError, match=message):
        made(**columns, **dtypes)
