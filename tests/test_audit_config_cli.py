"""The command: what it prints, what it writes, and its exit codes."""

import json
import shutil
from pathlib import Path

import pytest
from audit_config_helpers import FOLDER
from rich.console import Console
from typer.testing import CliRunner

from hermetic.audit import AuditFinding, AuditReport, Place, audit_config
from hermetic.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def shown(report, width=200):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(report)
    return captured.get()


def words_of(text):
    return " ".join(text.split())


def test_a_finding_is_exit_code_1_and_the_verdict_comes_first():
    result = invoke(FOLDER / "trl_wrapped.yaml")
    printed = words_of(result.stdout)

    assert result.exit_code == 1
    assert printed.startswith(
        f"{FOLDER / 'trl_wrapped.yaml'}: 1 finding in this configuration of trl: 1 certain HM120 certain:"
    )
    assert "trl_wrapped.yaml:7:1 packing_strategy = wrapped" in printed
    assert "hermetic explain HM120" in printed


def test_what_is_sound_is_exit_code_0_and_says_what_was_understood():
    result = invoke(FOLDER / "trl_flash_sound.yaml")

    assert result.exit_code == 0
    assert "trl_flash_sound.yaml: sound: nothing found in this configuration of trl" in words_of(result.stdout)
    assert "attention         flash_attention_2" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected one thing to audit"),
        (["missing.yaml"], "HE730: missing.yaml is not there"),
        ([FOLDER / "trl_wrapped.yaml", FOLDER / "trl_defaults.yaml"], "2 files to audit were named"),
        ([FOLDER / "trl_wrapped.yaml", "--batch", "b.npz"], "expected one thing to audit"),
        ([FOLDER / "trl_wrapped.yaml", "--stack", "nemo"], "stack 'nemo' is unknown"),
        ([FOLDER / "trl_wrapped.yaml", "--with", "trl"], "--with trl names no version"),
        ([FOLDER / "trl_wrapped.yaml", "--with", "trl==new"], "version 'new' is no version"),
        ([FOLDER / "trl_wrapped.yaml", "--ignore", "HM999"], "--ignore HM999 is no rule's code"),
        ([FOLDER / "trl_wrapped.yaml", "--ignore", "packing"], "--ignore PACKING is no rule's code"),
    ],
)
def test_what_cannot_be_audited_is_exit_code_2_and_nothing_on_stdout(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in words_of(result.stderr)


def test_json_is_one_object_that_is_the_report():
    result = invoke(FOLDER / "trl_defaults.yaml", "--json", "--with", "trl==1.16.0", "--with", "transformers==5.24.0")
    report = audit_config(FOLDER / "trl_defaults.yaml", versions={"trl": "1.16.0", "transformers": "5.24.0"})

    assert result.exit_code == 1
    assert AuditReport.from_dict(json.loads(result.stdout)) == report
    assert result.stdout.count("\n") == 1


def test_a_command_goes_after_two_dashes_with_all_its_options():
    result = invoke("--json", "--", "trl", "sft", "--packing", "--packing_strategy", "wrapped", "--max_length", "9")
    report = json.loads(result.stdout)

    assert (report["kind"], report["subject"]) == (
        "command",
        "trl sft --packing --packing_strategy wrapped --max_length 9",
    )
    assert [finding["code"] for finding in report["findings"]] == ["HM120"]


def test_a_code_that_is_ignored_is_no_finding_and_is_counted():
    ignored = invoke(FOLDER / "trl_wrapped.yaml", "--ignore", "hm120")
    both = invoke(FOLDER / "axolotl_texts.yaml", "--ignore", "HM420", "--ignore", "HM520", "--json")
    one = invoke(FOLDER / "axolotl_texts.yaml", "--ignore", "HM420", "--json")

    assert (ignored.exit_code, both.exit_code, one.exit_code) == (0, 0, 1)
    assert "sound: nothing found but 1 ignored in this configuration" in words_of(ignored.stdout)
    assert "Findings that were ignored, as asked: 1 of HM120." in words_of(ignored.stdout)
    assert json.loads(both.stdout)["ignored"] == {"HM420": 1, "HM520": 1}
    assert [finding["code"] for finding in json.loads(one.stdout)["findings"]] == ["HM520"]


def test_sarif_and_a_page_are_written_beside_what_is_printed(tmp_path):
    sarif, page = tmp_path / "found.sarif", tmp_path / "found.html"
    result = invoke(FOLDER / "trl_wrapped.yaml", "--sarif", sarif, "--html", page)

    assert result.exit_code == 1
    assert [one["ruleId"] for one in json.loads(sarif.read_text())["runs"][0]["results"]] == ["HM120"]
    assert "HM120" in page.read_text(encoding="utf-8")
    assert invoke(FOLDER / "trl_wrapped.yaml", "--sarif", tmp_path / "no" / "where.sarif").exit_code == 2


def test_sarif_is_printed_alone_for_a_dash_and_never_beside_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = invoke(FOLDER / "trl_wrapped.yaml", "--sarif", "-")

    assert printed.exit_code == 1
    assert [one["ruleId"] for one in json.loads(printed.stdout)["runs"][0]["results"]] == ["HM120"]
    assert list(tmp_path.iterdir()) == []
    assert invoke(FOLDER / "trl_wrapped.yaml", "--sarif", "-", "--json").exit_code == 2


def test_every_kind_of_finding_is_shown_with_its_place_its_value_and_its_way_out():
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name != "expected.yaml":
            report = audit_config(path)
            printed = words_of(shown(report))
            for finding in report.findings:
                assert all(words_of(part) in printed for part in (finding.code, finding.what, finding.way_out))
                assert f"{finding.place} = {finding.value}" in printed
                assert (finding.versions or "") in printed


def report_of(*findings, **fields):
    return AuditReport(subject="s", kind="configuration", stack="trl", findings=findings, **fields)


def finding(line=1, **fields):
    place = Place(key="packing", file="f.yaml", line=line, column=1)
    plain = {"code": "HM120", "certainty": "certain", "what": "w", "place": place, "value": "v", "way_out": "o"}
    return AuditFinding(**plain | fields)


def test_what_is_said_of_many_places_is_said_once_with_the_first_of_them():
    printed = shown(report_of(*(finding(line) for line in range(1, 8))))

    assert printed.count("certain: w") == 1
    assert [f"f.yaml:{line}:1 " in printed for line in range(1, 8)] == [True] * 4 + [False] * 3
    assert "and 3 more places" in printed
    assert "7 findings" in printed


def test_nothing_of_a_file_steers_the_terminal_or_is_markup():
    hostile = finding(what="[red]x[/red]\x1b[2J\x07", value="\x1b]0;title\x07")
    printed = shown(report_of(hostile, notes=("\x1b[31m",), facts=(("packing\r", "a\nb"),)))

    assert not set(printed) & {"\x1b", "\x07", "\r"}
    assert r"[red]x[/red]\x1b[2J\x07" in printed
    assert r"a\nb" in printed


def test_a_report_prints_in_a_narrow_terminal():
    assert "HM120" in shown(audit_config(FOLDER / "trl_wrapped.yaml"), width=20)


def test_a_file_with_a_batch_and_a_script_go_through_the_same_command(tmp_path):
    batch, script = tmp_path / "batch.json", tmp_path / "train.py"
    batch.write_text('{"input_ids": [[1, 2, 3, 4]], "position_ids": [[0, 1, 0, 1]], "labels": [[-100, 2, 3, 4]]}')
    script.write_text(
        "from trl import SFTConfig\nconfig = SFTConfig(packing=True, packing_strategy='wrapped', max_length=9)\n"
    )
    of_batch, of_option, of_script = (
        json.loads(invoke(*arguments, "--json").stdout) for arguments in ([batch], ["--batch", batch], [script])
    )

    assert (of_batch["kind"], of_script["kind"]) == ("batch", "script")
    assert of_batch["findings"] == of_option["findings"]
    assert {one["code"] for one in of_batch["findings"]}
    assert "HM120" in {one["code"] for one in of_script["findings"]}


def test_a_copy_of_a_configuration_elsewhere_is_told_the_same(tmp_path):
    for path in FOLDER.glob("*_wrapped.yaml"):
        copied = Path(shutil.copy(path, tmp_path))
        assert [one.code for one in audit_config(copied).findings] == [one.code for one in audit_config(path).findings]
