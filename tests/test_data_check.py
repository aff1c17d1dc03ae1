"""The audit: every law passes on a sound folder, and each one fails on a folder that breaks it."""

import dataclasses
import io
import json

import datasets
import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, tokenizer_folder, write_jsonl
from rich.console import Console

import hermetic.data.check as check_module
from hermetic.data import check_packed, open_packed, pack_sources, render_check
from hermetic.errors import DataError, PackedDataError


@pytest.fixture
def folder(tmp_path):
    records = [CHAT, {"text": "a few words"}, {"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]
    pack_sources(write_jsonl(tmp_path / "a.jsonl", records), tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=64)
    return tmp_path / "packed"


def failures(report):
    return [(check.law, check.code, check.found) for check in report.checks if check.result == "failed"]


def with_rows(monkeypatch, folder, change):
    """Let the audit see rows that differ from those of the folder, as if they had been packed so."""
    packed = open_packed(folder)
    rows = [dict(packed.dataset[row]) for row in range(len(packed))]
    for row in rows:
        change(row)
    changed = datasets.Dataset.from_list(rows, features=packed.dataset.features)
    monkeypatch.setattr(check_module, "open_packed", lambda _path: dataclasses.replace(packed, dataset=changed))


def test_a_sound_folder_passes_every_law_that_was_looked_at(folder):
    report = check_packed(folder, tokenizer=DEMO_TOKENIZER)

    assert report.sound
    assert {check.result for check in report.checks} == {"passed"}
    assert len({check.law for check in report.checks}) == len(report.checks) == 9
    assert "4 records read, 0 skipped; 4 documents, 4 placed, 0 dropped" in report.checks[0].found


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_a_pack_with_weights_fragments_losses_and_bad_records_is_sound(tmp_path, file_format):
    pair = {"prompt": "Two and two?", "chosen": "Four.", "rejected": "Five."}
    ids = [{"input_ids": list(range(length))} for length in (3, 20, 90, 41)]
    sources = [write_jsonl(tmp_path / f"{name}.jsonl", [CHAT, {"text": ""}, pair, *ids]) for name in "ab"]
    for policy in ("split", "truncate", "drop"):
        pack_sources(
            [f"{sources[0]}@2.5", f"{sources[1]}@0.5"],
            tmp_path / policy,
            tokenizer=DEMO_TOKENIZER,
            capacity=40,
            on_overflow=policy,
            on_bad_record="skip",
            file_format=file_format,
            shard_tokens=80,
        )
        report = check_packed(tmp_path / policy, tokenizer=DEMO_TOKENIZER)
        assert [check for check in report.checks if check.result != "passed"] == []
        assert "2 skipped" in report.checks[0].found


def test_without_a_tokenizer_the_report_says_what_was_not_looked_at(folder):
    results = {check.law: check.result for check in check_packed(folder).checks}

    assert [law for law, result in results.items() if result == "not checked"] == [
        "the rows were made by this tokenizer",
        "every token is of its vocabulary",
    ]
    assert check_packed(folder).sound


def test_every_damaged_and_every_missing_file_is_named(folder):
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").unlink()
    report = check_packed(folder)

    assert not report.sound
    assert [
        (code, found.partition("; ")[0].rpartition("/")[2].split(":")[0]) for _, code, found in failures(report)
    ] == [
        ("HE604", "dataset_info.json is missing"),
        ("HE604", "state.json is damaged"),
    ]


def test_a_file_that_was_not_packed_is_found(folder):
    (folder / "more.arrow").write_text("")

    ((law, code, found),) = failures(check_packed(folder))
    assert (law, code) == ("the folder is what its manifest says", "HE604")
    assert "more.arrow" in found


def test_a_manifest_that_does_not_add_up_is_found(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"tokens_placed": manifest["tokens_placed"] - 1}))

    ((law, code, found),) = failures(check_packed(folder))
    assert (law, code) == ("the manifest adds up", "HE604")
    assert "does not add up" in found


def test_a_document_that_was_never_read_is_found_with_its_row(folder, monkeypatch):
    with_rows(monkeypatch, folder, lambda row: row["document_ids"].__setitem__(0, 4))

    ((law, _, found),) = failures(check_packed(folder))
    assert law == "every document is where the manifest says"
    assert "row 0 has the document 4, expected 0 to 3" in found


def test_a_document_in_the_place_of_another_is_found(folder, monkeypatch):
    with_rows(monkeypatch, folder, lambda row: row.update(document_ids=[1] * len(row["document_ids"])))

    ((law, _, found),) = failures(check_packed(folder))
    assert law == "every document is where the manifest says"
    assert "holds 1 different documents, expected 4 by its manifest" in found


@pytest.mark.parametrize("token", [1024, -1])
def test_a_token_that_the_vocabulary_lacks_is_found_with_its_row(folder, monkeypatch, token):
    with_rows(monkeypatch, folder, lambda row: row["input_ids"].__setitem__(2, token))

    ((law, _, found),) = failures(check_packed(folder, tokenizer=DEMO_TOKENIZER))
    assert law == "every token is of its vocabulary"
    assert f"row 0 has the token {token}, expected 0 to 1023" in found
    assert check_packed(folder).sound


def test_another_tokenizer_is_found(folder, tmp_path):
    other = tokenizer_folder(tmp_path / "other", chat_template=None)

    ((law, code, found),) = failures(check_packed(folder, tokenizer=other))
    assert (law, code) == ("the rows were made by this tokenizer", "HE600")
    assert f"the tokenizer {other} has the fingerprint" in found


def test_what_is_no_packed_folder_is_an_error_and_no_finding(tmp_path):
    with pytest.raises(PackedDataError, match=r"has no manifest\.json"):
        check_packed(tmp_path)
    with pytest.raises(PackedDataError, match=r"has no manifest\.json"):
        check_packed(tmp_path / "nope")


def test_a_tokenizer_that_is_none_is_an_error_and_no_finding(folder, tmp_path):
    with pytest.raises(DataError, match="no tokenizer can be loaded"):
        check_packed(folder, tokenizer=tmp_path)


def test_the_rendered_report_has_a_line_for_each_law_and_the_verdict(folder):
    console = Console(file=io.StringIO(), width=400)
    console.print(render_check(check_packed(folder)))
    (folder / "state.json").write_text("{}")
    console.print(render_check(check_packed(folder)))
    lines = [line.strip() for line in console.file.getvalue().splitlines()]

    assert [line.split("  ")[0] for line in lines[1:10]] == ["passed"] * 7 + ["not checked"] * 2
    assert lines[10] == "sound"
    assert lines[-1] == "damaged"
    assert any(line.startswith("failed") and "HE604: " in line and "state.json is damaged" in line for line in lines)


def test_the_report_as_json_is_the_report(folder):
    report = check_packed(folder)
    values = json.loads(report.to_json())

    assert values["sound"] is True
    assert values["checks"] == [dataclasses.asdict(check) for check in report.checks]
