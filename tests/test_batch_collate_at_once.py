"""Documents that are alike are read at once: as they are read one by one, and without Python looking at a token."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hermetic
from hermetic.batch import PackedBatch, collate
from hermetic.batch.columns import join_columns
from hermetic.errors import BatchError, DocumentError, HermeticError
from hermetic.integrations.rows import PackedCollator

module = importlib.import_module("hermetic.batch.collate")  # hermetic.batch has the function under this name

HOUSE = (str(Path(hermetic.__file__).parent), __file__)
FORMS = {
    "list": list,
    "int64 array": lambda values: np.array(values, np.int64),
    "uint8 array": lambda values: np.array(values).astype(np.uint8),
    "int64 tensor": lambda values: torch.tensor(values, dtype=torch.int64),
    "int16 tensor": lambda values: torch.tensor(values, dtype=torch.int16),
}
MASKS = FORMS | {
    "list of booleans": lambda values: list(map(bool, values)),
    "boolean array": lambda values: np.array(values, np.bool_),
    "boolean tensor": lambda values: torch.tensor(values, dtype=torch.bool),
}
ODD = (True, False, -1, -100, 0, 1, 1.0, 1.5, None, "a", 2**40, 2**70, [1], np.int64(3), np.bool_(1), np.float64(2))


@st.composite
def batches(draw):
    """Documents of one kind, with up to two faults in them."""
    columns = draw(st.sampled_from(["ids", "labels", "loss_mask"]))
    form, other = draw(st.sampled_from(sorted(FORMS))), draw(st.sampled_from(sorted(MASKS)))
    documents = []
    for length in draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)):
        ids = draw(st.lists(st.integers(0, 200), min_size=length, max_size=length))
        document = {"input_ids": FORMS[form](ids)}
        if columns == "labels":
            kept = draw(st.lists(st.booleans(), min_size=length, max_size=length))
            labels = [token if keep else -100 for token, keep in zip(ids, kept, strict=True)]
            document["labels"] = FORMS[form](labels) if form != "uint8 array" else labels
        elif columns == "loss_mask":
            mask = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
            document["loss_mask"] = MASKS[other](mask)
        documents.append(document)
    for _ in range(draw(st.integers(0, 2))):
        _spoil(draw, documents)
    return documents


def _spoil(draw, documents):
    document = draw(st.sampled_from(documents))
    name = draw(st.sampled_from(sorted(document) or ["input_ids"]))
    column = document.get(name)
    match draw(st.sampled_from(["value", "value", "value", "shorter", "deeper", "gone", "more", "other form"])):
        case "value" if isinstance(column, list) and column:
            column[draw(st.integers(0, len(column) - 1))] = draw(st.sampled_from(ODD))
        case "value" if isinstance(column, np.ndarray | torch.Tensor) and column.ndim == 1 and len(column):
            column[draw(st.integers(0, len(column) - 1))] = -3 if "uint8" not in str(column.dtype) else 255
        case "shorter" if column is not None:
            document[name] = column[1:]
        case "deeper" if column is not None:
            document[name] = [column] if isinstance(column, list | tuple) else column[None]
        case "gone":
            document.pop(name, None)
        case "more":
            document[draw(st.sampled_from(["labels", "loss_mask", "weights"]))] = [1]
        case "other form" if isinstance(column, list):
            document[name] = tuple(column)


def outcome(documents):
    """What comes of the documents: a batch in plain numbers, or the class and words of what is raised."""
    try:
        batch = collate(documents)
    except HermeticError as error:
        return type(error), str(error)
    dataclasses.replace(batch)  # looks at every value again
    return batch.input_ids.tolist(), batch.labels.tolist(), batch.boundaries, batch.labels.dtype


@given(documents=batches())
@settings(deadline=None, max_examples=300)
def test_documents_read_at_once_give_the_batch_or_the_error_of_documents_read_one_by_one(documents):
    found = outcome(documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_read_at_once", lambda _: None)
        expected = outcome(documents)

    assert found == expected


@pytest.mark.parametrize("form", ["list", "int64 array", "int64 tensor"])
@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (
            [{"input_ids": [5, 6], "labels": [5]}, {"input_ids": [7], "labels": [6, 7]}],
            "document 0 has 1 values of labels for 2 of input_ids",
        ),
        (
            [{"input_ids": [5, 6], "loss_mask": [1]}, {"input_ids": [7], "loss_mask": [1, 1]}],
            "document 0 has 1 values of loss_mask for 2 of input_ids",
        ),
        ([{"input_ids": [5], "labels": [5]}, {"input_ids": [6], "labels": [-5]}], r"document 1's labels\[0\] is -5"),
        ([{"input_ids": [5, -100], "labels": [-100, 5]}], r"document 0's input_ids\[1\] is -100"),
        ([{"input_ids": [5, 6], "loss_mask": [0, 2]}], r"document 0's loss_mask\[1\] is 2, expected 0 or 1"),
        ([{"input_ids": [5, 6], "loss_mask": [0, -1]}], r"document 0's loss_mask\[1\] is -1, expected 0 or 1"),
        ([{"input_ids": [5, -6], "loss_mask": [0, 1]}], r"document 0's input_ids\[1\] is -6"),
    ],
)
def test_documents_that_are_alike_and_wrong_are_named(documents, message, form):
    with pytest.raises(DocumentError, match=message):
        collate([{name: FORMS[form](column) for name, column in document.items()} for document in documents])


def alike(lengths, form, mask_form=None):
    documents = []
    for length in lengths:
        ids = np.arange(length) % 5  # full of zeros and ones, which could have been booleans
        document = {"input_ids": FORMS[form](ids.tolist())}
        if mask_form is None:
            document["labels"] = FORMS[form](ids.tolist())
        else:
            document["loss_mask"] = MASKS[mask_form]((ids > 1).astype(int).tolist())
        documents.append(document)
    return documents


def lines_run(documents):
    """Lines of hermetic's, and of this file, that collating runs; a garbage collection may run others' at any time."""
    count = 0

    def trace(frame, _event, _argument):
        nonlocal count
        count += frame.f_code.co_filename.startswith(HOUSE)
        return trace

    collator = PackedCollator(items="documents")
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        collator(documents)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("mask_form", [None, *sorted(MASKS)])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_python_looks_at_as_much_for_a_hundred_times_the_tokens(form, mask_form):
    few, many = (alike([length, 0, 2 * length], form, mask_form) for length in (7, 700))

    assert lines_run(few) == lines_run(many) > 0


def test_a_loop_over_tokens_would_be_seen(monkeypatch):
    monkeypatch.setattr(module, "_read_at_once", lambda documents: [1 for one in documents for _ in one["labels"]][:0])
    few, many = (lines_run(alike([length], "list")) for length in (7, 700))

    assert many > few + 600


def test_what_was_checked_by_collate_alone_is_refused_by_a_batch_that_was_made_otherwise():
    batch = collate([{"input_ids": [5, 6]}])
    with pytest.raises(BatchError, match=r"labels\[0\] is 5 on the first token of document 0"):
        PackedBatch(input_ids=batch.input_ids, labels=batch.input_ids, boundaries=batch.boundaries)


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [True]],
        [[1.0]],
        [[[1]]],
        [[2**63]],
        [[1], (2,)],
        [np.array([1]), np.array([[2]])],
        [np.array(1)],
        [np.array([True])],
        [torch.tensor([1]), torch.tensor([2.0])],
        [torch.tensor([[1, 2]])],
        [torch.tensor(1), torch.tensor(2)],
        [torch.ones(2, dtype=torch.int64, device="meta")],
        ["ab"],
        [],
    ],
    ids=repr,
)
def test_columns_that_have_to_be_looked_at_one_by_one_are_not_joined(values):
    assert join_columns(values) is None


def test_joined_booleans_are_zeros_and_ones_where_they_are_asked_for():
    for values in ([[True, False], [True]], [np.array([True, False]), np.array([True])]):
        column, lengths = join_columns(values, booleans=True)
        assert column.astype(int).tolist() == [1, 0, 1]
        assert lengths == [2, 1]
        assert join_columns(values) is None
    assert join_columns([[True, 0]], booleans=True) is None
