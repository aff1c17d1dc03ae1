"""What the audit of a packed folder finds, and what it counts, each from documents whose lengths are known."""

import json

import pytest
from data_helpers import DEMO_TOKENIZER, write_jsonl
from typer.testing import CliRunner

from hermetic.audit import audit, audit_folder
from hermetic.audit.folder import CHECKS
from hermetic.audit.rules import RULES
from hermetic.cli import app
from hermetic.data import pack_sources
from hermetic.errors import AuditError


def packed(folder, lengths, **options):
    """Documents of these lengths, of tokens that no two of them share."""
    records = [{"input_ids": list(range(100 * n, 100 * n + length))} for n, length in enumerate(lengths, 1)]
    return packed_records(folder, records, **options)


def packed_records(folder, records, **options):
    source = write_jsonl(folder / "source.jsonl", records)
    pack_sources(source, folder / "packed", **{"tokenizer": DEMO_TOKENIZER, "capacity": 32, **options})
    return folder / "packed"


def codes(path, **options):
    return [finding.code for finding in audit_folder(path, **options).findings]


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_a_sound_folder_has_no_finding_and_its_facts_are_counted(tmp_path, file_format):
    report = audit_folder(packed(tmp_path, [20, 12, 16, 8], file_format=file_format), duplicates=True)

    assert (report.sound, report.kind, report.stack) == (True, "folder", None)
    assert dict(report.facts) == {
        "laws": "7 laws hold, 2 not checked",
        "records": "4 read, 0 skipped",
        "documents": "4 read, 0 repeated, 0 left out, 4 placed, 0 dropped",
        "tokens": "56 read, 0 repeated, 0 left out, 56 placed, 0 lost, 52 supervised",
        "rows": "2 of 32 tokens, utilization 87.5%",
        "longest": "20 of 32 tokens; 0 fragments",
        "contaminated if read naively": "35.7% of tokens would see another document; 1 - median / capacity says 56.2%",
        "padding saved": "30.0% of slots, if each document were padded to the longest",
        "lengths": "1-16: 3, 17-32: 1",
        "near-duplicates": "0 pairs, 0 of them in one row",
    }
    assert report.notes == (
        "the rows were made by this tokenizer: not checked; name the tokenizer",
        "every token is of its vocabulary: not checked; name the tokenizer",
    )


def test_the_tokenizer_that_made_the_rows_has_all_laws_hold(tmp_path):
    folder = packed_records(tmp_path, [{"text": "a few words"}, {"text": "and some more of them"}])
    report = audit_folder(folder, tokenizer=DEMO_TOKENIZER)

    assert report.sound
    assert dict(report.facts)["laws"] == "9 laws hold"
    assert report.notes == ()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("truncate", "8 of 60 tokens are lost: 0 documents dropped, 1 cut, by on_overflow 'truncate'"),
        ("drop", "40 of 60 tokens are lost: 1 documents dropped, 0 cut, by on_overflow 'drop'"),
    ],
)
def test_lost_tokens_are_counted_by_policy(tmp_path, policy, expected):
    (found,) = audit_folder(packed(tmp_path, [40, 20], on_overflow=policy)).findings

    assert (found.code, found.what, found.certainty) == ("HM780", expected, "certain")
    assert (found.place.key, found.place.file) == ("tokens_lost", str(tmp_path / "packed" / "manifest.json"))


def test_a_split_loses_no_token_and_says_how_many_fragments_there_are(tmp_path):
    report = audit_folder(packed(tmp_path, [40, 20], on_overflow="split"))

    assert report.sound
    assert dict(report.facts)["longest"] == "32 of 32 tokens; 2 fragments"


def test_documents_of_one_token_have_no_supervision_either(tmp_path):
    unsupervised, lone = audit_folder(packed(tmp_path, [5, 1, 1])).findings

    assert (unsupervised.code, unsupervised.value) == ("HM480", "2 of 3")
    assert (lone.code, lone.value) == ("HM782", "2 of 3")


def test_skipped_records_are_told_by_their_reasons(tmp_path):
    records = [{"input_ids": [5, 6, 7]}, {"text": ""}, {"text": ""}]
    (found,) = audit_folder(packed_records(tmp_path, records, on_bad_record="skip")).findings

    assert (found.code, found.value) == ("HM781", "2 of 3")
    assert found.what == "of 3 records these were skipped: 2 empty"


def test_near_duplicates_in_a_row_are_found_only_if_asked_for_and_only_in_a_row(tmp_path):
    copies = [{"input_ids": list(range(5, 17))}] * 2
    together = packed_records(tmp_path, copies)
    (tmp_path / "apart").mkdir()
    apart = packed_records(tmp_path / "apart", copies, capacity=12)
    (found,) = audit_folder(together, duplicates=True).findings

    assert codes(together) == codes(apart) == codes(apart, duplicates=True) == []
    assert dict(audit_folder(apart, duplicates=True).facts)["near-duplicates"] == "1 pairs, 0 of them in one row"
    assert (found.code, found.value) == ("HM783", "1 of 1 pairs")
    assert found.what == (
        "1 pairs of documents that are at least 80% alike share a row, such as source.jsonl:2 and source.jsonl:1 in "
        "row 0"
    )


def test_a_damaged_folder_has_a_finding_that_names_its_file_and_no_numbers(tmp_path):
    folder = packed(tmp_path, [20, 12])
    path = next(folder.glob("*.arrow"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    report = audit_folder(folder, duplicates=True)
    (found,) = report.findings

    assert (found.code, found.value) == ("HM680", "HE604")
    assert f"{path} is damaged" in found.what
    assert [name for name, _ in report.facts] == ["laws"]


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(AuditError, match=r"has no manifest\.json, expected a folder that hermetic pack made"):
        audit_folder(tmp_path)


def test_every_check_of_a_folder_has_a_rule():
    assert {code for code in CHECKS if code not in RULES} == set()
    assert {code for code in RULES if int(code[-2:]) >= 80} == set(CHECKS)


def test_laws_that_are_broken_are_counted_apart_from_those_that_hold_and_those_nobody_looked_at(tmp_path):
    folder = packed(tmp_path, [20])
    (folder / "added.txt").write_text("x")
    (shard,) = folder.glob("*.arrow")
    shard.write_bytes(shard.read_bytes() + b"x")

    assert dict(audit_folder(folder).facts)["laws"] == "1 law holds, 1 broken"


def test_the_command_hands_the_tokenizer_over_and_looks_for_duplicates(tmp_path):
    folder = packed_records(tmp_path, [{"text": "a few words"}, {"text": "and some more of them"}])
    told = ["audit", str(folder), "--tokenizer", str(DEMO_TOKENIZER), "--duplicates", "--json"]
    result = CliRunner().invoke(app, told)

    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads(
        json.dumps(audit_folder(folder, tokenizer=DEMO_TOKENIZER, duplicates=True).to_dict())
    )
    assert dict(audit(folder, tokenizer=DEMO_TOKENIZER, duplicates=True).facts).keys() >= {"laws", "near-duplicates"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokenizer", "model"], "HE730: tokenizer is model, and only a packed folder is checked with one"),
        (["--duplicates"], "HE730: duplicates are looked for in a packed folder only"),
    ],
)
@pytest.mark.parametrize("target", [["train.yaml"], ["--batch", "batch.npz"], ["--", "trl", "sft"]])
def test_what_is_of_packed_folders_alone_is_refused_elsewhere(target, options, said):
    result = CliRunner().invoke(app, ["audit", *options, *target])

    assert result.exit_code == 2
    assert said in result.stderr
