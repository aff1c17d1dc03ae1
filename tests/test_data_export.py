"""What is exported is what was packed: read back by others' rules, every document and supervised token is the same."""

import itertools
import json
import os
import sys
import types

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data_helpers import DEMO_TOKENIZER, everything_under, write_jsonl
from train_helpers import tiny_network

import hermetic
from hermetic.constants import IGNORE_INDEX
from hermetic.data import blocks, export_packed, open_packed, pack_sources
from hermetic.data.export import FORMATS, arrays, parquet
from hermetic.data.sources import sha256_of_file
from hermetic.errors import DataError, MissingDependencyError, PackedDataError


def write(folder, records, **options):
    source = write_jsonl(folder / "ids.jsonl", records)
    pack_sources(source, folder / "packed", tokenizer=DEMO_TOKENIZER, **({"capacity": 64, "seed": None} | options))
    return folder / "packed"


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """120 documents of 1 to 64 tokens with random supervision, all of it and none of it among them."""
    rng = np.random.default_rng(0)
    lengths = [1, 1, 2, 64, *rng.integers(1, 65, 116).tolist()]
    records = [
        {"input_ids": rng.integers(5, 1000, length).tolist(), "loss_mask": (rng.random(length) < share).tolist()}
        for length, share in zip(lengths, [1.0, 0.0, *[0.5] * 118], strict=True)
    ]
    records = [record | {"loss_mask": [int(one) for one in record["loss_mask"]]} for record in records]
    return write(tmp_path_factory.mktemp("export"), records)


@pytest.fixture
def two(tmp_path):
    """One row of the documents [5, 6, 7] and [8, 9], all supervised but for their first tokens."""
    return write(tmp_path, [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}], capacity=5)


def cut(values, lengths):
    return np.split(np.asarray(values), np.cumsum(lengths)[:-1])


def rows_of(folder):
    """Each row as its documents: token ids, and which of them are supervised."""
    return [
        [(document["input_ids"].tolist(), (document["labels"] != IGNORE_INDEX).tolist()) for document in row]
        for row in open_packed(folder).rows()
    ]


def row_of(input_ids, labels, lengths):
    documents = zip(cut(input_ids, lengths), cut(labels, lengths), strict=True)
    return [(ids.tolist(), (labels != IGNORE_INDEX).tolist()) for ids, labels in documents]


def read_trl(out):
    return [row_of(*row.values()) for row in datasets.load_from_disk(str(out))]


def parquet_rows(out):
    return [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def read_parquet(out):
    return [row_of(row["input_ids"], row["labels"], row["seq_lengths"]) for row in parquet_rows(out)]


def read_megatron(out):
    """By the rules of Megatron-Bridge's packed data set; a document's first token is nobody's target there."""
    rows = []
    for row in parquet_rows(out):
        edges = [*row["seq_start_id"], len(row["input_ids"])]
        spans = list(itertools.pairwise(edges))
        rows.append(
            [
                (row["input_ids"][start:stop], [False, *map(bool, row["loss_mask"][start : stop - 1])])
                for start, stop in spans
            ]
        )
    return rows


def read_tokens(out):
    held = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in out.glob("*.npy")}
    rows = []
    for row in range(len(held["row_tokens"]) - 1):
        start, stop = held["row_tokens"][row : row + 2]
        starts = held["seq_start_id"][slice(*held["row_documents"][row : row + 2])]
        lengths = np.diff([*starts, stop - start])
        rows.append(row_of(held["tokens"][start:stop], held["labels"][start:stop], lengths))
    return rows


READERS = {"trl": read_trl, "parquet": read_parquet, "megatron": read_megatron, "tokens": read_tokens}


@pytest.mark.parametrize("to", READERS)
def test_an_export_read_back_has_the_same_documents_and_supervised_tokens(packed, tmp_path, to):
    told = []
    summary = export_packed(packed, tmp_path / "out", to=to, on_rows=told.append)

    rows = rows_of(packed)
    assert READERS[to](tmp_path / "out") == rows
    assert summary.rows == len(rows) == told[-1]
    assert summary.documents == sum(map(len, rows)) == 120
    assert summary.tokens == sum(len(ids) for row in rows for ids, _ in row)
    assert summary.supervised_tokens == sum(sum(supervised) for row in rows for _, supervised in row) > 0


@pytest.mark.parametrize("to", READERS)
def test_an_export_says_where_it_comes_from_and_has_the_checksum_of_every_file(packed, tmp_path, to):
    summary = export_packed(packed, tmp_path / "out", to=to)
    said = json.loads((tmp_path / "out" / "export.json").read_text())

    assert said == json.loads(summary.to_json())
    assert said["manifest_sha256"] == sha256_of_file(packed / "manifest.json")
    assert said["files"] == {
        path.name: sha256_of_file(path) for path in (tmp_path / "out").iterdir() if path.name != "export.json"
    }
    assert (said["format"], said["capacity"]) == (to, 64)
    assert said["tokenizer_fingerprint"] == open_packed(packed).manifest.tokenizer_fingerprint


def test_a_round_trip_that_loses_a_supervised_token_is_noticed(packed, tmp_path):
    export_packed(packed, tmp_path / "out", to="tokens")
    labels = np.load(tmp_path / "out" / "labels.npy", mmap_mode="r+")
    labels[int(np.argmax(labels != IGNORE_INDEX))] = IGNORE_INDEX
    labels.flush()

    assert read_tokens(tmp_path / "out") != rows_of(packed)


def test_the_example_of_trl_is_true(two, tmp_path):
    export_packed(two, tmp_path / "out", to="trl")

    assert datasets.load_from_disk(str(tmp_path / "out"))[:] == {
        "input_ids": [[5, 6, 7, 8, 9]],
        "labels": [[-100, 6, 7, -100, 9]],
        "seq_lengths": [[3, 2]],
    }


def test_the_example_of_parquet_is_true_and_datasets_reads_it(two, tmp_path):
    export_packed(two, tmp_path / "out", to="parquet")
    (row,) = parquet_rows(tmp_path / "out")

    assert (
        row.items()
        >= {
            "input_ids": [5, 6, 7, 8, 9],
            "labels": [-100, 6, 7, -100, 9],
            "seq_lengths": [3, 2],
            "document_ids": [0, 1],
        }.items()
    )
    assert set(row) == set(open_packed(two).dataset.column_names)
    read = datasets.Dataset.from_parquet(str(tmp_path / "out" / "*.parquet"), cache_dir=str(tmp_path / "cache"))
    assert read[0] == row


def test_the_example_of_megatron_is_true_and_its_columns_have_the_types_that_bridge_names(two, tmp_path):
    export_packed(two, tmp_path / "out", to="megatron")
    table = pq.read_table(tmp_path / "out" / "rows_00000.idx.parquet")

    assert table.to_pylist() == [
        {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [1, 1, 0, 1, 0], "seq_start_id": [0, 3]},
    ]
    assert [field.type for field in table.schema] == [pa.list_(pa.int32()), pa.list_(pa.int8()), pa.list_(pa.int32())]
    assert json.loads((tmp_path / "out" / "pack_metadata.json").read_text()) == [
        {
            "dataset_max_seqlen": 2,
            "max_samples_per_bin": 2,
            "packing_factor": 2.0,
            "packing_efficiency": 60.0,
            "pack_size": 5,
            "min_packed_seqlen": 3,
        }
    ]


def bridge_collates(row):
    """Tokens, targets, loss mask and edges of a row, as Megatron-Bridge's collate function makes them."""
    edges = [*row["seq_start_id"], len(row["input_ids"])]
    spans = list(itertools.pairwise(edges))
    tokens = [token for start, stop in spans for token in row["input_ids"][start : stop - 1]]
    targets = [token for start, stop in spans for token in row["input_ids"][start + 1 : stop]]
    mask = [one for start, stop in spans for one in row["loss_mask"][start : stop - 1]]
    return tokens, targets, mask, np.cumsum([0, *(stop - start - 1 for start, stop in spans)]).tolist()


def test_bridge_trains_on_the_supervised_tokens_and_on_no_others(packed, two, tmp_path):
    export_packed(packed, tmp_path / "out", to="megatron")
    export_packed(two, tmp_path / "two", to="megatron")

    assert bridge_collates(parquet_rows(tmp_path / "two")[0]) == ([5, 6, 8], [6, 7, 9], [1, 1, 1], [0, 2, 3])
    for exported, row in zip(parquet_rows(tmp_path / "out"), rows_of(packed), strict=True):
        _, targets, mask, edges = bridge_collates(exported)
        trained = [target for target, one in zip(targets, mask, strict=True) if one]
        assert trained == [token for ids, held in row for token, one in zip(ids, held, strict=True) if one]
        assert edges == np.cumsum([0, *(len(ids) - 1 for ids, _ in row)]).tolist()


def test_the_example_of_tokens_is_true(tmp_path):
    records = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}, {"input_ids": [4]}]
    folder = write(tmp_path, records, capacity=5, strategy="next_fit")
    export_packed(folder, tmp_path / "out", to="tokens")
    held = {path.stem: np.load(path, allow_pickle=False) for path in (tmp_path / "out").glob("*.npy")}

    assert {name: values.tolist() for name, values in held.items()} == {
        "tokens": [5, 6, 7, 8, 9, 4],
        "labels": [-100, 6, 7, -100, 9, -100],
        "seq_start_id": [0, 3, 0],
        "row_tokens": [0, 5, 6],
        "row_documents": [0, 2, 3],
    }
    assert {name: values.dtype.name for name, values in held.items()} == {
        "tokens": "int32",
        "labels": "int32",
        "seq_start_id": "int32",
        "row_tokens": "int64",
        "row_documents": "int64",
    }


@pytest.mark.parametrize("to", ["parquet", "megatron"])
def test_many_rows_go_to_many_files_in_order(packed, tmp_path, monkeypatch, to):
    for module in (blocks, parquet):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(parquet, "BLOCKS_PER_FILE", 3)
    summary = export_packed(packed, tmp_path / "out", to=to)
    files = sorted((tmp_path / "out").glob("*.parquet"))

    assert len(files) == -(-summary.rows // 12) > 2
    assert [pq.read_metadata(path).num_rows for path in files[:-1]] == [12] * (len(files) - 1)
    assert READERS[to](tmp_path / "out") == rows_of(packed)
    if to == "parquet":
        assert files[-1].name == f"rows-{len(files) - 1:05d}-of-{len(files):05d}.parquet"


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
@pytest.mark.parametrize("to", READERS)
def test_rows_of_many_files_of_either_kind_are_exported_alike(packed, tmp_path, to, file_format):
    records = [{"input_ids": ids, "loss_mask": list(map(int, held))} for row in rows_of(packed) for ids, held in row]
    folder = write(tmp_path, records, file_format=file_format, shard_tokens=256)
    export_packed(folder, tmp_path / "out", to=to)

    assert len(open_packed(folder).manifest.shards) > 3
    assert READERS[to](tmp_path / "out") == rows_of(folder)


def test_preference_pairs_go_only_where_the_chosen_answer_is_told_from_the_rejected_one(tmp_path):
    pair = {"prompt": "Two and two?", "chosen": "Four.", "rejected": "Five, I think."}
    folder = write(tmp_path, [pair, {"input_ids": [5, 6, 7]}])

    for to in ("trl", "megatron", "mosaic"):
        with pytest.raises(DataError, match=rf"holds 1 preference pairs, and the form '{to}' .*parquet, tokens"):
            export_packed(folder, tmp_path / to, to=to)
        assert not (tmp_path / to).exists()
    for to in ("parquet", "tokens"):
        export_packed(folder, tmp_path / to, to=to)
    (row,) = parquet_rows(tmp_path / "parquet")
    assert sorted(row["roles"]) == [0, 1, 2]
    assert np.load(tmp_path / "tokens" / "roles.npy", allow_pickle=False).tolist() == row["roles"]


class MDSWriterStandIn:
    """Keeps what MosaicML's writer would write, and checks its types as that does."""

    def __init__(self, *, out, columns):
        self.out, self.columns, self.samples = out, columns, []
        MDSWriterStandIn.last = self

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        with open(os.path.join(self.out, "index.json"), "w") as file:  # noqa: PTH118, PTH123 - as the library does
            file.write("{}")

    def write(self, sample):
        assert {name: f"ndarray:{values.dtype.name}" for name, values in sample.items()} == self.columns
        self.samples.append({name: values.copy() for name, values in sample.items()})


def test_mosaics_writer_gets_every_row_in_the_types_that_it_was_promised(packed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "streaming", types.SimpleNamespace(MDSWriter=MDSWriterStandIn))
    export_packed(packed, tmp_path / "out", to="mosaic")

    assert [row_of(*sample.values()) for sample in MDSWriterStandIn.last.samples] == rows_of(packed)
    assert everything_under(tmp_path / "out") == ["export.json", "index.json"]


def test_mosaics_own_reader_gives_the_rows_back(packed, tmp_path):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is in no extra")
    export_packed(packed, tmp_path / "out", to="mosaic")
    read = streaming.StreamingDataset(local=str(tmp_path / "out"), shuffle=False, batch_size=1)
    columns = ("input_ids", "labels", "seq_lengths")

    assert [row_of(*(read[row][name] for name in columns)) for row in range(len(read))] == rows_of(packed)


def test_without_mosaics_library_nothing_is_written(packed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "streaming", None)

    with pytest.raises(MissingDependencyError, match="pip install 'mosaicml-streaming'"):
        export_packed(packed, tmp_path / "out", to="mosaic")
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize(
    ("out", "to", "match"),
    [
        ("out", "npy", r"to is 'npy', expected one of trl, parquet, megatron, mosaic, tokens"),
        ("out.npy", "megatron", r"pickled objects, which run code when they are opened"),
        ("out.npz", "tokens", r"expected the name of a folder"),
    ],
)
def test_an_unknown_form_and_a_pickle_are_refused(packed, tmp_path, out, to, match):
    with pytest.raises(DataError, match=match):
        export_packed(packed, tmp_path / out, to=to)
    assert everything_under(tmp_path) == []


@pytest.mark.parametrize("to", FORMATS)
def test_a_folder_that_holds_something_and_a_damaged_pack_are_refused(two, tmp_path, to):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")

    with pytest.raises(PackedDataError, match="is a folder that is not empty"):
        export_packed(two, tmp_path / "full", to=to)
    assert everything_under(tmp_path / "full") == ["mine"]
    (two / "dataset_info.json").write_text("{}")
    with pytest.raises(PackedDataError, match="is damaged"):
        export_packed(two, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


def test_an_export_that_fails_midway_leaves_nothing(two, tmp_path, monkeypatch):
    def one_then_a_full_disk(packed):
        yield from blocks.blocks_of(packed)
        raise OSError("no space left")

    before = everything_under(tmp_path)
    monkeypatch.setattr(arrays, "blocks_of", one_then_a_full_disk)
    with pytest.raises(OSError, match="no space left"):
        export_packed(two, tmp_path / "out", to="tokens")
    assert everything_under(tmp_path) == before


@pytest.mark.slow
def test_trl_trains_on_an_export_with_every_boundary_and_target_kept(tmp_path):
    trl = pytest.importorskip("trl", reason="trl is an optional extra")
    rng = np.random.default_rng(0)
    records = [{"input_ids": rng.integers(5, 900, length).tolist()} for length in (9, 7, 12, 5, 3, 16, 4, 8)]
    packed = write(tmp_path, records, capacity=16)
    export_packed(packed, tmp_path / "out", to="trl")
    seen = []

    class Trainer(trl.SFTTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append({name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)})
            return super().compute_loss(model, inputs, *args, **kwargs)

    network = hermetic.seal(tiny_network("llama"))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    trainer = Trainer(
        network,
        trl.SFTConfig(
            output_dir=str(tmp_path / "run"),
            packing=False,
            padding_free=True,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            per_device_train_batch_size=2,
            max_steps=2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=datasets.load_from_disk(str(tmp_path / "out")),
        processing_class=hermetic.data.load_tokenizer(DEMO_TOKENIZER),
    )
    trainer.train()

    assert len(seen) == 2
    assert any(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    for batch in seen:
        (ids,), (labels,) = batch["input_ids"].tolist(), batch["labels"].tolist()
        boundaries = hermetic.Boundaries.infer_from_position_ids(batch["position_ids"])
        documents = row_of(ids, labels, boundaries.lengths.tolist())
        whole = [row for row in rows_of(packed) if row[0] in documents]
        assert sorted(documents) == sorted(document for row in whole for document in row)
        assert len(whole) == 2
