"""What libraries make of model inputs is drawn beside what is right; what is unsure is said in a note."""

import json
import re

import numpy as np
import pytest
import torch
from data_helpers import DEMO_TOKENIZER, write_jsonl

import hermetic
from hermetic.data import open_packed, pack_sources
from hermetic.errors import AuditError, DataError
from hermetic.show import BACKENDS

SOUND = {
    "input_ids": [[5, 6, 7, 8, 9]],
    "position_ids": [[0, 1, 0, 1, 2]],
    "labels": [[-100, 6, -100, 8, 9]],
}


def readers(picture):
    return {mask.name: mask for mask in picture.masks[3:]}


def test_inputs_with_positions_that_restart_are_read_right_by_both_helpers_of_transformers():
    picture = hermetic.show(SOUND)

    assert {name: mask.is_right for name, mask in readers(picture).items()} == {
        "transformers_mask": True,
        "transformers_flash": True,
    }
    assert picture.notes == ("documents by positions that restart",)


def test_a_mask_of_ones_lets_the_mask_helper_join_the_documents_and_not_the_flash_helper():
    found = readers(hermetic.show({**SOUND, "attention_mask": [[1] * 5]}))

    assert found["transformers_mask"].total("leak") == 6
    assert found["transformers_flash"].is_right


def test_numbers_of_documents_in_a_mask_are_booleans_for_those_who_read_it():
    picture = hermetic.show({"input_ids": [[5, 6, 7, 8, 9]], "attention_mask": [[1, 1, 2, 2, 2]]})

    assert [one.length for one in picture.documents] == [2, 3]
    assert readers(picture)["transformers_mask"].total("leak") == 6


def test_positions_that_start_above_0_lose_the_first_document_for_the_flash_helper():
    picture = hermetic.show({"input_ids": [[5] * 6], "position_ids": [[3, 4, 5, 0, 1, 2]]})
    flash = readers(picture)["transformers_flash"]

    assert (flash.total("lost"), flash.total("leak"), flash.total("own")) == (6, 0, 6)


def test_keys_that_a_mask_hides_are_lost():
    inputs = {"input_ids": [[5, 6, 7, 8]], "attention_mask": [[1, 0, 1, 1]], "document_ids": [[0, 0, 0, 0]]}
    picture = hermetic.show(inputs)

    assert picture.document_ids.tolist() == [0, -1, 1, 1]
    assert readers(picture)["transformers_mask"].cells["leak"].tolist() == [[0] * 4, [0] * 4, *[[1, 0, 0, 0]] * 2]


def test_a_mask_over_pairs_is_drawn_as_it_is():
    pairs = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    picture = hermetic.show({"input_ids": [[5, 6, 7, 8]], "attention_mask": pairs[None, None]})
    drawn = picture.mask("transformers_mask")

    assert [one.length for one in picture.documents] == [2, 2]
    assert drawn.seen.tolist() == pairs.int().tolist()
    assert (drawn.total("leak"), drawn.cells["leak"][3, 0]) == (1, 1)
    assert any("takes no attention_mask over pairs" in note for note in picture.notes)


def test_edges_and_numbers_are_drawn_where_they_are_wrong_or_asked_for():
    right = {**SOUND, "cu_seq_lens_q": np.array([0, 2, 5], dtype=np.int32)}
    wrong = {**SOUND, "document_ids": [[0, 0, 1, 1, 1]], "cu_seq_lens_q": np.array([0, 3, 5], dtype=np.int32)}

    assert "edges" not in readers(hermetic.show(right))
    assert hermetic.show(right, backends=["edges"]).mask("edges").is_right
    picture = hermetic.show(wrong)
    assert (picture.mask("edges").total("leak"), picture.mask("edges").total("lost")) == (2, 2)
    assert any(note == "cu_seq_lens_q: lengths 3, 2; document_ids: lengths 2, 3" for note in picture.notes)


def test_a_source_that_cannot_be_read_is_named_and_the_next_one_believed():
    picture = hermetic.show({**SOUND, "cu_seqlens": np.array([0, 4, 3, 9], dtype=np.int32)}, backends=[])

    assert [one.length for one in picture.documents] == [2, 3]
    assert picture.notes[0].startswith("cu_seqlens cannot be read: ")


def test_a_row_that_nobody_cuts_is_drawn_as_one_document_and_says_so():
    picture = hermetic.show({"input_ids": [[5, 6, 7]]})

    assert [one.length for one in picture.documents] == [3]
    assert "nothing says where documents start: the row is drawn as one" in picture.notes
    assert "no positions are given: a model counts through the row" in picture.notes


def test_a_tail_of_one_id_without_labels_is_drawn_as_padding_and_says_so():
    batch = hermetic.collate([{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}], pad_to=8)
    picture = hermetic.show(batch.model_inputs())

    assert picture.document_ids.tolist() == [0, 0, 1, 1, 1, -1, -1, -1]
    assert "the last 3 slots hold the id 0 alone, without a label: drawn as padding" in picture.notes


def test_a_last_document_of_one_id_with_a_label_stays_a_document():
    picture = hermetic.show(
        {"input_ids": [[5, 6, 0, 0]], "position_ids": [[0, 1, 0, 1]], "labels": [[-100, 6, -100, 0]]}
    )

    assert picture.document_ids.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("suffix", ["json", "npz", "safetensors"])
def test_a_file_of_a_batch_is_drawn_as_the_batch_in_memory(tmp_path, suffix):
    path = tmp_path / f"batch.{suffix}"
    arrays = {name: np.array(value) for name, value in SOUND.items()}
    if suffix == "json":
        path.write_text(json.dumps(SOUND))
    elif suffix == "npz":
        np.savez(path, **arrays)
    else:
        from safetensors.numpy import save_file

        save_file(arrays, path)
    found, expected = hermetic.show(path).to_dict(), hermetic.show(SOUND).to_dict()

    assert found.pop("subject") != expected.pop("subject")
    assert found == expected


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    here = tmp_path_factory.mktemp("show")
    texts = [{"text": f"document {number} [bold]\x1b[31m<b>" + " word" * number} for number in range(12)]
    pack_sources(write_jsonl(here / "texts.jsonl", texts), here / "packed", tokenizer=DEMO_TOKENIZER, capacity=64)
    return here / "packed"


def test_a_row_of_a_packed_folder_is_drawn_with_its_documents_and_their_texts(packed):
    data = open_packed(packed)
    for row in range(len(data)):
        documents = data.documents_of_row(row)
        picture = hermetic.show(packed, row=row, tokenizer=DEMO_TOKENIZER)
        assert picture.ids.tolist() == [int(token) for one in documents for token in one["input_ids"]]
        assert [one.length for one in picture.documents] == [len(one["input_ids"]) for one in documents]
        assert len(picture.texts) == picture.num_slots
        assert "".join(picture.texts).count("document ") == len(documents)
        assert re.search(r"\d+ of 64 tokens of the row are filled", picture.notes[0])
        assert "\x1b" not in picture.text()


def test_a_row_that_is_not_there_and_a_tokenizer_that_did_not_make_it_are_refused(packed, tmp_path):
    from data_helpers import tokenizer_folder

    with pytest.raises(AuditError, match=r"row is 99, and .* rows; expected 0 to \d+"):
        hermetic.show(packed, row=99)
    other = tokenizer_folder(tmp_path / "other", bos_token="<|user|>")  # noqa: S106 - a token of text, no password
    with pytest.raises(DataError, match="fingerprint"):
        hermetic.show(packed, tokenizer=other)


def test_every_reader_that_can_be_asked_for_is_drawn():
    inputs = {**SOUND, "document_ids": [[0, 0, 1, 1, 1]], "cu_seqlens": np.array([0, 2, 5]), "seq_lengths": [[2, 3]]}

    assert [mask.name for mask in hermetic.show(inputs, backends=BACKENDS).masks[1:]] == list(BACKENDS)
