"""Calls that compute logits for some slots only are probed on all, with the labels that they were shortened from."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from models import packed, tiny
from torch import nn

from hermetic.constants import IGNORE_INDEX
from hermetic.doctor.examine import examine
from hermetic.probe import probe_call
from hermetic.probe.kept import with_all_labels


def shortened(labels):
    """``[1, S]`` labels as ms-swift shortens them: slots whose next token is trained are kept, and the last."""
    trained = labels[0] != IGNORE_INDEX
    kept = nn.functional.pad(trained[1:], (0, 1), value=True)
    return {"labels": nn.functional.pad(labels[:, trained], (1, 0), value=IGNORE_INDEX), "logits_to_keep": kept}


@given(st.lists(st.sampled_from([IGNORE_INDEX, 5, 6, 7]), min_size=1, max_size=12))
def test_labels_are_those_that_were_shortened(rest):
    labels = torch.tensor([[IGNORE_INDEX, *rest]])

    found = with_all_labels({"use_cache": False, **shortened(labels)}, (1, labels.shape[1]))

    assert found.keys() == {"use_cache", "labels"}
    assert torch.equal(found["labels"], labels)


def test_a_number_of_last_slots_is_read_as_such_and_its_first_label_is_nobodys_target():
    labels = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])

    for kept in (3, torch.tensor([2, 3, 4])):
        found = with_all_labels({"labels": labels[:, -3:], "logits_to_keep": kept}, (2, 5))
        assert found["labels"].tolist() == [[IGNORE_INDEX] * 3 + [4, 5], [IGNORE_INDEX] * 3 + [9, 10]]


@pytest.mark.parametrize("kept", [None, 0, 4, True, torch.tensor([4, 3, 2]), torch.tensor([3, 4, 5]), "all"])
def test_what_does_not_fit_is_left_for_the_probe_to_refuse(kept):
    call = {"labels": torch.zeros(1, 3, dtype=torch.int64), "logits_to_keep": kept}

    assert with_all_labels(call, (1, 5)) == call


def test_a_model_that_keeps_some_logits_is_examined_with_the_targets_that_it_has():
    batch = packed((7, 5, 9))
    labels = batch.labels[None].clone()
    labels[0, [1, 2, 8]] = IGNORE_INDEX  # prompts
    call = {"input_ids": batch.input_ids[None], "position_ids": batch.boundaries.position_ids[None]}
    call |= {"use_cache": False, **shortened(labels)}
    model = tiny("llama").train()

    report = probe_call(model, (), call)
    diagnosis = examine(model, (), call)

    assert report.verdict == "sealed"
    assert report.targets.trained == report.targets.expected == (4, 3, 8)
    assert diagnosis.sound
    assert diagnosis.notes[0] == "15 supervised tokens"
