"""From a file to a folder of rows: nothing lost, nothing repeated, nothing half-written."""

import json
import re
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, demo_tokenizer, everything_under, tokenizer_folder, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

import hermetic
import hermetic.data.run.account
from hermetic.data import PackManifest, open_packed, pack_sources, tokenize_file
from hermetic.data.sources import sha256_of_file
from hermetic.errors import (
    DataError,
    DocumentTooLongError,
    HermeticError,
    MissingDependencyError,
    PackedDataError,
    PlanError,
    RecordError,
    SourceError,
    TemplateError,
)

POLICIES = ("error", "truncate", "split", "drop")
STRATEGIES = ("best_fit_decreasing", "next_fit", "concat_then_split")
USER = {"role": "user", "content": "hi"}


def pack(source, out, *, capacity=16, **options):
    return pack_sources(source, out, tokenizer=DEMO_TOKENIZER, capacity=capacity, **options)


def ids_file(path, lengths):
    """Documents whose tokens count up through one stream, so that each token tells where it came from."""
    ends = np.cumsum(lengths).tolist()
    return write_jsonl(
        path,
        [{"input_ids": list(range(end - length, end))} for length, end in zip(lengths, ends, strict=True)],
    )


def test_two_documents_in_one_row_are_exactly_what_the_docs_draw(tmp_path):
    source = write_jsonl(tmp_path / "two.jsonl", [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])

    pack(source, tmp_path / "rows", capacity=8, seed=None)

    assert datasets.load_from_disk(str(tmp_path / "rows"))[:] == {
        "input_ids": [[5, 6, 7, 8, 9]],
        "labels": [[-100, 6, 7, -100, 9]],
        "seq_lengths": [[3, 2]],
        "document_ids": [[0, 1]],
        "source_ids": [[0, 0]],
        "record_numbers": [[1, 2]],
    }


def test_the_columns_have_the_documented_types(tmp_path):
    pack(write_jsonl(tmp_path / "one.jsonl", [CHAT]), tmp_path / "rows", capacity=64)
    int32, int64 = datasets.List(datasets.Value("int32")), datasets.List(datasets.Value("int64"))

    assert datasets.load_from_disk(str(tmp_path / "rows")).features == {
        "input_ids": int32,
        "labels": int32,
        "seq_lengths": int32,
        "document_ids": int64,
        "source_ids": int32,
        "record_numbers": int64,
    }


def test_loss_masks_survive_packing_and_a_supervised_first_token_does_not(tmp_path):
    for last_mask in ([0, 1, 1], [1, 1, 1]):
        records = [
            {"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]},
            {"input_ids": [4, 5, 6], "loss_mask": last_mask},
        ]
        out = tmp_path / f"rows{last_mask[0]}"
        manifest = pack(write_jsonl(tmp_path / "masks.jsonl", records), out, capacity=6, seed=None)

        assert datasets.load_from_disk(str(out))[0]["labels"] == [-100, -100, 3, -100, 5, 6]
        assert manifest.supervised_tokens == 3


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    capacity=st.integers(1, 12),
    options=st.fixed_dictionaries(
        {
            "on_overflow": st.sampled_from(POLICIES),
            "strategy": st.sampled_from(STRATEGIES),
            "seed": st.none() | st.integers(0, 5),
        }
    ),
)
@settings(max_examples=60)
def test_every_token_read_is_placed_exactly_once_or_counted_as_lost(tmp_path_factory, lengths, capacity, options):
    folder = tmp_path_factory.mktemp("pack")
    source = ids_file(folder / "ids.jsonl", lengths)
    policy = "split" if options["strategy"] == "concat_then_split" else options["on_overflow"]
    refused = {"error": max(lengths) > capacity, "drop": min(lengths) > capacity}
    if refused.get(policy):
        with pytest.raises(DocumentTooLongError if policy == "error" else DataError, match=r"ids\.jsonl:"):
            pack(source, folder / "rows", capacity=capacity, **options)
        return

    manifest = pack(source, folder / "rows", capacity=capacity, **options)

    packed = open_packed(folder / "rows")
    placed = sorted(token for row in packed.dataset["input_ids"] for token in row)
    assert len(placed) == len(set(placed)) == manifest.tokens_placed
    assert manifest.tokens_read == sum(lengths) == manifest.tokens_placed + manifest.tokens_lost
    assert max(map(len, packed.dataset["input_ids"])) <= capacity
    if policy in {"error", "split"}:
        assert placed == list(range(sum(lengths)))


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    policy=st.sampled_from(("error", "split")),
    strategy=st.sampled_from(STRATEGIES),
)
@settings(max_examples=40)
def test_every_document_can_be_recovered_from_the_rows_exactly_once(tmp_path_factory, lengths, policy, strategy):
    folder = tmp_path_factory.mktemp("recover")
    source = ids_file(folder / "ids.jsonl", lengths)
    pack(source, folder / "rows", capacity=5 if policy == "split" else 12, strategy=strategy, on_overflow=policy)
    packed = open_packed(folder / "rows")

    pieces = [[] for _ in lengths]
    for ids, row in zip(packed.dataset["document_ids"], packed.rows(), strict=True):
        for document, piece in zip(ids, row, strict=True):
            pieces[document].append(piece["input_ids"].tolist())
    recovered = [{"input_ids": sum(sorted(cut), [])} for cut in pieces]  # noqa: RUF017 - a handful of tokens

    assert recovered == [json.loads(line) for line in source.read_text().splitlines()]


def test_the_first_token_of_each_fragment_is_unsupervised_and_the_others_keep_their_labels(tmp_path):
    source = ids_file(tmp_path / "ids.jsonl", [5, 2])

    manifest = pack(source, tmp_path / "rows", capacity=4, on_overflow="split", seed=None)

    documents = [doc for row in open_packed(tmp_path / "rows").rows() for doc in row]
    labels = {tuple(doc["input_ids"].tolist()): doc["labels"].tolist() for doc in documents}
    assert labels == {(0, 1, 2, 3): [-100, 1, 2, 3], (4,): [-100], (5, 6): [-100, 6]}
    assert manifest.fragments == 2
    assert manifest.documents_without_supervision == 1
    assert manifest.supervised_tokens == 4


# Lengths 5, 2, 3, 1 at capacity 4.
COUNTS = {
    "truncate": {"tokens_placed": 10, "tokens_lost": 1, "documents_truncated": 1, "documents_placed": 4},
    "split": {"tokens_placed": 11, "tokens_lost": 0, "fragments": 2, "documents_placed": 4},
    "drop": {"tokens_placed": 6, "tokens_lost": 5, "documents_dropped": 1, "documents_placed": 3},
}


@pytest.mark.parametrize("policy", COUNTS)
def test_what_an_overflow_policy_costs_is_counted(tmp_path, policy):
    manifest = pack(ids_file(tmp_path / "ids.jsonl", [5, 2, 3, 1]), tmp_path / "rows", capacity=4, on_overflow=policy)

    uncounted = {"documents_truncated": 0, "documents_dropped": 0, "fragments": 0}
    expected = uncounted | COUNTS[policy]
    assert {name: getattr(manifest, name) for name in expected} == expected
    assert (manifest.documents_read, manifest.tokens_read) == (4, 11)


def test_a_document_that_truncation_leaves_without_an_answer_is_kept_and_counted(tmp_path):
    chat = {"messages": [{"role": "user", "content": "word " * 20}, {"role": "assistant", "content": "yes"}]}

    manifest = pack(write_jsonl(tmp_path / "long.jsonl", [chat, CHAT]), tmp_path / "rows", on_overflow="truncate")

    assert manifest.documents_placed == 2
    assert manifest.documents_without_supervision == 1


def test_the_manifest_in_the_folder_is_the_one_returned_and_holds_the_facts(tmp_path):
    source = ids_file(tmp_path / "ids.jsonl", [6, 4, 3, 3, 2, 2])

    manifest = pack(source, tmp_path / "rows", capacity=10, seed=3)

    assert PackManifest.load(tmp_path / "rows") == manifest
    assert manifest.source_name == "ids.jsonl"
    assert [(entry.name, entry.sha256, entry.bytes, entry.weight) for entry in manifest.source_files] == [
        ("ids.jsonl", sha256_of_file(source), source.stat().st_size, 1.0)
    ]
    assert manifest.hermetic_version == hermetic.__version__
    assert (manifest.capacity, manifest.strategy, manifest.on_overflow) == (10, "best_fit_decreasing", "error")
    assert (manifest.rows, manifest.lower_bound, manifest.utilization, manifest.seed) == (2, 2, 1.0, 3)
    assert (manifest.longest_document, manifest.mean_document) == (6, 20 / 6)
    assert manifest.padding_waste == pytest.approx(1 - 20 / 6 / 6)
    assert set(manifest.files) | {"manifest.json"} == {path.name for path in (tmp_path / "rows").iterdir()}
    assert str(tmp_path) not in manifest.to_json()


def test_concat_then_split_says_in_the_manifest_that_it_splits(tmp_path):
    manifest = pack(
        ids_file(tmp_path / "ids.jsonl", [3, 3]), tmp_path / "rows", capacity=4, strategy="concat_then_split"
    )

    assert manifest.on_overflow == "split"
    assert manifest.fragments == 2


def test_the_same_seed_gives_the_same_data_file_and_another_seed_other_rows(tmp_path):
    source = ids_file(tmp_path / "ids.jsonl", [3, 5, 2, 7, 4, 6, 1, 8] * 4)
    files = [pack(source, tmp_path / f"rows{n}", seed=seed).files for n, seed in enumerate((1, 1, 2))]
    data = "data-00000-of-00001.arrow"

    assert files[0][data] == files[1][data] != files[2][data]


def test_parquet_and_jsonl_of_the_same_records_give_the_same_rows(tmp_path):
    records = [CHAT, {"messages": [*CHAT["messages"], USER]}]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "chats.parquet")
    write_jsonl(tmp_path / "chats.jsonl", records)

    for ending in ("parquet", "jsonl"):
        pack(tmp_path / f"chats.{ending}", tmp_path / ending, capacity=64)

    rows = [datasets.load_from_disk(str(tmp_path / ending))[:] for ending in ("parquet", "jsonl")]
    assert rows[0] == rows[1]
    assert sorted(rows[0]["document_ids"][0]) == [0, 1]


def test_trl_collates_the_folder_with_positions_that_restart(tmp_path):
    trl_trainer = pytest.importorskip("trl.trainer.sft_trainer", reason="trl is an optional extra")
    pack(ids_file(tmp_path / "ids.jsonl", [3, 5]), tmp_path / "rows", capacity=8, seed=None)
    dataset = datasets.load_from_disk(str(tmp_path / "rows"))

    collator = trl_trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    batch = collator([dataset[0]])

    assert batch["input_ids"].tolist() == [[3, 4, 5, 6, 7, 0, 1, 2]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    assert batch["labels"].tolist() == [[-100, 4, 5, 6, 7, -100, 1, 2]]


def test_tokenized_documents_are_read_only_views_in_the_order_of_the_source(tmp_path):
    documents = tokenize_file(ids_file(tmp_path / "ids.jsonl", [3, 2]), tokenizer=demo_tokenizer())

    assert (len(documents), documents.lengths.tolist(), documents.offsets.tolist()) == (2, [3, 2], [0, 3, 5])
    assert documents.document(1)["input_ids"].tolist() == [3, 4]
    assert documents.document(1)["labels"].tolist() == [-100, 4]
    assert documents.where(1) == f"{tmp_path / 'ids.jsonl'}:2"
    with pytest.raises(ValueError, match="read-only"):
        documents.document(0)["input_ids"][0] = 1


def test_progress_is_told_of_every_part_and_every_file_of_rows(tmp_path):
    told = []

    pack(ids_file(tmp_path / "ids.jsonl", [1] * 1001), tmp_path / "rows", part_bytes=5000, on_progress=told.append)

    assert list(dict.fromkeys(progress.stage for progress in told)) == [
        "reading sources",
        "tokenizing",
        "planning",
        "writing rows",
    ]
    tokenizing = [progress for progress in told if progress.stage == "tokenizing"]
    assert len(tokenizing) > 3
    assert [progress.documents for progress in tokenizing] == sorted(progress.documents for progress in tokenizing)
    assert (tokenizing[0].done, tokenizing[-1].done) == (0, tokenizing[-1].total)
    assert (told[-1].documents, told[-1].tokens, told[-1].done) == (1001, 1001, told[-1].total)


def test_a_missing_folder_above_is_made_and_an_empty_one_is_used(tmp_path):
    source = ids_file(tmp_path / "ids.jsonl", [3])
    (tmp_path / "empty").mkdir()

    pack(source, tmp_path / "empty")
    pack(source, tmp_path / "new" / "deep" / "rows")

    assert len(open_packed(tmp_path / "empty")) == len(open_packed(tmp_path / "new" / "deep" / "rows")) == 1


# What is wrong, the source's lines, further options, the error and its message.
BAD_INPUT = {
    "empty file": ([], {}, SourceError, r"bad\.jsonl is empty"),
    "malformed line": (['{"text": "a"}', '{"text": '], {}, SourceError, r"bad\.jsonl:2: malformed JSON"),
    "no assistant": ([{"messages": [USER]}], {}, RecordError, r"bad\.jsonl:1: the conversation has no assistant turn"),
    "unknown role": (
        [CHAT, {"messages": [{"role": "bot", "content": "x"}]}],
        {},
        RecordError,
        r"bad\.jsonl:2: message 0 has the unknown role 'bot'",
    ),
    "empty document": ([{"text": "a"}, {"input_ids": []}], {}, RecordError, r"bad\.jsonl:2: 'input_ids' is empty"),
    "label length": (
        [{"input_ids": [1, 2], "labels": [1]}],
        {},
        RecordError,
        r"bad\.jsonl:1: 'labels' has 1 entries for 2 input_ids",
    ),
    "id beyond the vocabulary": (
        [{"input_ids": [1024]}],
        {},
        RecordError,
        r"bad\.jsonl:1: input_ids\[0\] is 1024, expected 0 to 1023",
    ),
    "too long": (
        ["", {"input_ids": [1, 2]}, {"input_ids": [1, 2, 3, 4, 5]}],
        {"capacity": 4},
        DocumentTooLongError,
        r"bad\.jsonl:3: document 1 has 5 tokens and a row holds 4 .*'truncate'.*'split'.*'drop'",
    ),
    "all dropped": (
        [{"input_ids": [1, 2, 3]}],
        {"capacity": 2, "on_overflow": "drop"},
        DataError,
        r"bad\.jsonl: all 1 documents are longer than the capacity of 2 tokens and were dropped",
    ),
    "capacity 0": ([CHAT], {"capacity": 0}, PlanError, "capacity is 0"),
    "unknown policy": ([CHAT], {"on_overflow": "wrap"}, PlanError, "on_overflow is 'wrap'; expected one of"),
}


@pytest.mark.parametrize(("lines", "options", "error", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_an_error_that_leaves_the_folder_as_it_was(tmp_path, lines, options, error, message):
    source = tmp_path / "bad.jsonl"
    source.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    before = everything_under(tmp_path)

    with pytest.raises(error, match=message) as caught:
        pack(source, tmp_path / "rows", **options)

    assert isinstance(caught.value, HermeticError)
    assert everything_under(tmp_path) == before == ["bad.jsonl"]


def test_a_tokenizer_without_chat_template_leaves_the_folder_as_it_was(tmp_path):
    mute = tokenizer_folder(tmp_path / "tokenizer", chat_template=None)
    source = write_jsonl(tmp_path / "chats.jsonl", [CHAT])
    before = everything_under(tmp_path)

    with pytest.raises(TemplateError, match=r"chats\.jsonl:1: the tokenizer '.*' has no chat template"):
        pack_sources(source, tmp_path / "rows", tokenizer=mute, capacity=64)

    assert everything_under(tmp_path) == before


def test_the_capacity_is_judged_before_the_source_is_read(tmp_path):
    with pytest.raises(PlanError, match="capacity is 0"):
        pack(tmp_path / "does-not-exist.jsonl", tmp_path / "rows", capacity=0)


@pytest.mark.parametrize("occupied", ["file", "folder"])
def test_an_occupied_target_is_refused_and_left_as_it_was(tmp_path, occupied):
    source, out = ids_file(tmp_path / "ids.jsonl", [3]), tmp_path / "rows"
    if occupied == "folder":
        out.mkdir()
    held = out / "precious.txt" if occupied == "folder" else out
    held.write_text("keep me")
    kind = "is a folder that is not empty" if occupied == "folder" else "is a file"

    with pytest.raises(PackedDataError, match=f"{re.escape(str(out))} {kind}, expected a new or an empty folder"):
        pack(source, out)

    assert held.read_text() == "keep me"
    assert everything_under(tmp_path) == sorted({"ids.jsonl", "rows", str(held.relative_to(tmp_path))})


def test_a_failure_while_writing_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    source = ids_file(tmp_path / "ids.jsonl", [3])
    seen = []

    def broken_disk(*_, **__):
        seen.extend(everything_under(tmp_path))
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(hermetic.data.run.account, "write_losses", broken_disk)
    with pytest.raises(OSError, match="Input/output error"):
        pack(source, tmp_path / "rows")

    assert any(name.endswith(".arrow") for name in seen), "the failure has to come after something was written"
    assert everything_under(tmp_path) == ["ids.jsonl"]


def test_packing_does_not_need_datasets_and_opening_names_the_extra_that_brings_it(tmp_path, monkeypatch):
    source = ids_file(tmp_path / "ids.jsonl", [3])
    monkeypatch.setitem(sys.modules, "datasets", None)

    pack(source, tmp_path / "rows")

    with pytest.raises(MissingDependencyError, match=r"needs the package 'datasets'.*pip install 'hermetic\[hf\]'"):
        open_packed(tmp_path / "rows")
