"""A packed folder is what its manifest says, or opening it is an error that names the damage."""

import dataclasses
import json
import shutil

import datasets
import pytest
from data_helpers import DEMO_TOKENIZER, write_jsonl

import hermetic
from hermetic.data import PackManifest, open_packed, pack_sources
from hermetic.data.sources import sha256_of_file
from hermetic.errors import PackedDataError

RECORDS = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}, {"input_ids": [1, 2, 3, 4]}]
DATA_FILE = "data-00000-of-00001.arrow"


@pytest.fixture
def folder(tmp_path):
    source = write_jsonl(tmp_path / "ids.jsonl", RECORDS)
    pack_sources(source, tmp_path / "rows", tokenizer=DEMO_TOKENIZER, capacity=5, seed=None)
    return tmp_path / "rows"


def forge(folder, **columns):
    """Write other rows into a packed folder under a manifest whose checksums are right: only the rows lie."""
    manifest = PackManifest.load(folder)
    shutil.rmtree(folder)
    honest = {
        "input_ids": [[5, 6, 7, 8, 9], [1, 2, 3, 4]],
        "labels": [[-100, 6, 7, -100, 9], [-100, 2, 3, 4]],
        "seq_lengths": [[3, 2], [4]],
        "document_ids": [[0, 1], [2]],
        "source_ids": [[0, 0], [0]],
        "record_numbers": [[1, 2], [3]],
    }
    rows = {name: values for name, values in (honest | columns).items() if values is not None}
    datasets.Dataset.from_dict(rows).save_to_disk(str(folder))
    files = {path.name: sha256_of_file(path) for path in folder.iterdir()}
    shards = tuple(dataclasses.replace(shard, sha256=files[shard.name]) for shard in manifest.shards)
    (folder / "manifest.json").write_text(dataclasses.replace(manifest, files=files, shards=shards).to_json())


def edit_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_open_folder_gives_its_rows_as_documents(folder):
    packed = open_packed(folder)
    documents = [[doc["input_ids"].tolist() for doc in row] for row in packed.rows()]

    assert len(packed) == len(documents) == 2
    assert sorted(sum(documents, [])) == [[1, 2, 3, 4], [5, 6, 7], [8, 9]]  # noqa: RUF017 - three documents
    assert sorted(packed.document_lengths.tolist()) == [2, 3, 4]
    assert sorted(packed.documents_per_row.tolist()) == [1, 2]
    assert packed.manifest.documents_read == 3
    assert packed.path == folder


def test_the_documents_of_a_row_collate_to_its_own_labels(folder):
    packed = open_packed(folder)

    for index, row in enumerate(packed.dataset):
        batch = hermetic.collate(packed.documents_of_row(index))
        assert batch.input_ids.tolist() == row["input_ids"]
        assert batch.labels.tolist() == row["labels"]
        assert batch.boundaries.lengths.tolist() == row["seq_lengths"]


def test_honest_rows_under_new_checksums_open(folder):
    forge(folder)

    assert len(open_packed(folder)) == 2


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_that_does_not_exist_is_an_error(folder, index):
    with pytest.raises(PackedDataError, match=rf"row {index} does not exist in .*rows, expected 0 to 1"):
        open_packed(folder).documents_of_row(index)


@pytest.mark.parametrize("name", [DATA_FILE, "dataset_info.json", "state.json"])
def test_one_changed_byte_in_any_file_is_found_and_named(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)

    with pytest.raises(PackedDataError, match=rf"{name} is damaged: its SHA-256 is \w+, expected \w+"):
        open_packed(folder)


def test_a_file_that_the_manifest_has_no_checksum_of_is_named(folder):
    (folder / "extra.arrow").write_bytes(b"")

    with pytest.raises(PackedDataError, match=r"files without a checksum in its manifest: \['extra\.arrow'\]"):
        open_packed(folder)


def test_a_manifest_without_checksums_verifies_nothing_and_is_refused(folder):
    edit_manifest(folder, files={})

    with pytest.raises(PackedDataError, match=r"its shards \['data.*'\] are none of its files"):
        open_packed(folder)


def test_a_row_above_the_capacity_of_the_manifest_is_an_error(folder):
    edit_manifest(folder, capacity=2)

    with pytest.raises(PackedDataError, match=r"row \+0 has \d+ tokens, above the 2 of a row by the manifest"):
        open_packed(folder)


def test_a_missing_data_file_is_named(folder):
    (folder / DATA_FILE).unlink()

    with pytest.raises(PackedDataError, match=f"{DATA_FILE} is missing, expected by the manifest"):
        open_packed(folder)


def test_a_folder_without_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(PackedDataError, match=r"has no manifest\.json, .*make one with: hermetic pack SOURCE --out"):
        open_packed(tmp_path)


def test_a_manifest_that_is_not_json_is_an_error(folder):
    (folder / "manifest.json").write_text("{")

    with pytest.raises(PackedDataError, match=r"manifest\.json is not JSON"):
        open_packed(folder)


@pytest.mark.parametrize(
    "content", ["[]", '{"format_version": 1}', '{"format_version": 3}'], ids=["list", "past", "future"]
)
def test_a_manifest_of_another_version_is_an_error(folder, content):
    (folder / "manifest.json").write_text(content)

    with pytest.raises(PackedDataError, match=r"manifest\.json has the format version (None|1|3), expected 2"):
        open_packed(folder)


def test_a_manifest_with_other_keys_is_an_error_that_lists_them(folder):
    edit_manifest(folder, mood="good")

    with pytest.raises(PackedDataError, match=r"lacks the keys \[\] and has the unknown keys \['mood'\]"):
        open_packed(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents_dropped": 1}, "3 documents read, but 3 placed and 1 lost"),
        ({"tokens_lost": 2}, "9 tokens read, but 9 placed and 2 lost"),
    ],
)
def test_a_manifest_that_does_not_add_up_is_an_error(folder, changes, message):
    edit_manifest(folder, **changes)

    with pytest.raises(PackedDataError, match=f"the manifest does not add up: {message}"):
        open_packed(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 3}, "the manifest does not add up: 3 rows, but 2 placed"),
        ({"tokens_read": 10, "tokens_placed": 10}, "holds 9 tokens_placed, expected 10 by its manifest"),
        ({"supervised_tokens": 7}, "holds 6 supervised_tokens, expected 7 by its manifest"),
    ],
)
def test_counts_that_the_rows_do_not_bear_out_are_an_error(folder, changes, message):
    edit_manifest(folder, **changes)

    with pytest.raises(PackedDataError, match=message):
        open_packed(folder)


# Each lie keeps the checksums right, so only the check of the rows can find it.
LIES = {
    "lengths that do not sum": (
        {"seq_lengths": [[3, 2], [5]]},
        r"row \+1 has 4 input_ids, expected 5 by its seq_lengths",
    ),
    "labels of another length": (
        {"labels": [[-100, 6, 7, -100], [-100, 2, 3, 4]]},
        r"row \+0 has 4 labels, expected 5 by its seq_lengths",
    ),
    "ids of another number": (
        {"document_ids": [[0], [2]]},
        r"row \+0 has 1 document_ids, expected 2 by its seq_lengths",
    ),
    "a document without tokens": ({"seq_lengths": [[5, 0], [4]]}, "a row or a document is empty"),
    "a row without documents": (
        {"seq_lengths": [[3, 2], []], "document_ids": [[0, 1], []], "input_ids": [[5, 6, 7, 8, 9], []]},
        "a row or a document is empty",
    ),
    "a supervised first token": (
        {"labels": [[-100, 6, 7, 8, 9], [-100, 2, 3, 4]]},
        "the first token of a document is supervised, so it would be trained to follow another document",
    ),
    "a column missing": ({"document_ids": None}, r"the columns are \['input_ids', 'labels', 'rec"),
    "a source that was not read": ({"source_ids": [[0, 1], [0]]}, "source_ids holds 1, expected 0 to 0"),
    "a document that was not read": ({"document_ids": [[0, 1], [3]]}, "document_ids holds 3, expected 0 to 2"),
    "a record before the first": ({"record_numbers": [[1, 0], [3]]}, "record_numbers holds 0, expected 1 to"),
}


@pytest.mark.parametrize(("columns", "message"), LIES.values(), ids=LIES)
def test_rows_that_contradict_themselves_are_an_error(folder, columns, message):
    forge(folder, **columns)

    with pytest.raises(PackedDataError, match=message):
        open_packed(folder)


@pytest.mark.parametrize("name", ["../outside.arrow", "/etc/passwd", "a/../../b", "..\\b", ".."])
def test_a_manifest_that_names_a_file_outside_of_its_folder_is_refused(folder, name):
    outside = folder.parent / "outside.arrow"
    outside.write_bytes(b"secret")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    edit_manifest(folder, files=files | {name: sha256_of_file(outside)})

    with pytest.raises(PackedDataError, match="expected names without a folder"):
        open_packed(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": "2"}, "has rows '2', expected int"),
        ({"capacity": True}, "has capacity True, expected int"),
        ({"capacity": -5}, "has capacity -5, expected int"),
        ({"files": ["a"]}, r"has files \['a'\], expected dict"),
        ({"records_skipped": {"empty": "1"}}, "has records_skipped .*, expected dict"),
        ({"shards": [{"name": "x"}]}, "shards lacks the keys"),
        ({"source_files": [5]}, "source_files lacks the keys"),
    ],
)
def test_a_manifest_of_other_types_is_an_error_that_names_the_field(folder, changes, message):
    edit_manifest(folder, **changes)

    with pytest.raises(PackedDataError, match=message):
        open_packed(folder)


def test_a_shard_and_the_files_have_to_agree_on_its_checksum(folder):
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    edit_manifest(folder, shards=[shard | {"sha256": "0" * 64} for shard in shards])

    with pytest.raises(PackedDataError, match=r"its shards .* have other checksums than its files"):
        open_packed(folder)


def test_a_torn_preference_pair_is_found(tmp_path):
    pair = {"prompt": "a", "chosen": "b", "rejected": "c d"}
    source = write_jsonl(tmp_path / "pairs.jsonl", [pair, {"text": "e"}])
    pack_sources(source, tmp_path / "rows", tokenizer=DEMO_TOKENIZER, capacity=64, seed=None)
    honest = open_packed(tmp_path / "rows").dataset[0]
    roles = honest["roles"]

    for torn in (
        [2 if role == 1 else role for role in roles],
        roles[::-1],
        [0 if role == 2 else role for role in roles],
    ):
        forge(tmp_path / "rows", **{name: [values] for name, values in (honest | {"roles": torn}).items()})
        with pytest.raises(PackedDataError, match="a chosen answer is not followed by its rejected one"):
            open_packed(tmp_path / "rows")
    forge(tmp_path / "rows", **{name: [values] for name, values in honest.items()})
    assert len(open_packed(tmp_path / "rows")) == 1
