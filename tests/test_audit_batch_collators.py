"""Batches as other collators make them, and as nobody should: those are told apart, and none breaks the audit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hermetic.audit import AuditReport
from hermetic.audit.batch.audit import audit_batch
from hermetic.audit.batch.names import EDGES, PADDED_EDGES, PER_TOKEN
from hermetic.errors import AuditError

DOCUMENTS = [
    {"input_ids": [11, 12, 13], "labels": [11, 12, 13]},
    {"input_ids": [21, 22, 23, 24, 25], "labels": [21, 22, 23, 24, 25]},
]
ROWS = [{"input_ids": [11, 12, 13, 21, 22], "seq_lengths": [3, 2]}]


def codes(batch):
    return [(finding.code, finding.certainty) for finding in audit_batch(dict(batch)).findings]


@pytest.mark.parametrize("more", [False, True])
def test_the_flattening_collator_of_transformers_is_sound(more):
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=more, return_seq_idx=more)

    assert codes(collator(DOCUMENTS)) == []


def test_the_collator_of_trl_is_sound_until_it_pads_and_then_has_a_document_for_each_pad():
    flat, padded = (
        DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True, pad_to_multiple_of=multiple)(ROWS)
        for multiple in (None, 8)
    )

    assert codes(flat) == []
    assert padded["cu_seq_lens_q"].tolist() == [0, 3, 5, 6, 7, 8]
    assert set(codes(padded)) == {("HM167", "likely")}


def test_the_collator_of_trl_for_padded_rows_is_sound():
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=False)

    assert codes(collator([{"input_ids": [11, 12, 13]}, {"input_ids": [21]}])) == []


@st.composite
def mappings(draw):
    """Tensors with known names, of any shape and values."""
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = [(rows, width)] * 4 + [(width,), (rows * width,), (rows, width + 1), (0,), (3, rows, width), (4, 1, width)]
    batch = {}
    for name in draw(st.lists(st.sampled_from(PER_TOKEN), max_size=6)):
        batch[name] = dice.integers(-2, 8, draw(st.sampled_from(shapes)))
    for name in draw(st.lists(st.sampled_from((*EDGES, *PADDED_EDGES)), max_size=3)):
        edges = dice.integers(-1, rows * width + 2, draw(st.sampled_from([(0,), (1,), (4,), (rows, 3)])))
        batch[name] = np.sort(edges, axis=-1) if draw(st.booleans()) else edges
    if draw(st.booleans()):
        batch["seq_lengths"] = [dice.integers(0, 4, count).tolist() for count in range(draw(st.integers(0, 3)))]
    if draw(st.booleans()):
        cells = dice.choice([0.0, 1.0, -np.inf, np.nan, -3e38], (rows, 1, width, width))
        batch["attention_mask"] = cells.astype(np.float32) if draw(st.booleans()) else cells > 0
    if draw(st.booleans()):
        batch |= {"max_seqlen": int(dice.integers(0, 9)), "use_cache": True}
    return batch


def outcome(batch):
    try:
        return audit_batch(batch)
    except AuditError as error:
        return error


@settings(max_examples=150)
@given(mappings())
def test_any_tensors_with_known_names_are_audited_or_refused_and_nothing_else_happens(batch):
    report = outcome(batch)
    sound = isinstance(report, AuditReport) and AuditReport.from_dict(report.to_dict()) == report

    assert sound or "expected" in str(report)
