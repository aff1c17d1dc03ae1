"""What packing saves and what naive packing would spoil, counted and never estimated."""

import dataclasses
import io
import json

import numpy as np
import pytest
from data_helpers import DEMO_TOKENIZER, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hermetic.data import inspect_packed, pack_sources, render
from hermetic.data.statistics import (
    contaminated_share,
    contamination_rule_of_thumb,
    length_histogram,
    padding_waste,
)
from hermetic.errors import PackedDataError

ROWS = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=20)


@pytest.fixture
def folder(tmp_path):
    records = [{"input_ids": list(range(length))} for length in (6, 4, 3, 3, 2, 2)]
    source = write_jsonl(tmp_path / "ids.jsonl", records)
    pack_sources(source, tmp_path / "rows", tokenizer=DEMO_TOKENIZER, capacity=10, seed=None)
    return tmp_path / "rows"


def test_padding_waste_of_three_and_five_tokens_is_a_fifth():
    assert padding_waste(np.array([3, 5])) == pytest.approx(0.2)


def test_documents_of_one_length_waste_nothing_when_padded():
    assert padding_waste(np.array([7, 7, 7])) == 0.0


def test_contamination_of_a_hand_made_pack_is_exact():
    lengths, documents_per_row = np.array([3, 5, 4]), np.array([2, 1])

    assert contaminated_share(lengths, documents_per_row) == pytest.approx(5 / 12)


@given(rows=ROWS)
@settings(max_examples=100)
def test_contamination_counts_the_tokens_that_a_causal_mask_shows_a_stranger(rows):
    seen = total = 0
    for row in rows:
        ids = np.repeat(np.arange(len(row)), row)
        visible = np.tril(np.ones((len(ids), len(ids)), dtype=bool))
        seen += int((visible & (ids[:, None] != ids[None, :])).any(axis=1).sum())
        total += len(ids)

    share = contaminated_share(
        np.array([length for row in rows for length in row]), np.array([len(row) for row in rows])
    )

    assert share == pytest.approx(seen / total, abs=1e-12)


def test_the_rule_of_thumb_is_one_minus_median_by_capacity_and_never_negative():
    assert contamination_rule_of_thumb(np.array([2, 4, 9]), 16) == 0.75
    assert contamination_rule_of_thumb(np.array([20]), 16) == 0.0


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=200))
@settings(max_examples=100)
def test_the_histogram_counts_every_document_once_in_adjoining_bars(lengths):
    bars = length_histogram(np.array(lengths))

    assert [bar.count for bar in bars] == [sum(bar.low <= length <= bar.high for length in lengths) for bar in bars]
    assert sum(bar.count for bar in bars) == len(lengths)
    assert [bar.low for bar in bars[1:]] == [bar.high + 1 for bar in bars[:-1]]
    assert bars[-1].low <= max(lengths) or len(bars) == 1


def test_the_bars_double_in_width():
    bars = [(bar.low, bar.high, bar.count) for bar in length_histogram(np.array([3, 16, 17, 64]))]

    assert bars == [(1, 16, 2), (17, 32, 1), (33, 64, 1)]


def test_inspecting_a_pack_gives_exact_numbers(folder):
    summary = inspect_packed(folder)

    # Rows {6, 4} and {3, 3, 2, 2}: 4 + 7 of 20 tokens do not belong to their row's first document.
    assert summary.contaminated_share == pytest.approx(11 / 20)
    assert summary.contamination_rule_of_thumb == pytest.approx(1 - 3 / 10)
    assert summary.padding_waste == pytest.approx(1 - 20 / 6 / 6)
    assert (summary.documents, summary.shortest, summary.median, summary.longest) == (6, 2, 3.0, 6)
    assert summary.documents_per_row == 3.0
    assert summary.files_verified == 4
    assert summary.manifest.utilization == 1.0


def test_a_summary_as_json_is_the_summary(folder):
    summary = inspect_packed(folder)

    assert json.loads(summary.to_json()) == json.loads(json.dumps(dataclasses.asdict(summary)))


def test_inspecting_a_damaged_pack_is_an_error(folder):
    (folder / "state.json").write_text("{}")

    with pytest.raises(PackedDataError, match=r"state\.json is damaged"):
        inspect_packed(folder)


def test_the_rendered_summary_shows_counts_shares_and_histogram(folder):
    console = Console(file=io.StringIO(), width=100)
    console.print(render(inspect_packed(folder)))
    lines = [line.strip(" │") for line in console.file.getvalue().splitlines()]

    def value(name):
        return next(line.removeprefix(name).strip(" │") for line in lines if line.startswith(name))

    assert value("documents placed") == "6"
    assert value("rows (lower bound)") == "2 (2)"
    assert value("utilization") == "100.00%"
    assert value("tokens that naive packing would contaminate") == "55.00%"
    assert value("the same by the rule of thumb 1 - m/L") == "70.00%"
    assert value("1-16").startswith("6")


def test_the_rendered_summary_shows_what_was_skipped_repeated_and_left_out(tmp_path):
    pair = {"prompt": "Two?", "chosen": "Yes.", "rejected": "No."}
    records = [{"input_ids": [1, 2]}, {"input_ids": []}, {"input_ids": []}, pair]
    twice, half = (write_jsonl(tmp_path / f"{name}.jsonl", records) for name in "ab")
    pack_sources(
        [f"{twice}@2", f"{half}@0.5"], tmp_path / "r", tokenizer=DEMO_TOKENIZER, capacity=64, on_bad_record="skip"
    )
    summary, console = inspect_packed(tmp_path / "r"), Console(file=io.StringIO(), width=100)
    console.print(render(summary))
    shown = dict(
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in console.file.getvalue().splitlines()
        if "│" in line
    )

    assert shown["records read"] == "8"
    assert shown["records skipped, empty"] == "4"
    assert shown["preference pairs"] == "2"
    assert shown["copies that weights asked for"] == f"{summary.manifest.documents_repeated}" == "3"
    assert shown["documents that weights left out"] == f"{summary.manifest.documents_left_out}"
    assert summary.manifest.documents_left_out > 0


def test_a_hostile_name_does_not_reach_the_terminal(tmp_path):
    source = write_jsonl(tmp_path / "[bold]a\x1b[31m.jsonl", [{"input_ids": [1, 2]}])
    pack_sources(source, tmp_path / "rows", tokenizer=DEMO_TOKENIZER, capacity=10)
    console = Console(file=io.StringIO(), width=200)
    console.print(render(inspect_packed(tmp_path / "rows")))
    output = console.file.getvalue()

    assert r"[bold]a\x1b[31m.jsonl" in output
    assert "\x1b" not in output
