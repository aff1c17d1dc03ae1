"""Several sources, weights, preference pairs and bad records: the ledger adds up, every document tells its origin."""

import itertools
import json

import numpy as np
import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.data import open_packed, pack_sources
from hermetic.data.run.corpus import draw_units
from hermetic.errors import DataError, DocumentTooLongError, PackRunError, SourceError

PAIR = {"prompt": "What is two and two?", "chosen": "It is four.", "rejected": "It is five, I think."}


def pack(sources, out, *, capacity=32, **options):
    return pack_sources(sources, out, tokenizer=DEMO_TOKENIZER, capacity=capacity, **options)


def ids_source(path, first, lengths):
    edges = np.cumsum([first, *lengths]).tolist()
    records = [{"input_ids": list(range(a, b))} for a, b in itertools.pairwise(edges)]
    return write_jsonl(path, records)


def documents_of(folder):
    """For each document in the rows its source, record and tokens."""
    packed = open_packed(folder)
    found = []
    for row in packed.dataset:
        edges = np.cumsum(row["seq_lengths"])[:-1]
        found += zip(
            row["source_ids"],
            row["record_numbers"],
            (part.tolist() for part in np.split(row["input_ids"], edges)),
            strict=True,
        )
    return sorted(found)


def test_every_document_tells_the_file_and_the_line_that_it_comes_from(tmp_path):
    one, two = ids_source(tmp_path / "a.jsonl", 10, [3, 2]), ids_source(tmp_path / "b.jsonl", 50, [4])

    manifest = pack([one, two], tmp_path / "rows", capacity=8)

    assert documents_of(tmp_path / "rows") == [
        (0, 1, [10, 11, 12]),
        (0, 2, [13, 14]),
        (1, 1, [50, 51, 52, 53]),
    ]
    assert [entry.name for entry in manifest.source_files] == ["a.jsonl", "b.jsonl"]
    assert str(tmp_path) not in manifest.to_json()


def test_files_of_one_name_are_told_apart_by_as_much_of_their_path_as_it_takes(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        ids_source(tmp_path / folder / "a.jsonl", 5, [2])

    manifest = pack([tmp_path / "x" / "a.jsonl", tmp_path / "y" / "a.jsonl"], tmp_path / "rows")

    assert [entry.name for entry in manifest.source_files] == ["x/a.jsonl", "y/a.jsonl"]


def test_a_weight_of_two_takes_each_document_twice_and_one_of_zero_point_five_a_half(tmp_path):
    one, two = ids_source(tmp_path / "a.jsonl", 10, [3] * 4), ids_source(tmp_path / "b.jsonl", 100, [2] * 10)

    manifest = pack([f"{one}@2", f"{two}@0.5"], tmp_path / "rows", capacity=8)

    found = documents_of(tmp_path / "rows")
    assert [record for source, record, _ in found if source == 0] == [1, 1, 2, 2, 3, 3, 4, 4]
    halves = [record for source, record, _ in found if source == 1]
    assert len(halves) == len(set(halves)) == 5
    assert (manifest.documents_read, manifest.documents_repeated, manifest.documents_left_out) == (14, 4, 5)
    assert (manifest.documents_placed, manifest.documents_dropped) == (13, 0)
    assert (manifest.tokens_read, manifest.tokens_repeated, manifest.tokens_left_out) == (32, 12, 10)
    assert manifest.tokens_placed == 34


def test_another_seed_takes_another_half_and_the_same_seed_the_same(tmp_path):
    source = ids_source(tmp_path / "a.jsonl", 10, [2] * 40)
    taken = []
    for number, seed in enumerate((3, 3, 4)):
        pack(f"{source}@0.5", tmp_path / f"rows{number}", capacity=8, seed=seed)
        taken.append([record for _, record, _ in documents_of(tmp_path / f"rows{number}")])

    assert taken[0] == taken[1] != taken[2]


@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.25, 0.5, 1, 1.5, 2]), min_size=3, max_size=3),
    policy=st.sampled_from(["truncate", "split", "drop"]),
    seed=st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_the_ledger_adds_up_whatever_the_mix_and_the_policy(tmp_path_factory, lengths, weights, policy, seed):
    folder = tmp_path_factory.mktemp("mix")
    sources = [
        f"{ids_source(folder / f'{number}.jsonl', 5 + 100 * number, own)}@{weight}"
        for number, (own, weight) in enumerate(zip(lengths, weights, strict=False))
    ]
    expected = sum(round(weight * len(own)) for own, weight in zip(lengths, weights, strict=False))
    try:
        manifest = pack(sources, folder / "rows", capacity=6, on_overflow=policy, seed=seed)
    except DataError:
        return  # nothing is left to pack

    assert abs(manifest.documents_placed + manifest.documents_dropped - expected) <= len(lengths)
    placed = documents_of(folder / "rows")
    assert sum(len(tokens) for _, _, tokens in placed) == manifest.tokens_placed
    losses = [json.loads(line) for line in (folder / "rows" / "losses.jsonl").read_text().splitlines()]
    assert sum(loss["tokens"] for loss in losses) == manifest.tokens_lost
    split = [loss for loss in losses if loss["what"] == "split"]
    assert len(losses) - len(split) == manifest.documents_dropped + manifest.documents_truncated
    assert sum(loss["pieces"] for loss in split) == manifest.fragments


def test_the_account_names_each_document_that_is_not_whole_in_the_rows(tmp_path):
    source = ids_source(tmp_path / "a.jsonl", 5, [5, 2, 3, 1])

    for policy, expected in (("truncate", 1), ("drop", 5)):
        pack(source, tmp_path / policy, capacity=4, on_overflow=policy)
        losses = [json.loads(line) for line in (tmp_path / policy / "losses.jsonl").read_text().splitlines()]
        what = {"truncate": "truncated", "drop": "dropped"}[policy]
        assert losses == [
            {"source": "a.jsonl", "record": 1, "what": what, "reason": "longer than a row", "tokens": expected}
        ]
    pack(source, tmp_path / "split", capacity=4, on_overflow="split")
    (split,) = [json.loads(line) for line in (tmp_path / "split" / "losses.jsonl").read_text().splitlines()]
    whole = {"source": "a.jsonl", "record": 1, "what": "split", "reason": "longer than a row"}
    assert split == whole | {"tokens": 0, "pieces": 2}


def test_the_account_names_each_document_that_the_end_of_a_row_cuts_and_no_other(tmp_path):
    source = ids_source(tmp_path / "a.jsonl", 5, [5, 2, 3, 1])

    manifest = pack(source, tmp_path / "rows", capacity=4, strategy="concat_then_split", on_overflow="split", seed=None)

    losses = [json.loads(line) for line in (tmp_path / "rows" / "losses.jsonl").read_text().splitlines()]
    assert [(loss["record"], loss["reason"], loss["pieces"]) for loss in losses] == [
        (1, "at the end of a row", 2),
        (3, "at the end of a row", 2),
    ]
    assert manifest.fragments == 4


def test_what_is_skipped_is_listed_with_its_record_and_reason_and_counted_by_reason(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one"}\n{"text": \n{"text": ""}\n[1]\n{"text": "two"}\n')

    manifest = pack(source, tmp_path / "rows", on_bad_record="skip")

    losses = [json.loads(line) for line in (tmp_path / "rows" / "losses.jsonl").read_text().splitlines()]
    assert [(loss["record"], loss["what"]) for loss in losses] == [(2, "skipped"), (3, "skipped"), (4, "skipped")]
    assert all("a.jsonl:" in loss["message"] for loss in losses)
    assert sum(manifest.records_skipped.values()) == 3
    assert manifest.records_skipped["empty"] == 1
    assert (manifest.records_read, manifest.documents_read, manifest.documents_placed) == (5, 2, 2)
    assert [record for _, record, _ in documents_of(tmp_path / "rows")] == [1, 5]


def test_a_source_of_nothing_but_bad_records_is_an_error_that_counts_them(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": ""}\n{"text": ""}\n')

    with pytest.raises(DataError, match="no document is left to pack: 2 records were skipped"):
        pack(source, tmp_path / "rows", on_bad_record="skip")


def test_both_answers_of_a_preference_pair_lie_side_by_side_in_one_row(tmp_path):
    source = write_jsonl(tmp_path / "pairs.jsonl", [PAIR, {"text": "alone"}, PAIR, PAIR, CHAT])

    manifest = pack(source, tmp_path / "rows", capacity=96)

    assert manifest.preference_pairs == 3
    assert (manifest.records_read, manifest.documents_read) == (5, 8)
    for row in open_packed(tmp_path / "rows").dataset:
        for index, role in enumerate(row["roles"]):
            if role == 1:
                assert row["roles"][index + 1] == 2
                assert row["record_numbers"][index + 1] == row["record_numbers"][index]
                assert row["document_ids"][index + 1] == row["document_ids"][index] + 1


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"on_overflow": "truncate"}, "on_overflow 'truncate'"),
        ({"on_overflow": "split"}, "on_overflow 'split'"),
        ({"strategy": "concat_then_split"}, "strategy concat_then_split"),
    ],
)
def test_a_preference_pair_is_never_cut(tmp_path, options, what):
    source = write_jsonl(tmp_path / "pairs.jsonl", [{"text": "a"}, PAIR])

    with pytest.raises(DataError, match=rf"pairs\.jsonl:2: {what} would cut a preference pair"):
        pack(source, tmp_path / "rows", capacity=20, **options)


def test_a_pair_that_does_not_fit_is_an_error_or_dropped_whole(tmp_path):
    source = write_jsonl(tmp_path / "pairs.jsonl", [{"text": "a"}, PAIR])

    with pytest.raises(DocumentTooLongError, match=r"pairs\.jsonl:2: "):
        pack(source, tmp_path / "rows", capacity=20)
    manifest = pack(source, tmp_path / "rows", capacity=20, on_overflow="drop")

    assert (manifest.documents_read, manifest.documents_dropped, manifest.documents_placed) == (3, 2, 1)
    assert manifest.tokens_read == manifest.tokens_placed + manifest.tokens_lost


def test_parquet_rows_are_the_arrow_rows(tmp_path):
    source = write_jsonl(tmp_path / "pairs.jsonl", [CHAT, {"text": "alone"}, CHAT])
    for name in ("arrow", "parquet"):
        pack(source, tmp_path / name, capacity=96, file_format=name)
    ours, theirs = (open_packed(tmp_path / name) for name in ("arrow", "parquet"))

    assert ours.dataset[:] == theirs.dataset[:]
    assert [shard.name for shard in theirs.manifest.shards] == ["data-00000-of-00001.parquet"]
    assert [[d["input_ids"].tolist() for d in row] for row in theirs.rows()] == [
        [d["input_ids"].tolist() for d in row] for row in ours.rows()
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_on": "user"}, "train_on is 'user'; expected one of assistant, all, last"),
        ({"on_bad_record": "ignore"}, "on_bad_record is 'ignore'; expected one of error, skip"),
        ({"file_format": "csv"}, "file_format is 'csv'; expected one of arrow, parquet"),
        ({"engine": "spark"}, "engine is 'spark'; expected one of local, ray"),
        ({"workers": 0}, "workers is 0; expected a whole number of at least 1"),
        ({"shard_tokens": 2.5}, r"shard_tokens is 2\.5; expected a whole number"),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_anything_is_read(tmp_path, options, message):
    with pytest.raises(PackRunError, match=message):
        pack(tmp_path / "missing.jsonl", tmp_path / "rows", **options)
    assert list(tmp_path.iterdir()) == []


def test_no_source_and_a_source_named_twice_are_errors(tmp_path):
    source = ids_source(tmp_path / "a.jsonl", 5, [2])

    with pytest.raises(PackRunError, match="no source is given"):
        pack([], tmp_path / "rows")
    with pytest.raises(SourceError, match=r"a\.jsonl"):
        pack([source, source], tmp_path / "rows")


def test_weights_of_one_take_every_unit_once_without_a_list_of_them(tmp_path):
    source = ids_source(tmp_path / "a.jsonl", 5, [2, 3])
    seen = []
    import hermetic.data.pack as packing

    original = packing.draw_units

    def watched(*arguments, **options):
        seen.append(original(*arguments, **options))
        return seen[-1]

    packing.draw_units = watched
    try:
        pack(source, tmp_path / "rows")
    finally:
        packing.draw_units = original
    assert seen[0].units is None
    assert draw_units is original
