"""Collating lays documents end to end and loses, invents and mixes nothing."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import collate
from hermetic.errors import BatchError, DocumentError

token_lists = st.lists(st.lists(st.integers(0, 99), max_size=8), min_size=1, max_size=8)


def documents_of(*token_lists):
    return [{"input_ids": tokens} for tokens in token_lists]


def test_without_labels_every_token_but_a_documents_first_is_supervised():
    batch = collate(documents_of([5, 6, 7], [8, 9]))

    assert batch.labels.tolist() == [-100, 6, 7, -100, 9]
    assert batch.num_supervised_tokens == 3
    assert batch.boundaries.document_lengths == (3, 2)


@pytest.mark.parametrize("second_mask", [[0, 1, 1], [1, 1, 1]])
def test_a_loss_mask_supervises_its_tokens_but_never_a_first_one(second_mask):
    batch = collate(
        [
            {"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]},
            {"input_ids": [4, 5, 6], "loss_mask": second_mask},
        ]
    )

    assert batch.labels.tolist() == [-100, -100, 3, -100, 5, 6]
    assert batch.num_supervised_tokens == 3


def test_an_eos_token_that_is_also_the_pad_token_keeps_its_label_and_ends_at_the_tail():
    batch = collate(documents_of([5, 2, 6, 2], [7, 2]), pad_to=8, pad_token_id=2)

    assert batch.input_ids.tolist() == [5, 2, 6, 2, 7, 2, 2, 2]
    assert batch.labels.tolist() == [-100, 2, 6, 2, -100, 2, -100, -100]
    assert batch.boundaries.lengths.tolist() == [4, 2]
    assert batch.model_inputs()["cu_seq_lens_q"].tolist() == [0, 4, 6, 8]
    assert batch.labels.tolist().count(2) == 3


def test_given_labels_are_kept_except_on_the_first_token():
    batch = collate([{"input_ids": [1, 2, 3], "labels": [1, -100, 9]}])

    assert batch.labels.tolist() == [-100, -100, 9]


def test_every_per_token_tensor_of_1234_tokens_is_padded_to_the_multiple():
    lengths = [400, 34, 800]
    batch = collate(documents_of(*[list(range(length)) for length in lengths]), pad_to_multiple=8)
    inputs = batch.model_inputs()

    assert batch.boundaries.num_tokens == 1234
    assert batch.input_ids.shape == batch.labels.shape == (1240,)
    for name in ("input_ids", "labels", "position_ids"):
        assert inputs[name].shape == (1, 1240)
    assert inputs["cu_seq_lens_q"].tolist()[-1] == 1240
    assert inputs["cu_seq_lens_k"].tolist()[-1] == 1240


def test_tokens_that_already_fill_the_multiple_get_no_tail():
    batch = collate(documents_of([1, 2, 3], [4]), pad_to_multiple=4)

    assert batch.num_slots == 4
    assert batch.model_inputs()["cu_seq_lens_q"].tolist() == [0, 3, 4]


def test_empty_documents_stay_in_the_batch():
    batch = collate(documents_of([1, 2], [], [3]))

    assert batch.boundaries.document_lengths == (2, 0, 1)
    assert batch.labels.tolist() == [-100, 2, -100]
    assert [part.tolist() for part in batch.unpack(batch.input_ids)] == [[1, 2], [], [3]]


def test_a_batch_of_only_empty_documents_has_no_tokens():
    batch = collate(documents_of([], []))

    assert batch.num_slots == 0
    assert batch.boundaries.num_documents == 2


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda v: np.array(v, dtype=np.int32)])
def test_lists_arrays_and_tensors_collate_alike(form):
    batch = collate([{"input_ids": form([1, 2, 3]), "loss_mask": form([0, 0, 1])}])

    assert batch.input_ids.tolist() == [1, 2, 3]
    assert batch.labels.tolist() == [-100, -100, 3]
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64


@given(tokens=token_lists, tail=st.integers(0, 5))
@settings(deadline=None, max_examples=100)
def test_unpacking_gives_back_every_document_and_labels_are_its_own_tokens(tokens, tail):
    batch = collate(documents_of(*tokens), pad_to=max(1, sum(map(len, tokens)) + tail))

    assert [part.tolist() for part in batch.unpack(batch.input_ids)] == tokens
    expected = [[-100, *document[1:]] if document else [] for document in tokens]
    assert [part.tolist() for part in batch.unpack(batch.labels)] == expected
    assert set(batch.labels[batch.boundaries.num_tokens :].tolist()) <= {-100}


@given(tokens=token_lists)
@settings(deadline=None, max_examples=50)
def test_collating_changes_no_input_and_no_later_batch(tokens):
    documents = [{"input_ids": np.array(t, dtype=np.int64), "labels": torch.tensor(t).long()} for t in tokens]
    before = copy.deepcopy(documents)
    first = collate(documents)
    first.input_ids.fill_(77)
    first.labels.fill_(77)
    second = collate(documents)

    for document, copied in zip(documents, before, strict=True):
        assert np.array_equal(document["input_ids"], copied["input_ids"])
        assert torch.equal(document["labels"], copied["labels"])
    assert second.input_ids.tolist() == [token for document in tokens for token in document]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"input_ids": [1, 2], "labels": [2]},
            r"document 1 has 1 values of labels for 2 of input_ids, expected as many",
        ),
        ({"input_ids": [1, 2], "loss_mask": [1, 1, 1]}, r"document 1 has 3 values of loss_mask for 2 of"),
        (
            {"input_ids": [1], "labels": [1], "loss_mask": [1]},
            r"document 1 has both 'labels' and 'loss_mask'",
        ),
        ({"input_ids": [1], "weights": [1]}, r"document 1 has the key 'weights'.* would be lost"),
        ({"labels": [1]}, r"document 1 has no 'input_ids', expected its token ids; found \['labels'\]"),
        ([1, 2], r"document 1 is of type list, expected a mapping with 'input_ids'"),
        ({"input_ids": [1, -5]}, r"document 1's input_ids\[1\] is -5, expected a token id of 0 or more"),
        ({"input_ids": [1, 2], "labels": [1, -1]}, r"document 1's labels\[1\] is -1, expected .* or -100"),
        ({"input_ids": [1, 2], "loss_mask": [0, 2]}, r"document 1's loss_mask\[1\] is 2, expected 0 or 1"),
        ({"input_ids": [1.5, 2]}, r"document 1's input_ids has dtype float64"),
        ({"input_ids": [[1, 2]]}, r"document 1's input_ids has 2 dimensions"),
        ({"input_ids": [1, True]}, r"document 1's input_ids\[1\] is True"),
    ],
)
def test_a_malformed_document_is_named_with_its_fault(document, message):
    with pytest.raises(DocumentError, match=message):
        collate([{"input_ids": [1, 2]}, document])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_to": 2}, r"pad_to is 2, but the documents have 3 tokens; expected at least that many"),
        ({"pad_to": 8, "pad_to_multiple": 8}, r"pad_to is 8 and pad_to_multiple is 8, expected only one"),
        ({"pad_to": 0}, r"pad_to is 0, expected a whole number from 1"),
        ({"pad_to_multiple": 0}, r"pad_to_multiple is 0, expected a whole number from 1"),
        ({"pad_to": 8.0}, r"pad_to is 8.0, expected a whole number"),
        ({"pad_to": 2**31}, r"pad_to is 2147483648, expected a whole number from 1 to 2147483647"),
        ({"pad_to": 8, "pad_token_id": -1}, r"pad_token_id is -1, expected a token id of 0 or more"),
        ({"pad_token_id": None}, r"pad_token_id is None, expected a token id"),
    ],
)
def test_padding_that_cannot_be_is_refused_with_the_reason(options, message):
    with pytest.raises(BatchError, match=message):
        collate(documents_of([1, 2, 3]), **options)


def test_memory_is_not_pinned_for_an_accelerator_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(BatchError, match="pin_memory is True and there is no accelerator"):
        collate(documents_of([1, 2, 3]), pin_memory=True)


@pytest.mark.gpu
def test_a_pinned_batch_is_the_batch_in_page_locked_memory():
    options = {"pad_to": 8, "pad_token_id": 7}
    pinned, plain = (collate(documents_of([1, 2, 3], [4]), pin_memory=pin, **options) for pin in (True, False))

    assert pinned.input_ids.is_pinned()
    assert pinned.labels.is_pinned()
    assert torch.equal(pinned.input_ids, plain.input_ids)
    assert torch.equal(pinned.labels, plain.labels)


def test_no_documents_are_not_a_batch():
    with pytest.raises(BatchError, match=r"there are no documents, expected at least one"):
        collate([])


@pytest.mark.parametrize(
    "mask", [[False, True, True], np.array([False, True, True]), torch.tensor([False, True, True])]
)
def test_a_loss_mask_of_booleans_means_what_one_of_integers_means(mask):
    of_booleans = collate([{"input_ids": [5, 6, 7], "loss_mask": mask}])
    of_integers = collate([{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}])

    assert of_booleans.labels.tolist() == of_integers.labels.tolist() == [-100, 6, 7]
