"""Batches as other collators make them, and as nobody should: those are told apart, and none breaks the audit."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from transformers import DataCollatorWithFlattening, DynamicCache
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import hermetic
from hermetic.audit import AuditReport
from hermetic.audit.batch.audit import audit_batch
from hermetic.audit.batch.names import EDGES, PADDED_EDGES, PER_TOKEN
from hermetic.batch import Boundaries
from hermetic.batch.dialects import additive_mask
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


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("answers", [[[41, 42], [51]], [[41, 42, 43, 44, 45], [51, 52, 53, 54, 55]], [[41] * 7, [51]]])
def test_labels_of_an_encoder_and_decoder_are_another_row_whatever_their_length(side, answers):
    ids, mask = [[11, 12, 13, 0, 0], [21, 22, 23, 24, 25]], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    width = max(map(len, answers))
    labels = [[*answer, *[-100] * (width - len(answer))] for answer in answers]
    if side == "left":
        ids, mask = ([row[::-1] for row in rows] for rows in (ids, mask))
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}

    assert codes(batch) == []
    assert codes(batch | {"decoder_input_ids": [[0, *row[:-1]] for row in labels]}) == []


@pytest.mark.parametrize("labels", [[[5, 6, 7]], [[6, 7, 8]], [[-100, 7, 8, 9, -100]]])
def test_labels_of_other_lengths_that_are_the_tokens_of_the_row_are_a_mistake(labels):
    assert codes({"input_ids": [[5, 6, 7, 8]], "labels": labels}) == [("HM660", "certain")]


def test_a_batch_that_goes_on_after_a_cache_has_a_longer_mask_and_later_positions():
    step = {
        "input_ids": torch.tensor([[7], [8]]),
        "attention_mask": torch.ones(2, 6),
        "position_ids": torch.tensor([[5], [5]]),
        "use_cache": True,
    }

    assert codes(step | {"past_key_values": DynamicCache()}) == []
    assert codes(step) == [("HM660", "certain"), ("HM262", "likely")]


@pytest.mark.parametrize("values", [[0.5, 1.0], [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]])
def test_labels_that_are_scores_are_no_tokens_unless_there_is_one_for_each(values):
    batch = {"input_ids": torch.ones(2, 6, dtype=torch.long), "attention_mask": torch.ones(2, 6)}

    assert codes(batch | {"labels": torch.tensor(values)}) == []
    with pytest.raises(AuditError, match=r"labels has dtype torch.float32, expected whole numbers"):
        audit_batch(batch | {"labels": torch.ones(2, 6)})


def test_labels_below_zero_are_not_learned_whichever_number_says_so():
    batch = {"input_ids": [[4, 5, 6, 7, 8, 9]], "position_ids": [[0, 1, 2, 0, 1, 2]]}

    assert codes(batch | {"labels": [[-1, 5, 6, -1, 8, 9]]}) == []
    assert codes(batch | {"labels": [[-1, 5, 6, 7, 8, 9]]}) == [("HM401", "certain")]


PAIRS = {"input_ids": torch.arange(10, 18)[None], "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])}
SOUND = additive_mask(hermetic.Boundaries.from_lengths([3, 5]), dtype=torch.float32)


def test_a_slope_for_each_head_hides_nothing_and_a_hole_in_any_head_or_a_low_wall_is_found():
    behind = torch.arange(8)[:, None] - torch.arange(8)
    slopes = torch.stack([torch.where(SOUND[0, 0] == 0, -slope * behind, SOUND[0, 0]) for slope in (1.5, 0.25)])[None]
    hole = SOUND.repeat(1, 2, 1, 1)
    hole[0, 1, 7, 0] = 0

    assert codes(PAIRS | {"attention_mask": slopes}) == []
    assert codes(PAIRS | {"attention_mask": hole}) == [("HM173", "certain")]
    assert ("HM603", "certain") in codes(PAIRS | {"attention_mask": SOUND.clamp(min=-5)})


RAGGED = torch.nested.nested_tensor([torch.arange(3)], layout=torch.jagged)


@pytest.mark.parametrize("tensor", [torch.eye(3).long().to_sparse(), RAGGED])
def test_tensors_without_rows_are_refused(tensor):
    with pytest.raises(AuditError, match="input_ids is sparse or nested, expected values in rows"):
        audit_batch({"input_ids": tensor})


def test_padded_rows_of_images_and_text_without_a_mask_are_not_taken_for_packed_ones():
    rows = [[[0, 1, 1, 3, 4, 0, 0], [0, 1, 2, 3, 4, 5, 6]], [[0, 1, 2, 3, 4, 0, 0], [0, 1, 2, 3, 4, 5, 6]]]
    batch = {
        "input_ids": [[9, 7, 7, 5, 6, 0, 0], [9, 1, 2, 3, 4, 5, 6]],
        "labels": [[9, -100, -100, 5, 6, -100, -100], [9, 1, 2, 3, 4, 5, 6]],
        "position_ids": [rows[0], rows[0], rows[1]],
    }
    packed = {"input_ids": [[9, 7, 7, 5, 9, 6]], "position_ids": [[[0, 1, 1, 3, 0, 1]]] * 2 + [[[0, 1, 2, 3, 0, 1]]]}

    assert codes(batch) == []
    assert codes(packed) == [("HM171", "depends on version")]


def test_labels_on_seams_of_a_column_are_only_likely_for_a_collator_may_mask_them():
    row = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8], "seq_lengths": [2, 2]}
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)

    assert codes(row) == [("HM401", "likely")]
    assert codes(collator([row])) == []


def test_edges_of_64_bits_are_certainly_wrong_only_under_a_name_that_no_kernel_of_64_bits_reads():
    ids, edges = {"input_ids": np.arange(5)[None]}, np.array([0, 3, 5])

    assert codes(ids | {"cu_seqlens": edges}) == [("HM163", "depends on version")]
    assert codes(ids | {"cu_seqlens_q": edges}) == [("HM163", "certain")]


def test_ends_that_lost_their_labels_to_padding_are_found_where_the_padding_is_a_segment():
    batch = {"input_ids": [[5, 2, 6, 2, 7, 2, 2, 2]], "cu_seqlens": [0, 4, 6, 8]}

    assert codes(batch | {"labels": [[-100, -100, 6, -100, -100, -100, -100, -100]]}) == [("HM463", "likely")]
    assert codes(batch | {"labels": [[-100, 2, 6, 2, -100, 2, -100, -100]]}) == []


def test_first_tokens_without_a_label_after_a_full_row_are_no_seams():
    rows = {"input_ids": [[4, 5, 6, 7], [8, 9, 1, 2], [3, 1, 2, 0]], "attention_mask": [[1] * 4, [1] * 4, [1, 1, 1, 0]]}

    assert codes(rows | {"labels": [[-100, 5, 6, 7], [-100, 9, 1, 2], [-100, 1, 2, -100]]}) == []
    assert codes(rows | {"labels": [[4, 5, 6, 7], [8, 9, 1, -100], [3, 1, 2, -100]]}) == []
    assert codes(rows | {"labels": [[4, -100, 6, 7], [8, 9, -100, 2], [3, 1, 2, -100]]}) == [("HM602", "likely")]


def test_documents_of_one_token_are_no_padding_of_a_batch_that_knows_its_tail():
    ends = [{"input_ids": [5, 6, 2], "labels": [5, 6, -100]}, {"input_ids": [2]}]
    alike = [{"input_ids": [5, 7, 8]}, {"input_ids": [6]}, {"input_ids": [6]}]

    assert audit_batch(hermetic.collate(alike)).sound
    assert codes(hermetic.collate(alike).model_inputs()) == [("HM167", "likely"), ("HM167", "likely")]
    assert audit_batch(hermetic.collate(ends)).sound
    assert codes(hermetic.collate(ends).model_inputs()) == []


def test_masks_by_the_kind_of_layer_are_refused_by_their_names_and_each_is_audited_alone():
    everything = additive_mask(Boundaries.from_lengths([4]), dtype=torch.float32)
    sound = additive_mask(Boundaries.from_lengths([2, 2]), dtype=torch.float32)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "position_ids": torch.tensor([[0, 1, 0, 1]])}
    masks = {"full_attention": sound, "sliding_attention": everything}
    named = re.escape("a mask for each kind of layer (full_attention, sliding_attention)")
    with pytest.raises(AuditError, match=f"attention_mask is of type dict, .*{named}"):
        audit_batch({**inputs, "attention_mask": masks})

    found = {kind: audit_batch({**inputs, "attention_mask": mask}) for kind, mask in masks.items()}
    assert found["full_attention"].sound
    assert [finding.code for finding in found["sliding_attention"].findings] == ["HM603"]


def test_a_block_mask_is_refused_and_its_cells_are_audited_as_the_message_says():
    documents = torch.tensor([0, 0, 1, 1])
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "position_ids": torch.tensor([[0, 1, 0, 1]])}

    def apart(_batch, _head, query, key):
        return (query >= key) & (documents[query] == documents[key])

    def causal(_batch, _head, query, key):
        return query >= key

    found = {}
    for rule in (apart, causal):
        mask = create_block_mask(rule, 1, None, 4, 4, device="cpu")
        with pytest.raises(AuditError, match=re.escape("create_mask(mask.mask_mod, B, 1, S, S).float().log()")):
            audit_batch({**inputs, "attention_mask": mask})
        cells = create_mask(mask.mask_mod, 1, 1, 4, 4, device="cpu").float().log()
        report = audit_batch({**inputs, "attention_mask": cells})
        found[rule.__name__] = [finding.code for finding in report.findings]
    assert found == {"apart": [], "causal": ["HM603"]}
