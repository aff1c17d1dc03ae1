"""Near-duplicates: exact against every pair compared, and a proof that each half of the search is needed."""

import io
import itertools
import json
import sys

import numpy as np
import pytest
from data_helpers import DEMO_TOKENIZER, tokenizer_folder, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import hermetic.data.duplicates.find as find_module
from hermetic.constants import IGNORE_INDEX
from hermetic.data import find_duplicates, open_packed, pack_sources, render_duplicates
from hermetic.data.duplicates import candidates as candidates_module
from hermetic.data.duplicates.candidates import candidates
from hermetic.data.duplicates.findings import _coincidences
from hermetic.data.duplicates.shingles import LARGEST_TOKEN, candidate_pairs, overlaps, require_small_ids, shingles
from hermetic.errors import DataError, MissingDependencyError

COUNTS = [
    "documents",
    "tokens",
    "pairs",
    "identical_pairs",
    "pairs_in_one_row",
    "pairs_of_one_record",
    "documents_in_pairs",
    "tokens_in_pairs",
    "clusters",
    "largest_cluster",
]
DOCUMENTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6)


def write(folder, documents, **options):
    source = write_jsonl(folder / "ids.jsonl", [{"input_ids": [int(token) for token in ids]} for ids in documents])
    pack_sources(source, folder / "packed", tokenizer=DEMO_TOKENIZER, **({"capacity": 256} | options))
    return folder / "packed"


def changed(ids, positions, rng):
    copy = np.array(ids)
    copy[positions] = rng.integers(900, 1000, len(positions))
    return copy


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """200 documents: strangers, edits of them from slight to heavy, a chain, and copies."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 900, rng.integers(20, 120)) for _ in range(100)]
    for number in range(60):  # one to six tokens changed: similarities on both sides of every threshold
        original = documents[number]
        documents.append(changed(original, rng.choice(len(original), number % 6 + 1, replace=False), rng))
    for _ in range(10):  # each a little further from the first
        documents.append(changed(documents[-1], rng.choice(len(documents[-1]), 1), rng))
    documents += [documents[3]] * 3 + [documents[7]] * 2 + [documents[110]] * 5
    documents += [rng.integers(0, 900, rng.integers(1, 5)) for _ in range(18)] + [np.array([1]), np.array([1])]
    return write(tmp_path_factory.mktemp("planted"), documents)


def sets_of(ids):
    ids = tuple(ids)
    return {ids[start : start + 3] for start in range(max(1, len(ids) - 2))}


def jaccard(one, other):
    return len(one & other) / len(one | other)


def every_pair(folder, threshold):
    """What a report has to say, by comparing all documents with all."""
    packed = open_packed(folder)
    rows = [packed.dataset[row] for row in range(len(packed))]
    ids = [record for row in rows for record in zip(row["source_ids"], row["record_numbers"], strict=True)]
    row_of = [number for number, row in enumerate(rows) for _ in row["document_ids"]]
    tokens = [document["input_ids"].tolist() for row in packed.rows() for document in row]
    sets = [sets_of(document) for document in tokens]
    alike = [
        (one, other)
        for one, other in itertools.combinations(range(len(sets)), 2)
        if jaccard(sets[one], sets[other]) >= threshold
    ]
    pairs = [(one, other) for one, other in alike if ids[one] != ids[other]]
    clusters = {document: {document} for pair in pairs for document in pair}
    for one, other in pairs:
        joined = clusters[one] | clusters[other]
        clusters.update(dict.fromkeys(joined, joined))
    distinct = {id(cluster): cluster for cluster in clusters.values()}.values()
    return {
        "documents": len(tokens),
        "tokens": sum(map(len, tokens)),
        "pairs": len(pairs),
        "identical_pairs": sum(tokens[one] == tokens[other] for one, other in pairs),
        "pairs_in_one_row": sum(row_of[one] == row_of[other] for one, other in pairs),
        "pairs_of_one_record": len(alike) - len(pairs),
        "documents_in_pairs": len(clusters),
        "tokens_in_pairs": sum(len(tokens[document]) for document in clusters),
        "clusters": len(distinct),
        "largest_cluster": max(map(len, distinct), default=0),
    }


def counts(report):
    values = json.loads(report.to_json())
    return {name: values[name] for name in COUNTS}


@pytest.mark.parametrize("threshold", [0.5, 0.65, 0.8, 0.95, 1.0])
def test_the_report_is_that_of_comparing_every_pair(planted, threshold):
    expected = every_pair(planted, threshold)

    assert counts(find_duplicates(planted, threshold=threshold)) == expected
    assert expected["pairs"] - expected["identical_pairs"] >= (threshold < 1)
    assert expected["identical_pairs"] > 0
    assert expected["pairs_in_one_row"] > 0
    assert expected["largest_cluster"] > 2


def test_a_search_that_looks_at_one_band_only_misses_pairs(planted, monkeypatch):
    monkeypatch.setattr(find_module, "candidates", lambda keys, say: candidates(keys[:, :1], say))

    assert find_duplicates(planted).pairs < every_pair(planted, 0.8)["pairs"]


def test_a_search_that_does_not_compare_its_candidates_reports_false_pairs(planted, monkeypatch):
    monkeypatch.setattr(find_module, "similarities", lambda _corpus, pairs: np.ones(len(pairs)))

    assert find_duplicates(planted).pairs > every_pair(planted, 0.8)["pairs"]


def test_the_fragments_of_one_record_are_counted_apart(tmp_path):
    loop = [5, 6, 7, 8, 9] * 12
    folder = write(tmp_path, [loop, range(100, 130), loop], capacity=20, on_overflow="split")
    report = find_duplicates(folder)

    # Twice three fragments, all of the same shingles: 15 pairs, of which 3 and 3 are of one record.
    assert counts(report) == every_pair(folder, 0.8)
    assert (report.pairs, report.pairs_of_one_record, report.clusters, report.largest_cluster) == (9, 6, 1, 6)


def test_copies_by_weight_and_the_answers_of_a_pair_are_counted_apart(tmp_path):
    prompt = "A long question, of which there are many words, so that both answers are nearly the same document: yes?"
    pair = {"prompt": prompt, "chosen": "Yes.", "rejected": "No."}
    source = write_jsonl(tmp_path / "a.jsonl", [pair, {"input_ids": list(range(30))}, {"input_ids": list(range(30))}])
    pack_sources(f"{source}@2", tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=256)
    report = find_duplicates(tmp_path / "packed")

    # Twice two answers: 6 pairs of one record. Twice two equal documents: 6 pairs, of which 2 are of one record.
    assert (report.documents, report.pairs, report.pairs_of_one_record) == (8, 4, 8)
    assert (report.documents_in_pairs, report.clusters, report.largest_cluster) == (4, 1, 4)
    assert {document.where for document in report.examples[0].documents} == {"a.jsonl:2", "a.jsonl:3"}


def test_documents_of_several_files_are_told_apart(tmp_path):
    ids = {"input_ids": list(range(30))}
    sources = [write_jsonl(tmp_path / f"{name}.jsonl", [ids]) for name in "ab"]
    pack_sources(sources, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=30, file_format="parquet")
    report = find_duplicates(tmp_path / "packed")

    assert (report.pairs, report.pairs_of_one_record, report.pairs_in_one_row) == (1, 0, 0)
    assert {document.where for document in report.examples[0].documents} == {"a.jsonl:1", "b.jsonl:1"}


def test_the_named_pairs_are_real_and_those_that_share_a_row_come_first(planted):
    report, packed = find_duplicates(planted), open_packed(planted)
    tokens = {}
    for row in range(len(packed)):
        ids = packed.dataset[row]["document_ids"]
        for document, held in zip(ids, packed.documents_of_row(row), strict=True):
            tokens[document] = (row, held["input_ids"].tolist())

    order = [(not pair.in_one_row, -pair.similarity) for pair in report.examples]
    assert order == sorted(order)
    assert len(report.examples) == 10
    for pair in report.examples:
        one, other = (tokens[int(document.where.rpartition(":")[2]) - 1] for document in pair.documents)
        assert pair.similarity == jaccard(sets_of(one[1]), sets_of(other[1])) >= 0.8
        assert [document.row for document in pair.documents] == [one[0], other[0]]
        assert [document.tokens for document in pair.documents] == [len(one[1]), len(other[1])]
        assert pair.in_one_row == (one[0] == other[0])
        assert one is not other


def test_the_same_folder_gives_the_same_report_and_another_seed_the_same_counts(planted):
    first, again, other = find_duplicates(planted), find_duplicates(planted), find_duplicates(planted, seed=1)

    assert first == again
    assert counts(first) == counts(other)


def test_a_batch_of_any_size_gives_the_same_report(planted, monkeypatch):
    whole = find_duplicates(planted)
    monkeypatch.setattr(candidates_module, "_PAIRS_AT_ONCE", 3)
    monkeypatch.setattr(candidates_module, "_TOKENS_AT_ONCE", 100)

    assert find_duplicates(planted) == whole


def test_a_folder_without_duplicates_has_none(tmp_path):
    report = find_duplicates(write(tmp_path, [range(start, start + 20) for start in (0, 100, 200)]))

    assert (report.pairs, report.documents_in_pairs, report.clusters, report.largest_cluster) == (0, 0, 0, 0)
    assert report.examples == ()


def test_the_documents_of_a_pair_are_quoted_with_the_tokenizer_that_made_them(tmp_path):
    record = {"text": "the same words twice"}
    pack_sources(
        write_jsonl(tmp_path / "a.jsonl", [record, record]), tmp_path / "p", tokenizer=DEMO_TOKENIZER, capacity=64
    )
    (pair,) = find_duplicates(tmp_path / "p", tokenizer=DEMO_TOKENIZER).examples

    assert [document.text for document in pair.documents] == ["the same words twice<|end|>"] * 2
    assert [document.text for document in find_duplicates(tmp_path / "p").examples[0].documents] == [None, None]
    with pytest.raises(DataError, match="has the fingerprint"):
        find_duplicates(tmp_path / "p", tokenizer=tokenizer_folder(tmp_path / "other", chat_template=None))


@given(documents=DOCUMENTS)
@settings(max_examples=100)
def test_overlaps_are_those_of_sets_of_three_tokens(documents):
    edges = np.cumsum([0, *map(len, documents)])
    pairs = np.array(list(itertools.combinations_with_replacement(range(len(documents)), 2)))
    values, value_edges = shingles(np.concatenate(documents).astype(np.int32), edges)

    both, total = overlaps(values, value_edges, pairs[:, 0].copy(), pairs[:, 1].copy())

    sets = [sets_of(document) for document in documents]
    assert both.tolist() == [len(sets[one] & sets[other]) for one, other in pairs]
    assert total.tolist() == [len(sets[one] | sets[other]) for one, other in pairs]


def test_every_shingle_has_a_number_of_its_own():
    ids = np.array([0, 1, 2, LARGEST_TOKEN - 1, LARGEST_TOKEN], dtype=np.int32)
    every = [np.array(choice, dtype=np.int32) for size in (1, 2, 3) for choice in itertools.product(ids, repeat=size)]
    values, _ = shingles(np.concatenate(every), np.cumsum([0, *map(len, every)]))

    assert len(np.unique(values)) == len(every) == 155


@given(keys=st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=8), room=st.integers(1, 4))
@settings(max_examples=100)
def test_every_pair_that_agrees_in_a_band_is_a_candidate_once(keys, room):
    table = np.array(keys, dtype=np.uint64)
    found = []
    for band in range(3):
        order, place, pairs = np.argsort(table[:, band], kind="stable"), (0, 1), np.empty((room, 2), dtype=np.int64)
        while place[0] < len(order):
            count, place = candidate_pairs(table, band, order, place, pairs)
            found += map(tuple, pairs[:count].tolist())

    expected = [
        (one, other)
        for one, other in itertools.combinations(range(len(keys)), 2)
        if any(a == b for a, b in zip(keys[one], keys[other], strict=True))
    ]
    assert sorted(found) == expected


@given(one=st.lists(st.integers(0, 3), min_size=1, max_size=8), other=st.lists(st.integers(0, 3), max_size=8))
def test_coincidences_are_pairs_of_equal_keys(one, other):
    keys = np.array([*one, *other])
    here, there = np.arange(len(one)), np.arange(len(one), len(keys))

    assert _coincidences(keys, here, there) == sum(a == b for a in one for b in other)
    assert _coincidences(keys, here, here) == sum(a == b for a, b in itertools.combinations(one, 2))


def test_what_cannot_be_compared_is_refused(planted):
    for threshold in (0.49, 1.01, float("nan")):
        with pytest.raises(DataError, match=rf"threshold is {threshold}, expected 0\.5 to 1"):
            find_duplicates(planted, threshold=threshold)
    with pytest.raises(DataError, match="seed is -1, expected at least 0"):
        find_duplicates(planted, seed=-1)
    for token in (LARGEST_TOKEN + 1, -1):
        with pytest.raises(DataError, match=rf"rows 0 has the token {token}, expected 0 to {LARGEST_TOKEN}"):
            require_small_ids(np.array([1, token], dtype=np.int32), "rows 0")
    require_small_ids(np.array([0, LARGEST_TOKEN], dtype=np.int32), "rows 0")


def test_a_missing_library_is_an_error_that_names_the_extra(planted, monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'hermetic\[data\]'"):
        find_duplicates(planted)


def test_the_chance_to_miss_a_pair_is_small_at_every_threshold():
    for threshold in np.linspace(0.5, 1.0, 51):
        width = find_module._band_width(float(threshold))
        assert find_module._miss(float(threshold), width) <= 1e-3
        # and no wider band would do
        assert all(find_module._miss(float(threshold), wider) > 1e-3 for wider in range(width + 1, 129))


def test_supervision_plays_no_part(tmp_path):
    ids = list(range(30))
    source = write_jsonl(
        tmp_path / "a.jsonl",
        [{"input_ids": ids}, {"input_ids": ids, "labels": [IGNORE_INDEX] * 29 + [29]}],
    )
    pack_sources(source, tmp_path / "p", tokenizer=DEMO_TOKENIZER, capacity=64)

    assert find_duplicates(tmp_path / "p").identical_pairs == 1


def test_the_rendered_report_has_the_counts_and_no_document_reaches_the_terminal(tmp_path):
    record = {"text": "[bold]loud[/bold] \x1b[31mred\x07 and some more words"}
    source = write_jsonl(tmp_path / "a.jsonl", [record, record, {"text": "quite another text"}])
    pack_sources(source, tmp_path / "p", tokenizer=DEMO_TOKENIZER, capacity=256)
    console = Console(file=io.StringIO(), width=200)
    console.print(render_duplicates(find_duplicates(tmp_path / "p", tokenizer=DEMO_TOKENIZER)))
    output = console.file.getvalue()
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines()]

    assert ["pairs with a similarity of 0.8 or more", "1"] in lines
    assert ["pairs that share a row", "1"] in lines
    assert ["clusters (documents of the largest)", "1 (2)"] in lines
    assert "similarity 1.000, both in row 0" in output
    assert output.count(r"tokens: [bold]loud[/bold] \x1b[31mred\x07") == 2
    assert all(character.isprintable() or character == "\n" for character in output)
