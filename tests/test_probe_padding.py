"""Rows that are filled up without a 2-D mask that says so: padding is told from documents, and nothing else changes."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from models import tiny
from torch import nn

from hermetic.constants import IGNORE_INDEX
from hermetic.doctor.documents import documents_of_call
from hermetic.probe import probe_call
from hermetic.probe.calls import read_call
from hermetic.probe.padding import blank_tail, pairs_that_see, seen_by_themselves

PAD = 0
ROWS = [[9, 7], [5, 8, 4]]
"""Two rows whose documents start at different slots; the first is filled up with one slot more than the second."""


class Anything(nn.Module):
    def forward(self, input_ids, **kwargs):
        raise NotImplementedError


def filled_up(rows, *, spare=3):
    """A call as SFT frameworks make it: positions that restart and are 0 in padding, labels, a mask of ones."""
    width = max(map(sum, rows)) + spare
    shape = (len(rows), width)
    call = {
        "input_ids": torch.full(shape, PAD),
        "position_ids": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORE_INDEX),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
    }
    generator = torch.Generator().manual_seed(0)
    for row, lengths in enumerate(rows):
        count = sum(lengths)
        ids = torch.randint(3, 64, (count,), generator=generator)
        positions = torch.cat([torch.arange(length) for length in lengths])
        call["input_ids"][row, :count], call["position_ids"][row, :count] = ids, positions
        call["labels"][row, :count] = ids.masked_fill(positions == 0, IGNORE_INDEX)
    return call


def block_mask(rows, width):
    """``[B, 1, S, S]`` additive: each token sees its own document so far, and padding sees nothing."""
    mask = torch.full((len(rows), 1, width, width), torch.finfo(torch.float32).min)
    for row, lengths in enumerate(rows):
        ends = np.cumsum(lengths)
        for start, end in zip(ends - lengths, ends, strict=True):
            square = mask[row, 0, start:end, start:end]
            square[torch.ones_like(square).tril() > 0] = 0.0
    return mask


def with_blocks(rows):
    call = filled_up(rows)
    return call | {"attention_mask": block_mask(rows, call["input_ids"].shape[1])}


many_rows = st.lists(st.lists(st.integers(2, 6), min_size=2, max_size=3), min_size=1, max_size=2)


@pytest.mark.parametrize("write", [filled_up, with_blocks])
@given(rows=many_rows)
def test_padding_that_no_flat_mask_marks_is_no_document(write, rows):
    call = write(rows)
    flat = tuple(length for row in rows for length in row)

    found = documents_of_call(call, tuple(call["input_ids"].shape))

    assert found.lengths == flat
    assert found.real.sum(axis=1).tolist() == [sum(row) for row in rows]
    spans = read_call(Anything(), (), call).spans
    assert {(span.row, span.start) for span in spans} <= set(map(tuple, np.argwhere(found.starts).tolist()))


def test_a_slot_with_a_label_an_id_of_its_own_or_at_the_start_of_a_row_is_no_padding():
    ids, positions = torch.tensor([[5, 6, 0, 0], [0, 0, 0, 0]]), torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])
    none = torch.full((2, 4), IGNORE_INDEX)
    labelled = none.clone()
    labelled[0, 2] = 0

    assert blank_tail(ids, positions, none).tolist() == [[False, False, True, True], [False, True, True, True]]
    assert blank_tail(ids, positions, labelled)[0].tolist() == [False, False, False, True]
    assert blank_tail(ids + torch.tensor([0, 0, 7, 0]), positions, none)[0].tolist() == [False, False, False, True]
    assert not blank_tail(ids, positions, None).any()
    assert not blank_tail(ids, positions + 1, none).any()


def test_what_a_mask_over_pairs_lets_through_is_read_however_it_is_written():
    seen = torch.tensor([[[[True, False], [False, False]]]])
    for mask in (seen, seen.long(), seen.float(), torch.where(seen, 0.0, -torch.inf), torch.where(seen, 0.0, -1e9)):
        assert torch.equal(pairs_that_see(mask), seen)
        assert seen_by_themselves(mask, (1, 2)).tolist() == [[True, False]]
    assert pairs_that_see(torch.ones(1, 1, 2, 2)).all()
    assert seen_by_themselves(torch.ones(1, 2), (1, 2)) is None


def test_rows_kept_apart_by_a_mask_over_pairs_are_sealed_whatever_their_padding():
    """Of documents from several rows, too: each is called with the blocks of its own row."""
    call = with_blocks(ROWS)

    report = probe_call(tiny("llama"), (), call)

    assert (report.verdict, report.lengths) == ("sealed", (9, 7, 5, 8, 4))
    assert "weights" in report.instruments


@pytest.mark.parametrize(
    ("labelled_firsts", "codes"), [(False, ["HM100", "HM101"]), (True, ["HM100", "HM101", "HM401"])]
)
def test_of_rows_that_leak_the_targets_are_read_at_the_logits_that_the_loss_is_made_of(labelled_firsts, codes):
    """A leak carries gradients to the last token of a document, which is not trained on the next one for that."""
    call = filled_up(ROWS)
    if labelled_firsts:
        real = call["input_ids"] != PAD
        call["labels"] = call["input_ids"].masked_fill(~real, IGNORE_INDEX)

    report = probe_call(tiny("llama"), (), call | {"use_cache": False})

    assert [finding.code for finding in report.findings] == codes
    assert report.targets.trained is not None
