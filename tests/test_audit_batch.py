"""What an audit says of the batches of the field reports, with exact values, and of batches that are sound."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import hermetic
from hermetic.audit.batch.audit import audit_batch
from hermetic.audit.batch.facts import facts_of
from hermetic.audit.batch.tensors import tensors_of
from hermetic.audit.reading import FLASH_ATTENTION, SDPA, readings
from hermetic.batch import Boundaries
from hermetic.batch.dialects import additive_mask, dense_mask
from hermetic.errors import AuditError


def codes(batch, **options):
    return [finding.code for finding in audit_batch(batch, **options).findings]


def only(batch, **options):
    (finding,) = audit_batch(batch, **options).findings
    return finding


def lengths(batch):
    return facts_of(tensors_of(batch)).lengths.tolist()


def ids(count, rows=1):
    return np.arange(10, 10 + count * rows).reshape(rows, count)


def int32(values):
    return np.array(values, dtype=np.int32)


def test_case_1_three_and_five_tokens_are_one_fact_in_every_view_and_silent():
    batch = {
        "input_ids": ids(8),
        "cu_seqlens": int32([0, 3, 8]),
        "max_seqlen": 5,
        "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4]],
        "document_ids": [[0, 0, 0, 1, 1, 1, 1, 1]],
        "seq_idx": int32([[0, 0, 0, 1, 1, 1, 1, 1]]),
        "seq_lengths": [[3, 5]],
    }

    assert lengths(batch) == [3, 5]
    assert codes(batch) == []


@pytest.mark.parametrize(
    ("positions", "expected"),
    [([0, 1, 2, 0, 1, 0], [3, 2, 1]), ([0, 0, 0], [1, 1, 1]), ([0, 1, 2, 0, 0, 1], [3, 1, 2])],
)
def test_cases_2_3_4_documents_of_one_token_are_found_by_their_positions(positions, expected):
    batch = {"input_ids": ids(len(positions)), "position_ids": [positions]}

    assert lengths(batch) == expected
    assert codes(batch) == []


def test_case_5_positions_that_go_on_from_elsewhere_are_two_documents_and_reported():
    batch = {"input_ids": ids(6), "position_ids": [[3, 4, 5, 0, 1, 2]]}
    continued, differently = audit_batch(batch).findings

    assert lengths(batch) == [3, 3]
    assert (continued.code, continued.certainty) == ("HM262", "likely")
    assert continued.what == "position_ids start a document at 3 at token 0; others start at 0"
    assert (differently.code, differently.certainty) == ("HM168", "depends on version")
    assert differently.what == (
        "position_ids of row 0 have documents at 0, 3, 6 for sdpa, eager and flex, where the step is not +1; flash "
        "attention at the smallest of them: 3, 6"
    )


def test_case_6_positions_of_roberta_are_sound_and_its_padding_is_what_is_reported():
    real = {"input_ids": ids(5), "position_ids": [[2, 3, 4, 2, 3]]}
    padded = {"input_ids": [[10, 11, 12, 13, 14, 1, 1]], "position_ids": [[2, 3, 4, 2, 3, 1, 1]], "seq_lens": [[3, 2]]}

    assert lengths(real) == lengths(padded) == [3, 2]
    assert codes(real) == []
    assert codes(padded) == ["HM167", "HM168"]
    assert audit_batch(padded).findings[0].value == "2 documents of padding"


def test_case_7_two_rows_are_five_documents_and_flat_edges_need_one_at_the_row():
    rows = {"input_ids": ids(6, rows=2)}
    edges = rows | {"cu_seqlens": int32([0, 3, 6, 8, 10, 12])}
    stacked = rows | {"cu_seqlens": int32([[0, 3, 6, 6], [0, 2, 4, 6]])}
    joined = only(rows | {"cu_seqlens": int32([0, 3, 8, 10, 12])})

    assert lengths(edges) == lengths(stacked) == [3, 3, 2, 2, 2]
    assert codes(edges) == codes(stacked) == []
    assert joined.code == "HM169"
    assert joined.what == "cu_seqlens has no edge at 6, where row 1 starts: a document runs on from row 0 into row 1"


def test_case_8_planes_are_never_taken_for_rows():
    text, time = [0, 1, 2, 0, 1], [0, 1, 1, 1, 2]
    four = {"input_ids": ids(5), "position_ids": np.array([text, time, time, time])[:, None]}
    one = {"input_ids": ids(5), "position_ids": np.array([[0, 1, 2, 3, 4], time, time, time])[:, None]}
    three = {"input_ids": ids(5), "position_ids": np.array([text, text, text])[:, None]}
    plain = {"input_ids": ids(4, rows=2), "position_ids": np.broadcast_to(np.arange(4), (3, 2, 4))}
    tripled = {"input_ids": ids(4), "cu_seqlens": int32([0, 4, 8, 12])}

    assert [lengths(batch) for batch in (four, one, three, plain)] == [[3, 2], [5], [3, 2], [4, 4]]
    assert [codes(batch) for batch in (four, one, three, plain)] == [[], [], ["HM171"], []]
    assert only(tripled).what == ("cu_seqlens ends at 12, and the batch has 4 tokens: kernels read past the tensor")


def test_case_9_an_empty_document_is_a_repeated_edge_and_no_finding():
    batch = {"input_ids": ids(5), "cu_seqlens": int32([0, 3, 3, 5]), "max_seqlen": 3, "seq_lengths": [[3, 0, 2]]}

    assert lengths(batch) == [3, 2]
    assert codes(batch) == []


@pytest.mark.parametrize("slots", [12, 128])
def test_case_10_the_tail_is_one_segment_and_no_document(slots):
    batch = hermetic.collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9, 10, 11, 12]}], pad_to=slots)
    report = audit_batch(batch)
    facts = dict(report.facts)

    assert report.sound
    assert facts["documents"] == "2 by cu_seq_lens_q: 3, 5 tokens"
    assert facts["utilization"] == f"{8 / slots:.1%} of {slots} slots"
    assert facts["supervised"] == "6 of 8 tokens"
    assert facts["contaminated if read naively"] == "62.5% of tokens would see another document"
    assert {reading.documents for reading in readings(batch)} == {((0, 3, 8, slots),)}


def test_cases_11_and_17_a_block_mask_is_sound_and_its_running_positions_are_not():
    boundaries = Boundaries.from_lengths([3, 5])
    mask = additive_mask(boundaries, dtype=torch.float32)
    sound = {"input_ids": torch.tensor(ids(8)), "attention_mask": mask, "position_ids": boundaries.position_ids[None]}
    running = sound | {"position_ids": torch.arange(8)[None]}

    assert codes(sound) == []
    assert only(running).code == "HM201"
    assert only(running).what == ("position_ids count on at token 3 (3), where a document starts by attention_mask")


def test_case_11_plain_causal_cells_between_documents_are_counted():
    causal = torch.full((8, 8), torch.finfo(torch.float32).min).triu(1)
    batch = {
        "input_ids": torch.tensor(ids(8)),
        "attention_mask": causal[None, None],
        "document_ids": Boundaries.from_lengths([3, 5]).document_ids[None],
    }
    disagree, hole = audit_batch(batch).findings

    assert (disagree.code, hole.code) == ("HM603", "HM173")
    assert hole.value == "15 cells in row 0"
    assert hole.what == (
        "attention_mask lets token 3 of row 0 see token 0, which is of another document by document_ids"
    )


def test_case_12_a_window_takes_nothing_from_a_mask_that_isolates():
    for boundaries, window in ((Boundaries.from_lengths([7]), 4), (Boundaries.from_lengths([3, 3, 3]), 4)):
        mask = dense_mask(boundaries, window=window)[None, None]
        lowest = torch.finfo(torch.float32).min
        additive = torch.zeros(mask.shape).masked_fill(~mask, lowest)
        batch = {
            "input_ids": torch.arange(boundaries.num_tokens)[None],
            "attention_mask": additive,
            "position_ids": boundaries.position_ids[None],
        }
        assert codes(batch) == []


def test_case_13_an_all_ones_mask_beside_documents_is_reported_and_beside_none_is_not():
    packed = {"input_ids": ids(8), "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4]]}

    assert codes(packed) == []
    assert codes(packed | {"attention_mask": np.ones((1, 8), int)}) == ["HM101"]
    assert codes({"input_ids": ids(8), "attention_mask": np.ones((1, 8), int)}) == []


def test_case_14_a_cache_beside_documents_is_reported():
    packed = {"input_ids": ids(8), "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4]]}

    assert codes(packed | {"use_cache": True}) == ["HM102"]
    assert codes(packed | {"use_cache": False}) == []


def test_case_18_booleans_and_ones_over_pairs_are_reported_with_their_certainty():
    boundaries = Boundaries.from_lengths([3, 5])
    allowed = dense_mask(boundaries)[None, None]
    batch = {"input_ids": torch.tensor(ids(8)), "position_ids": boundaries.position_ids[None]}
    booleans = only(batch | {"attention_mask": allowed})
    ones = only(batch | {"attention_mask": allowed.float()})

    assert (booleans.code, booleans.certainty) == ("HM109", "depends on version")
    assert booleans.versions == "eager attention of any transformers; sdpa takes booleans for what they are"
    assert (ones.code, ones.certainty, ones.value) == ("HM109", "certain", "torch.float32 of shape [1, 1, 8, 8]")


def test_case_19_document_numbers_in_a_mask_are_reported_as_booleans():
    found = only({"input_ids": ids(8), "attention_mask": [[1, 1, 1, 2, 2, 2, 2, 2]]})

    assert (found.code, found.certainty, found.value) == ("HM103", "certain", "numbers up to 2")
    assert lengths({"input_ids": ids(13), "attention_mask": [[1] * 4 + [2] * 3 + [3] * 3 + [0] * 3]}) == [4, 3, 3]


def test_case_20_the_first_label_of_each_document_is_the_only_one_to_hide():
    batch = {"input_ids": [[5, 6, 7, 8, 9]], "position_ids": [[0, 1, 2, 0, 1]]}
    right = batch | {"labels": [[-100, 6, 7, -100, 9]]}
    found = only(batch | {"labels": [[5, 6, 7, 8, 9]]})

    assert codes(right) == []
    assert dict(audit_batch(right).facts)["supervised"] == "3 of 5 tokens"
    assert (found.code, found.value) == ("HM401", "1 of 1 seams")
    assert found.what.endswith("labels is 8 at token 3")


def test_case_21_shifted_targets_end_with_their_document_and_do_not_wrap():
    batch = {"input_ids": [[10, 11, 12, 20, 21]], "cu_seqlens": int32([0, 3, 5])}
    rolled = only(batch | {"shift_labels": [[11, 12, 20, 21, 10]]})

    assert codes(batch | {"shift_labels": [[11, 12, -100, 21, -100]]}) == []
    assert rolled.code == "HM401"
    assert "and the last of a row the first of that row" in rolled.what
    assert codes(batch | {"shift_labels": [[11, 12, -100, 21, 10]]}) == ["HM401"]
    assert codes(batch | {"labels": [[11, 12, -100, 21, -100]]}) == ["HM403"]
    assert codes(batch | {"labels": [[12, -100, 21, -100, -100]]}) == ["HM403"]


def test_case_22_a_loss_mask_that_starts_a_document_is_a_target_over_the_seam():
    batch = {"input_ids": [[1, 2, 3, 4, 5, 6]], "seq_lengths": [[3, 3]]}

    assert codes(batch | {"labels": [[-100, -100, 3, -100, 5, 6]]}) == []
    assert codes(batch | {"labels": [[-100, -100, 3, 4, 5, 6]]}) == ["HM401"]


def test_case_22_megatron_hides_seams_by_its_loss_mask():
    batch = {"tokens": [[1, 2, 3, 4, 5, 6]], "labels": [[2, 3, 4, 5, 6, 7]], "cu_seqlens": int32([0, 3, 6])}

    assert codes(batch | {"loss_mask": [[1, 1, 0, 1, 1, 0]]}) == []
    assert codes(batch | {"loss_mask": [[1, 1, 1, 1, 1, 0]]}) == ["HM401"]


def test_case_23_ends_that_are_masked_by_value_are_found_and_ends_that_are_kept_are_not():
    batch = {"input_ids": [[5, 2, 6, 2, 7, 2, 2, 2]], "cu_seqlens": int32([0, 4, 6, 8]), "seq_lengths": [[4, 2]]}
    kept = batch | {"labels": [[-100, 2, 6, 2, -100, 2, -100, -100]]}
    found = only(batch | {"labels": [[-100, -100, 6, -100, -100, -100, -100, -100]]})

    assert lengths(batch) == [4, 2]
    assert codes(kept) == []
    assert dict(audit_batch(kept).facts)["supervised"] == "4 of 6 tokens"
    assert (found.code, found.certainty, found.value) == ("HM463", "likely", "1 tokens")


def test_case_30_every_tensor_has_as_many_values_as_there_are_tokens():
    padded = {"input_ids": np.arange(1240)[None], "cu_seqlens": int32([0, 1234, 1240])}
    found = only(padded | {"position_ids": np.arange(1234)[None]})

    assert codes(padded) == []
    assert (found.code, found.what) == (
        "HM660",
        "position_ids is [1, 1234], and the batch has 1 row of 1,240 tokens",
    )


def test_views_that_disagree_are_named_with_the_first_row_and_token_and_what_each_says():
    batch = {
        "input_ids": ids(4, rows=2),
        "document_ids": [[0, 0, 1, 1], [0, 0, 0, 1]],
        "position_ids": [[0, 1, 0, 1], [0, 1, 0, 1]],
    }
    found, several_rows = audit_batch(batch).findings

    assert (found.code, several_rows.code) == ("HM603", "HM168")
    assert found.what == (
        "document_ids and position_ids have different documents: at row 1, token 2 a document goes on by "
        "document_ids (0) and starts by position_ids (0)"
    )
    assert found.value == "2 of 8 tokens"


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": ids(4, rows=2)},
        {"input_ids": ids(4, rows=2), "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1]]},
        {"input_ids": ids(4, rows=2), "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]]},
        {
            "input_ids": ids(4, rows=2),
            "attention_mask": [[0, 0, 1, 1], [1, 1, 1, 1]],
            "position_ids": [[1, 1, 0, 1], [0, 1, 2, 3]],
        },
        {
            "input_ids": [[5, 6, 2, 2], [7, 8, 9, 2]],
            "attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1]],
            "labels": [[5, 6, 2, -100], [7, 8, 9, 2]],
        },
        {"input_ids": ids(4, rows=2), "position_ids": [[0, 1, 2, 3]]},
        {"input_ids": ids(4, rows=2), "labels": [1, 0]},
    ],
    ids=["plain", "right", "left", "left with positions", "end of text as padding", "one row of positions", "classes"],
)
def test_padded_rows_of_one_document_each_are_sound(batch):
    assert codes(batch) == []


def test_masked_language_modelling_has_labels_that_are_not_the_tokens_and_no_finding():
    assert codes({"input_ids": [[5, 103, 7, 103, 9]], "labels": [[-100, 6, -100, 8, -100]]}) == []


def test_rows_without_boundaries_are_told_by_their_lone_hidden_labels_or_by_ends_of_texts():
    seams = {"input_ids": [[5, 6, 7, 8, 9, 4, 3]], "labels": [[-100, 6, 7, -100, 9, 4, 3]]}
    text = {"input_ids": [[5, 6, 2, 8, 9, 2]]}
    by_labels = only(seams)

    assert (by_labels.code, by_labels.certainty) == ("HM602", "likely")
    assert by_labels.what.endswith("single tokens without a label between supervised ones at token 3")
    assert codes(text) == []
    assert only(text, ends={2}).what.endswith("ends of texts at token 2")
    assert audit_batch(text).notes == (
        "nothing in the batch says where documents start: each row was taken for one document",
    )


def test_edges_on_another_device_than_the_tokens_are_reported():
    from dataclasses import replace

    batch = tensors_of({"input_ids": torch.tensor(ids(5)), "cu_seqlens": torch.tensor([0, 5], dtype=torch.int32)})
    away = replace(batch.tensors["input_ids"], device="cuda:0")
    moved = replace(batch, tensors={**batch.tensors, "input_ids": away})

    assert codes(batch) == []
    assert only(moved).what == (
        "cu_seqlens is on cpu, with the tokens on cuda:0, and variable-length kernels read int32 beside the tokens"
    )


def test_heads_and_their_width_count_for_the_limit_of_32_bits():
    batch = {"input_ids": ids(2**10)}

    assert codes(batch, heads=2**11, head_dim=2**10 - 1) == []
    assert only(batch, heads=2**11, head_dim=2**10).what == (
        "1,024 tokens x 2048 heads x 1024 are 2,147,483,648 elements, above the 2,147,483,647 that a 32-bit offset "
        "counts"
    )


def test_megatrons_real_and_padded_edges_are_one_view_and_have_to_fit():
    batch = {
        "tokens": ids(12),
        "cu_seqlens_q": int32([0, 3, 8]),
        "cu_seqlens_kv": int32([0, 3, 8]),
        "cu_seqlens_q_padded": int32([0, 4, 12]),
        "cu_seqlens_kv_padded": int32([0, 4, 12]),
        "max_seqlen_q": 8,
        "max_seqlen_kv": 8,
    }
    exchanged = batch | {"cu_seqlens_q": int32([0, 4, 12]), "cu_seqlens_q_padded": int32([0, 3, 12])}

    assert lengths(batch) == [3, 5]
    assert codes(batch) == []
    assert codes(exchanged) == ["HM260", "HM603"]
    assert audit_batch(exchanged).findings[1].what == (
        "cu_seqlens_q and cu_seqlens_q_padded do not fit each other: document 0 has 4 tokens in room for 3"
    )


def test_a_report_is_plain_data_and_names_its_subject():
    report = audit_batch({"input_ids": ids(5), "cu_seqlens": [1, 5]}, name="step 3")

    assert (report.kind, report.stack, report.subject, report.sound) == ("batch", None, "step 3", False)
    assert type(report).from_dict(report.to_dict()) == report
    assert {reading.name for reading in readings({"input_ids": ids(5)})} == {SDPA, FLASH_ATTENTION}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (7, "int is of type int, expected a PackedBatch, a mapping of tensors"),
        ({}, "dict has no tensor with a value for each token"),
        ({"input_ids": []}, "dict has no tokens"),
        ({"pixel_values": [1.0]}, "dict has no tensor with a value for each token (found: nothing that is known)"),
        ({"input_ids": [[1, 2], [3]]}, "dict, input_ids is ragged: row 1 has 1 values, expected 2 as in row 0"),
        ({"input_ids": [[1.5, 2.5]]}, "dict, input_ids has dtype float64, expected whole numbers"),
        ({"input_ids": [[True, False]]}, "dict, input_ids has dtype bool, expected whole numbers"),
        ({"input_ids": ["a"]}, "dict, input_ids has dtype <U1, expected whole numbers"),
        ({"input_ids": [[1, 2], 3]}, "dict, input_ids[1] is 3 beside lists, expected one list for each row"),
        ({"input_ids": [[1, None]]}, "dict, input_ids has dtype object, expected whole numbers"),
        ({"input_ids": [2**70]}, "dict, input_ids has dtype object, expected whole numbers"),
        ({"input_ids": "abc"}, "dict, input_ids is of type str, expected a tensor, an array or a list"),
        ({"input_ids": [1], "cu_seqlens": [[[0]]]}, "dict, cu_seqlens has shape [1, 1, 1], expected 1 or 2 dimensions"),
        ({"input_ids": [1], "max_seqlen": [1, 2]}, "dict, max_seqlen is [1, 2], expected one whole number"),
        ({"input_ids": torch.ones(1, 2, device="meta")}, "dict, input_ids is on the device meta, expected values"),
    ],
)
def test_what_is_no_batch_is_refused_with_its_tensor_what_was_found_and_what_was_expected(batch, expected):
    with pytest.raises(AuditError) as caught:
        audit_batch(batch)

    assert str(caught.value).startswith(expected)


def test_a_batch_without_tensors_is_audited_without_torch():
    program = (
        "import sys\nfrom hermetic.audit import audit_batch\n"
        "audit_batch({'input_ids': [[5, 6, 7]], 'position_ids': [[0, 1, 0]]})\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['numpy']"
