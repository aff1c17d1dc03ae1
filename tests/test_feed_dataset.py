"""A packed folder gives its rows as views of its files, to any collator, in any process; or says what is wrong."""

import doctest
import json
import multiprocessing
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feed_helpers import packed_folder
from feed_rows import known, read_in_process
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import hermetic
from hermetic.data import PackedDataset, open_packed
from hermetic.data.feed import collate, collate_packed_rows, documents_of_row
from hermetic.errors import BatchError, FeedError, PackedDataError, RowIndexError
from hermetic.integrations.transformers import PackedCollator, PaddedCollator

DATA_FILE = "data-00000-of-00001.arrow"
LENGTHS = [(7 * number) % 8 + 1 for number in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return packed_folder(tmp_path_factory.mktemp("packed"), LENGTHS)


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_every_worked_example_gives_what_it_says():
    assert doctest.testmod(collate).failed == 0
    assert doctest.testmod(collate).attempted > 0


def test_every_row_is_the_row_that_was_packed(folder):
    dataset, packed = PackedDataset(folder), open_packed(folder)
    found = [[document["input_ids"].tolist() for document in documents_of_row(row)] for row in dataset]

    assert len(dataset) == len(found) == len(packed) > 10
    assert found == [[document["input_ids"].tolist() for document in row] for row in packed.rows()]
    for row, expected in zip(dataset, packed.dataset, strict=True):
        assert {name: values.tolist() for name, values in row.items()} == {name: expected[name] for name in row}


def is_view_of(array, buffer):
    start = array.__array_interface__["data"][0]
    return buffer.address <= start < buffer.address + buffer.size


def test_the_arrays_of_a_row_are_read_only_views_of_the_mapped_file_and_not_copies(folder):
    dataset = PackedDataset(folder)
    first = dataset[0]["input_ids"]
    mapped = dataset._shards[0]._chunks["input_ids"][0].values.buffers()[1]

    assert is_view_of(first, mapped)
    assert not is_view_of(first.copy(), mapped)
    assert not any(values.flags.writeable for values in dataset[0].values())


def test_provenance_comes_with_its_column(folder):
    rows = PackedDataset(folder, columns=("seq_lengths", "document_ids"))

    assert set(rows[0]) == {"seq_lengths", "document_ids"}
    assert sorted(np.concatenate([row["document_ids"] for row in rows]).tolist()) == list(range(len(LENGTHS)))


def test_indices_follow_pythons_custom(folder):
    dataset = PackedDataset(folder)
    rows = [known(row) for row in dataset]

    assert known(dataset[-1]) == rows[-1]
    assert known(dataset[np.int64(2)]) == rows[2]
    assert [known(row) for row in dataset[2:9:3]] == rows[2:9:3]
    assert [known(row) for row in dataset[::-1]] == rows[::-1]
    assert [known(row) for row in dataset[[3, -1, 0]]] == [rows[3], rows[-1], rows[0]]
    assert dataset[5:5] == []


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (10**6, r"row 1000000 does not exist in .*rows, expected -\d+ to \d+"),
        (-(10**6), "row -1000000 does not exist"),
        ("0", "the index '0' is a str, expected an int, a slice or a list of ints"),
        (1.0, "the index 1.0 is a float"),
        ([0, 10**6], "row 1000000 does not exist"),
    ],
)
def test_an_index_of_no_row_is_an_index_error_with_a_code(folder, index, message):
    with pytest.raises(RowIndexError, match=message) as caught:
        PackedDataset(folder)[index]
    assert isinstance(caught.value, IndexError)
    assert caught.value.code == "HE607"


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_several_shards_of_either_format_are_one_dataset(folder, tmp_path, file_format):
    expected = [known(row) for row in PackedDataset(folder)]
    packed = packed_folder(tmp_path, LENGTHS, file_format=file_format, shard_tokens=40)
    dataset = PackedDataset(packed)
    opened = dict(dataset._shards)

    assert opened == {}, "opening reads no shard"
    assert [known(dataset[number]) for number in range(len(dataset))] == expected
    assert len(dataset._shards) == len(dataset.manifest.shards) > 2
    assert {path.suffix for path in (file.path for file in dataset._files)} == {f".{file_format}"}


def test_of_parquet_only_a_few_row_groups_stay_decoded(tmp_path):
    packed = packed_folder(tmp_path, LENGTHS, file_format="parquet")
    (file,) = PackedDataset(packed)._files
    expected = [known(row) for row in PackedDataset(packed)]
    pq.write_table(pq.read_table(file.path), file.path, row_group_size=3)
    dataset = PackedDataset(packed)

    assert [known(row) for row in dataset] == expected
    assert known(dataset[0]) == expected[0]
    assert len(dataset._shards[0].edges) - 1 > len(dataset._shards[0]._seen) == 4
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(PackedDataError, match="is cut short"):
        PackedDataset(packed)


def test_a_pickle_holds_no_data_and_opens_the_same_folder(folder):
    dataset = PackedDataset(folder, columns=["input_ids", "labels", "seq_lengths"])
    rows = [known(row) for row in dataset]
    pickled = pickle.dumps(dataset)

    assert len(pickled) < 600
    assert [known(row) for row in pickle.loads(pickled)] == rows  # noqa: S301 - made two lines above


@pytest.mark.slow
def test_a_spawned_process_reads_the_same_rows(folder):
    dataset = PackedDataset(folder)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=read_in_process, args=(dataset, queue))
    process.start()
    found = queue.get(timeout=60)
    process.join()

    assert found == [known(row) for row in dataset]


def test_a_pickle_of_another_folder_is_refused(copied):
    pickled = pickle.dumps(PackedDataset(copied))
    path = copied / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 7}))

    with pytest.raises(PackedDataError, match=r"is not the folder that was open .* manifest.json is another"):
        pickle.loads(pickled)  # noqa: S301 - made three lines above


def damage_missing(path):
    path.unlink()


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def damage_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_missing, "is missing"), (damage_cut, "is cut short"), (damage_empty, "is cut short: its 0 bytes")],
)
def test_a_damaged_shard_is_found_when_the_folder_is_opened(copied, damage, message):
    PackedDataset(copied)
    damage(copied / DATA_FILE)

    with pytest.raises(PackedDataError, match=message):
        PackedDataset(copied)


def test_a_shard_with_other_rows_than_its_manifest_is_found_when_it_is_read(copied):
    table = pa.ipc.open_stream((copied / DATA_FILE).read_bytes()).read_all()
    with pa.ipc.new_stream(copied / DATA_FILE, table.schema) as file:
        file.write_table(table.slice(1))

    with pytest.raises(PackedDataError, match=rf"holds {len(table) - 1} rows, expected {len(table)} by its manifest"):
        PackedDataset(copied)[0]


def test_bytes_that_are_no_shard_are_named(copied):
    (copied / DATA_FILE).write_bytes(b"nothing that Arrow wrote" + b"\xff" * 4 + b"\0" * 4)

    with pytest.raises(PackedDataError, match="cannot be read"):
        PackedDataset(copied)[0]


def test_a_column_that_is_not_there_is_named(folder):
    with pytest.raises(PackedDataError, match="has no column 'tokens', expected one of: input_ids, labels"):
        PackedDataset(folder, columns=["tokens"])[0]
    with pytest.raises(FeedError, match="columns is 'labels', expected a list of names"):
        PackedDataset(folder, columns="labels")


def same_inputs(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]


@pytest.mark.parametrize("multiple", [None, 16])
def test_a_row_collates_as_its_documents_do(folder, multiple):
    rows = PackedDataset(folder)[:5]
    documents = [document for row in rows for document in documents_of_row(row)]
    expected = hermetic.collate(documents, pad_to_multiple=multiple, pad_token_id=3).model_inputs()

    same_inputs(collate_packed_rows(rows, pad_to_multiple=multiple, pad_token_id=3).model_inputs(), expected)
    same_inputs(PackedCollator(pad_to_multiple=multiple, pad_token_id=3)(rows), expected)
    same_inputs(PackedCollator(pad_to_multiple=multiple, pad_token_id=3)([documents]), expected)
    mixed = [rows[0], documents_of_row(rows[1]), *rows[2:]]
    same_inputs(PackedCollator(pad_to_multiple=multiple, pad_token_id=3)(mixed), expected)


def test_the_padded_collator_takes_rows_too(folder):
    rows = PackedDataset(folder)[:3]

    same_inputs(PaddedCollator()(rows), PaddedCollator()([documents_of_row(row) for row in rows]))


def test_trls_padding_free_collator_finds_the_same_documents(folder):
    rows = PackedDataset(folder)[:5]
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    ours = collate_packed_rows(rows).model_inputs()

    for name in ("input_ids", "labels", "position_ids", "cu_seq_lens_q"):
        assert torch.equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seq_lengths": [3]}, FeedError, "row 0 has 5 input_ids, 5 labels and seq_lengths of 3 tokens"),
        ({"labels": [1]}, FeedError, "row 0 has 5 input_ids, 1 labels"),
        ({"labels": [-100, 6, 7, 8, 9]}, BatchError, r"labels\[3\] is 8 on the first token of document 1"),
        ({"input_ids": [5, 6, 7, 8, -9]}, BatchError, r"input_ids\[4\] is -9"),
    ],
)
def test_a_row_that_does_not_fit_together_is_refused(changes, error, message):
    row = {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, 7, -100, 9], "seq_lengths": [3, 2]}
    collate_packed_rows([row])

    with pytest.raises(error, match=message):
        collate_packed_rows([row | changes])


def test_no_rows_and_rows_without_columns_are_refused():
    with pytest.raises(FeedError, match="there are no rows"):
        collate_packed_rows([])
    with pytest.raises(FeedError, match="row 0 has no 'seq_lengths', found"):
        collate_packed_rows([{"input_ids": [1], "labels": [-100]}])
