"""Lengths out of files, each kind read exactly and each fault named; and a plan of them in numbers."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_helpers import DEMO_TOKENIZER, everything_under, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.data import lengths_from_path, open_packed, pack_sources, plan_lengths
from hermetic.data.plan_render import sparkline
from hermetic.data.statistics import HistogramBar
from hermetic.errors import DataError, DocumentTooLongError, PackedDataError, PlanError, PlanFileError, SourceError
from hermetic.plan import Plan, plan_rows


def json_file(folder, value, name="lengths.json"):
    path = folder / name
    path.write_text(json.dumps(value))
    return path


def parquet_file(folder, **columns):
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 2**40), min_size=1, max_size=20), kind=st.sampled_from(["npy", "json", "parquet"])
)
def test_lengths_come_back_as_they_were_written_whatever_the_kind(tmp_path_factory, lengths, kind):
    path = tmp_path_factory.mktemp("lengths") / f"lengths.{kind}"
    if kind == "npy":
        np.save(path, np.array(lengths))
    elif kind == "json":
        path.write_text(json.dumps(lengths))
    else:
        pq.write_table(pa.table({"length": lengths}), path)
    found = lengths_from_path(path)
    assert found.lengths.tolist() == lengths
    assert (found.path, found.capacity) == (str(path), None)


def test_an_object_of_lengths_may_state_its_capacity(tmp_path):
    found = lengths_from_path(json_file(tmp_path, {"source": "x", "lengths": [3, 0, 5], "capacity": 8}))
    assert (found.lengths.tolist(), found.capacity, found.kind) == ([3, 0, 5], 8, "list")


def test_a_histogram_becomes_as_many_documents_as_it_counts_in_the_same_drawn_order_each_time(tmp_path):
    path = json_file(tmp_path, {"capacity": 4, "counts": [5, 0, 2, 9]})
    found = lengths_from_path(path)
    assert np.bincount(found.lengths).tolist() == [0, 5, 0, 2, 9]
    assert (found.capacity, found.kind) == (4, "histogram")
    assert found.lengths.tolist() == lengths_from_path(path).lengths.tolist() != sorted(found.lengths.tolist())


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32())])
def test_a_column_of_token_lists_counts_their_tokens(tmp_path, kind):
    path = parquet_file(tmp_path, input_ids=pa.array([[1, 2], [], [3]], kind), text=["a", "", "b"])
    found = lengths_from_path(path)
    assert (found.lengths.tolist(), found.kind) == ([2, 0, 1], "column 'input_ids' of a Parquet file")


def test_a_named_column_is_taken_before_the_usual_ones_and_a_lone_one_needs_no_name(tmp_path):
    path = parquet_file(tmp_path, length=[1, 2], tokens=[3, 4])
    assert lengths_from_path(path).lengths.tolist() == [1, 2]
    assert lengths_from_path(path, column="tokens").lengths.tolist() == [3, 4]
    assert lengths_from_path(parquet_file(tmp_path, whatever=[7])).lengths.tolist() == [7]


def test_a_packed_folder_gives_the_lengths_of_its_documents_and_its_capacity(tmp_path):
    source = write_jsonl(tmp_path / "texts.jsonl", [{"text": "one two three " * n} for n in (1, 2, 3)])
    pack_sources(source, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=256)
    found = lengths_from_path(tmp_path / "packed")
    assert found.lengths.tolist() == open_packed(tmp_path / "packed").document_lengths.tolist()
    assert (found.capacity, found.kind) == (256, "folder of packed rows")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "holds no lengths; expected at least one document"),
        ([1, -2], r"lengths\.json: document 1 has length -2"),
        ([1, 2.5], r"lengths\.json: document 1 has length 2\.5, a float"),
        ({"lengths": 3}, r"holds an object with the keys \['lengths'\]; expected a list of lengths"),
        ("abc", "holds a str; expected a list of lengths"),
        ({"lengths": [1], "capacity": 0}, "capacity is 0; expected a whole number of at least 1"),
        ({"counts": [1, -1]}, r"counts\[1\] is -1; expected the number of documents of 2 tokens"),
        ({"counts": [True]}, r"counts\[0\] is True; expected the number of documents of 1 tokens"),
        ({"counts": [2**31]}, "counts 2147483648 documents; expected at most 2147483647"),
        ({"counts": [0, 0]}, "holds no lengths"),
    ],
)
def test_json_that_holds_no_lengths_is_refused_with_what_it_holds(tmp_path, value, message):
    with pytest.raises(SourceError, match=message):
        lengths_from_path(json_file(tmp_path, value))


def test_files_of_another_kind_and_missing_ones_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"x\.txt ends in '\.txt'; expected one of \.npy, \.json, \.parquet, or a"):
        lengths_from_path(tmp_path / "x.txt")
    with pytest.raises(SourceError, match=r"x\.npy does not exist; check the path"):
        lengths_from_path(tmp_path / "x.npy")
    with pytest.raises(PackedDataError, match=r"has no manifest\.json, expected a folder of packed rows"):
        lengths_from_path(tmp_path)
    with pytest.raises(SourceError, match=r"has no columns, but column 'a' was asked for; expected a \.parquet"):
        lengths_from_path(json_file(tmp_path, [1]), column="a")


@pytest.mark.parametrize("suffix", ["npy", "json", "parquet"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage that is nothing" * 20])
def test_a_damaged_file_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"lengths.{suffix}"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"lengths\.{suffix} cannot be read as"):
        lengths_from_path(path)


def test_an_array_that_is_pickled_or_no_vector_of_integers_or_an_archive_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(SourceError, match=r"a\.npy cannot be read as a NumPy array"):
        lengths_from_path(path)
    np.save(path, np.ones((2, 2), np.int64))
    with pytest.raises(SourceError, match=r"a\.npy: lengths has 2 dimensions"):
        lengths_from_path(path)
    np.save(path, np.ones(2))
    with pytest.raises(SourceError, match=r"a\.npy: document 0 has length .*float64"):
        lengths_from_path(path)
    with path.open("wb") as file:
        np.savez(file, lengths=np.ones(2, np.int64))
    with pytest.raises(SourceError, match=r"a\.npy is an archive of arrays; expected one array"):
        lengths_from_path(path)


def test_a_table_without_a_column_of_lengths_is_refused_with_its_columns(tmp_path):
    path = parquet_file(tmp_path, a=[1], b=["x"])
    with pytest.raises(SourceError, match=r"has the columns 'a', 'b'; none of them is known to hold lengths\. Name"):
        lengths_from_path(path)
    with pytest.raises(SourceError, match="has the columns 'a', 'b'; not 'c'"):
        lengths_from_path(path, column="c")
    with pytest.raises(SourceError, match=r"table\.parquet: document 0 has length 'x'"):
        lengths_from_path(path, column="b")
    with pytest.raises(SourceError, match="column 'length' has 1 nulls; expected a length in each row"):
        lengths_from_path(parquet_file(tmp_path, length=[1, None]))


def test_the_summary_counts_what_the_plan_holds(tmp_path):
    lengths = [6, 4, 3, 3, 2, 2, 25, 0]
    summary = plan_lengths(json_file(tmp_path, lengths), capacity=10, on_overflow="split")
    plan = plan_rows(lengths, 10, on_overflow="split")
    assert (summary.documents, summary.empty_documents, summary.tokens, summary.longest) == (8, 1, 45, 25)
    assert (summary.rows, summary.lower_bound, summary.certified, summary.gap) == (5, 5, True, 0.0)
    assert (summary.documents_cut, summary.fragments, summary.lost_tokens) == (1, 3, 0)
    assert summary.utilization == plan.utilization == 0.9
    assert summary.documents_per_row == len(plan.order) / 5
    assert summary.most_documents_in_a_row == max(len(row) for row in plan.rows())
    assert sum(bar.count for bar in summary.histogram) == 7
    assert summary.alternatives == ()


@pytest.mark.parametrize(
    ("policy", "lost", "dropped", "truncated"), [("truncate", 15, 0, 1), ("drop", 25, 1, 0), ("split", 0, 0, 0)]
)
def test_the_summary_says_what_overflow_cost(tmp_path, policy, lost, dropped, truncated):
    summary = plan_lengths(json_file(tmp_path, [6, 25]), capacity=10, on_overflow=policy)
    found = (summary.lost_tokens, summary.documents_dropped, summary.documents_truncated, summary.documents_cut)
    assert found == (lost, dropped, truncated, int(policy == "split"))


def test_the_alternatives_lay_out_the_same_documents_under_the_same_policy(tmp_path):
    lengths = np.random.default_rng(0).integers(0, 130, 2_500).tolist()
    summary = plan_lengths(json_file(tmp_path, lengths), capacity=100, on_overflow="drop", compare=True)
    kept = [length for length in lengths if 0 < length <= 100]
    filled = [length for length in lengths if length > 0]
    windows = [filled[start : start + 1_000] for start in range(0, len(filled), 1_000)]
    padding, in_order, by_window = summary.alternatives
    assert padding.rows == len(kept)
    assert padding.utilization == sum(kept) / (len(kept) * 100)
    assert in_order.rows == plan_rows(filled, 100, strategy="next_fit", on_overflow="drop").num_rows
    assert by_window.rows == sum(plan_rows(window, 100, on_overflow="drop").num_rows for window in windows)
    assert summary.rows <= by_window.rows < in_order.rows < padding.rows
    assert [other.name.split(":")[0] for other in summary.alternatives] == [
        "padding",
        "next_fit",
        "best fit in windows of 1,000, as TRL's default",
    ]


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=30).filter(any),
    capacity=st.sampled_from([8, 12, 24]),
    options=st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(["best_fit_decreasing", "next_fit", "concat_then_split"]),
            "on_overflow": st.sampled_from(["truncate", "split", "drop"]),
            "max_documents_per_row": st.none() | st.integers(1, 3),
            "align": st.sampled_from([1, 2, 4]),
            "seed": st.none() | st.just(3),
        }
    ),
)
def test_a_histogram_has_the_summary_of_the_documents_that_it_counts(tmp_path_factory, counts, capacity, options):
    folder = tmp_path_factory.mktemp("lengths")
    histogram = json_file(folder, {"counts": counts}, "histogram.json")
    one_by_one = json_file(folder, lengths_from_path(histogram).lengths.tolist(), "list.json")
    found, expected = (
        dataclasses.asdict(plan_lengths(path, capacity=capacity, **options)) for path in (histogram, one_by_one)
    )
    for summary in (found, expected):
        del summary["path"], summary["kind"], summary["plan_seconds"]
    assert found == expected


def test_a_histogram_may_count_more_documents_than_a_plan_can_list_until_the_plan_is_wanted(tmp_path):
    path = json_file(tmp_path, {"capacity": 8, "counts": [2**33, 0, 2**32]})
    summary = plan_lengths(path)
    assert (summary.documents, summary.rows, summary.certified) == (3 * 2**32, (2**33 + 3 * 2**32) // 8, True)
    for options in ({"compare": True}, {"save": tmp_path / "plan.npz"}, {"strategy": "next_fit"}):
        with pytest.raises(
            SourceError, match=r"lengths\.json counts 12884901888 documents; expected at most 2147483647"
        ):
            plan_lengths(path, **options)


def test_the_summary_of_lengths_agrees_with_numpy(tmp_path):
    lengths = np.random.default_rng(1).integers(0, 50, 501)
    for given_lengths in (lengths, lengths[1:]):
        summary = plan_lengths(json_file(tmp_path, given_lengths.tolist()), capacity=64)
        assert summary.median == np.median(given_lengths)
        assert summary.mean == pytest.approx(given_lengths.mean())
        assert (summary.tokens, summary.longest) == (given_lengths.sum(), given_lengths.max())


def test_documents_without_a_token_make_a_summary_without_rows_to_compare(tmp_path):
    summary = plan_lengths(json_file(tmp_path, [0, 0]), capacity=4, compare=True)
    assert (summary.empty_documents, summary.tokens, summary.histogram, summary.alternatives) == (2, 0, (), ())


def test_a_saved_plan_is_the_plan_of_the_lengths(tmp_path):
    path = json_file(tmp_path, {"capacity": 8, "lengths": [5, 3, 4, 4]})
    plan_lengths(path, seed=3, save=tmp_path / "plan.npz")
    assert Plan.load(tmp_path / "plan.npz") == plan_rows([5, 3, 4, 4], 8, seed=3)


def test_the_stages_are_announced_in_their_order(tmp_path):
    stages = []
    plan_lengths(json_file(tmp_path, [1]), capacity=4, on_stage=stages.append)
    assert stages == ["reading lengths", "planning", "comparing"]


def test_what_cannot_be_planned_is_refused_and_nothing_is_written(tmp_path):
    path = json_file(tmp_path, [5, 9])
    with pytest.raises(DataError, match=r"lengths\.json states no capacity; expected one to be given"):
        plan_lengths(path)
    with pytest.raises(DocumentTooLongError, match="document 1 has 9 tokens and a row holds 8"):
        plan_lengths(path, capacity=8, save=tmp_path / "plan.npz")
    with pytest.raises(PlanError, match="strategy is 'x'; expected one of: best_fit_decreasing"):
        plan_lengths(tmp_path / "is not even read.json", strategy="x")
    with pytest.raises(PlanFileError, match=r"cannot write a plan to .*No such file or directory"):
        plan_lengths(path, capacity=9, save=tmp_path / "no folder" / "plan.npz")
    assert everything_under(tmp_path) == ["lengths.json"]


def test_a_sparkline_has_a_character_for_each_bar_and_shows_even_a_single_document():
    bars = (
        HistogramBar(low=1, high=16, count=1_000_000),
        HistogramBar(low=17, high=32, count=0),
        HistogramBar(low=33, high=64, count=1),
        HistogramBar(low=65, high=128, count=500_000),
    )
    assert sparkline(bars) == "1 █ ▁▄ 128"
    assert sparkline(()) == ""


def test_a_plan_above_its_bound_is_not_called_certified(tmp_path):
    summary = plan_lengths(json_file(tmp_path, [3, 3, 2, 2, 2]), capacity=6, strategy="next_fit")
    assert (summary.rows, summary.lower_bound, summary.certified, summary.gap) == (2, 2, True, 0.0)
    summary = plan_lengths(json_file(tmp_path, [2, 5, 1, 4]), capacity=6, strategy="next_fit")
    assert (summary.rows, summary.lower_bound, summary.certified, summary.gap) == (3, 2, False, 0.5)
