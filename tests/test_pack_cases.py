"""Small inputs with exact answers, through a file, a packed folder and a collator."""

import pytest
from data_helpers import DEMO_TOKENIZER, write_jsonl

import hermetic
from hermetic.data import open_packed, pack_sources
from hermetic.errors import DocumentTooLongError


def packed(folder, documents, capacity, **options):
    """The folder of documents given as token ids, and its manifest."""
    source = write_jsonl(folder / "ids.jsonl", [{"input_ids": tokens} for tokens in documents])
    manifest = pack_sources(source, folder / "rows", tokenizer=DEMO_TOKENIZER, capacity=capacity, **options)
    return open_packed(folder / "rows"), manifest


def documents_of(lengths):
    return [[5 + number % 1000] * length for number, length in enumerate(lengths)]


def test_an_end_token_is_a_target_like_any_other_though_padding_looks_the_same(tmp_path):
    folder, manifest = packed(tmp_path, [[5, 2, 6, 2], [7, 2]], 8, seed=None)

    batch = hermetic.collate(folder.documents_of_row(0), pad_to=8, pad_token_id=2)

    assert folder.dataset[0]["seq_lengths"] == [4, 2]
    assert batch.model_inputs()["cu_seq_lens_q"].tolist() == [0, 4, 6, 8]
    assert batch.labels.tolist() == [-100, 2, 6, 2, -100, 2, -100, -100]
    assert manifest.supervised_tokens == 4


@pytest.mark.parametrize(("policy", "placed", "lost"), [("truncate", 10, 1), ("split", 11, 0), ("drop", 6, 5)])
def test_lengths_5_2_3_1_in_rows_of_4_place_what_the_policy_keeps_and_name_document_0(tmp_path, policy, placed, lost):
    folder, manifest = packed(tmp_path, documents_of([5, 2, 3, 1]), 4, on_overflow=policy)

    assert (manifest.tokens_read, manifest.tokens_placed, manifest.tokens_lost) == (11, placed, lost)
    assert sum(map(len, folder.dataset["input_ids"])) == placed
    (line,) = (tmp_path / "rows" / "losses.jsonl").read_text().splitlines()
    assert '"record": 1,' in line
    assert f'"tokens": {lost}' in line


def test_lengths_5_2_3_1_in_rows_of_4_without_a_policy_name_document_0_and_both_numbers(tmp_path):
    with pytest.raises(DocumentTooLongError, match=r"ids\.jsonl:1: document 0 has 5 tokens .*\(5 > 4\)"):
        packed(tmp_path, documents_of([5, 2, 3, 1]), 4)


def test_lengths_6_4_3_3_2_2_fill_two_rows_of_10_with_every_document_once(tmp_path):
    folder, manifest = packed(tmp_path, documents_of([6, 4, 3, 3, 2, 2]), 10)

    assert sorted(sorted(lengths) for lengths in folder.dataset["seq_lengths"]) == [[2, 2, 3, 3], [4, 6]]
    assert sorted(number for row in folder.dataset["document_ids"] for number in row) == list(range(6))
    assert (manifest.rows, manifest.utilization) == (2, 1.0)


def test_2500_documents_of_one_token_lie_in_one_row_and_the_same_seed_gives_the_same_row(tmp_path):
    rows = []
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
        folder, manifest = packed(tmp_path / name, documents_of([1] * 2500), 4096, seed=5)
        assert manifest.rows == 1
        rows.append(folder.dataset[0])

    assert rows[0] == rows[1]
    assert sorted(rows[0]["document_ids"]) == list(range(2500))


def test_every_per_token_tensor_of_a_packed_row_of_1234_tokens_has_1240_entries(tmp_path):
    folder, manifest = packed(tmp_path, documents_of([1000, 200, 34]), 1234)

    batch = hermetic.collate(folder.documents_of_row(0), pad_to_multiple=8)
    inputs = batch.model_inputs()

    assert (manifest.rows, manifest.tokens_placed) == (1, 1234)
    assert {inputs[name].shape[-1] for name in ("input_ids", "labels", "position_ids")} == {1240}
    assert inputs["cu_seq_lens_q"].tolist()[-1] == inputs["cu_seq_lens_k"].tolist()[-1] == 1240
