"""--html of the commands that pack, inspect and diagnose; those of probe and compare stand with their other options."""

import json

import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, write_jsonl
from pages import objections, text_of
from reports import a_diagnosis
from typer.testing import CliRunner

import hermetic.doctor
from hermetic.cli import app


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def pack(tmp_path):
    source = write_jsonl(tmp_path / "chats.jsonl", [CHAT] * 6)
    return ["pack", source, "--tokenizer", DEMO_TOKENIZER, "--capacity", 128, "--out", tmp_path / "packed"]


def test_pack_and_inspect_write_the_same_page_and_print_what_they_print_without_it(tmp_path, pack):
    packed = run(*pack, "--html", tmp_path / "pack.html", "--json")
    assert packed.exit_code == 0
    assert json.loads(packed.stdout)["documents_placed"] == 6
    inspect = ["inspect", tmp_path / "packed"]
    shown, with_page = run(*inspect), run(*inspect, "--html", tmp_path / "inspect.html", "--tokenizer", DEMO_TOKENIZER)
    assert shown.exit_code == with_page.exit_code == 0
    assert shown.stdout == with_page.stdout
    page = (tmp_path / "pack.html").read_text()
    assert page == (tmp_path / "inspect.html").read_text()
    assert objections(page) == []
    assert "6 documents in" in text_of(page)
    assert "<|user|>What is" in text_of(page)  # texts, for the tokenizer is known

    run(*inspect, "--html", tmp_path / "ids.html", "--json")
    assert "<|user|>" not in text_of((tmp_path / "ids.html").read_text())


def test_a_place_where_no_page_can_be_written_is_refused_before_anything_is_done(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(hermetic.doctor, "diagnose", pytest.fail, raising=False)
    for command in (pack, ["inspect", tmp_path], ["doctor", "--html", "*", "true"], ["compare", "--data", "nope"]):
        place = tmp_path / "nope" / "page.html"
        arguments = [place if one == "*" else one for one in command]
        result = run(*arguments, *([] if "*" in command else ["--html", place]))
        assert result.exit_code == 2
        assert "HE740: a report cannot be written to" in result.stderr
    assert not (tmp_path / "packed").exists()


def test_the_doctor_writes_its_page_and_keeps_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(hermetic.doctor, "diagnose", lambda *_, **__: a_diagnosis(), raising=False)
    result = run("doctor", "--html", tmp_path / "doctor.html", "--json", "--", "python", "train.py")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["model"] == "text"
    assert "hermetic doctor" in text_of((tmp_path / "doctor.html").read_text())


def test_what_was_found_is_said_though_its_page_cannot_be_written(tmp_path, pack, monkeypatch):
    """The disk may be full by then, and the run may have taken minutes."""
    monkeypatch.setattr(hermetic.doctor, "diagnose", lambda *_, **__: a_diagnosis(), raising=False)
    assert run(*pack).exit_code == 0
    (tmp_path / "train.yaml").write_text("max_length: 9\npacking: true\npacking_strategy: wrapped\n")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hermetic.report.write.write_text", full)
    page = ["--html", tmp_path / "page.html"]
    said = {
        "text: leak": run("doctor", *page, "--", "python", "train.py"),
        "HM120": run("audit", tmp_path / "train.yaml", *page),
        "utilization": run("inspect", tmp_path / "packed", *page),
    }
    for words, result in said.items():
        assert result.exit_code == 2
        assert words in result.stdout
        assert "HE740: the report cannot be written to" in result.stderr


def test_terminal_json_and_page_all_say_which_call_of_a_model_that_is_not_sealed_was_probed(tmp_path):
    said = "Called otherwise it may leak"
    shown, as_json = run("probe", "llama", "--html", tmp_path / "page.html"), run("probe", "llama", "--json")
    page = (tmp_path / "page.html").read_text()

    assert shown.stdout.count(said) == 1
    assert said in json.loads(as_json.stdout)["scope"]
    assert said in page
    assert "No document reaches another" not in page
    sealed = run("probe", "llama", "--seal", "--html", tmp_path / "sealed.html").stdout
    assert "Probed after hermetic.seal" in sealed
    assert said not in sealed + (tmp_path / "sealed.html").read_text()
