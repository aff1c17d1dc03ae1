"""`hermetic atlas`: what it prints and writes, and that only a sealed model that fails is exit code 1."""

import dataclasses
import io
import json
from importlib import import_module

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hermetic.atlas import page, survey
from hermetic.cli import common

measuring = import_module("hermetic.atlas.survey")  # the package's attribute of this name is the function


def run(*arguments):
    return CliRunner().invoke(common.app, ["atlas", *map(str, arguments)])


@pytest.fixture(scope="module")
def of_opt():
    return survey(["opt"])


@pytest.fixture
def state(tmp_path, of_opt):
    """A finished survey of one type, so that commands need not measure anything."""
    path = tmp_path / "state.json"
    path.write_text(json.dumps(of_opt.to_dict()))
    return path


def with_verdict_of_sealed(state, verdict):
    told = json.loads(state.read_text())
    told["rows"] = [row | ({"verdict": verdict} if row["way"] == "sealed" else {}) for row in told["rows"]]
    state.write_text(json.dumps(told))


def test_a_leak_as_shipped_is_shown_and_is_no_failure(state):
    result = run("opt", "--state", state)
    assert result.exit_code == 0
    assert result.stderr == ""
    shown = [line for line in result.stdout.splitlines() if "sdpa" in line]
    assert [word for line in shown for word in line.split() if word.isalpha()] == ["opt", "sdpa", *["leak"] * 4, "ok"]
    assert "1 of 1 types were built and run." in result.stdout


def test_json_is_the_survey_and_nothing_else(state, of_opt):
    result = run("opt", "--state", state, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert json.loads(result.stdout) == json.loads(json.dumps(of_opt.to_dict()))


def test_the_page_is_written_whole_beside_what_is_printed(state, tmp_path, of_opt):
    target = tmp_path / "atlas.md"
    result = run("opt", "--state", state, "--markdown", target)
    assert result.exit_code == 0
    assert target.read_text() == page(of_opt)
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "atlas.md"}


@pytest.mark.parametrize("verdict", ["leak", "changed"])
def test_a_sealed_model_that_fails_is_named_and_exit_code_1(state, tmp_path, verdict):
    with_verdict_of_sealed(state, verdict)
    result = run("opt", "--state", state, "--markdown", tmp_path / "atlas.md")
    assert result.exit_code == 1
    assert f"sealed and unsound: opt (eager): {verdict}" in result.stdout
    assert (tmp_path / "atlas.md").is_file()
    assert run("opt", "--state", state, "--json").exit_code == 1


def test_a_model_that_the_seal_refused_is_no_failure_and_without_the_seal_nothing_can_be(state):
    with_verdict_of_sealed(state, "refused")
    assert run("opt", "--state", state).exit_code == 0
    with_verdict_of_sealed(state, "leak")
    result = run("opt", "--state", state, "--no-sealed")
    assert result.exit_code == 0
    assert "running positions: " in result.stdout
    assert "sealed: " not in result.stdout


def test_an_unknown_type_is_wrong_usage_and_names_the_closest():
    result = run("opt", "lama")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("HE710: model type is 'lama'; ")
    assert result.stderr.endswith("the closest is 'llama'\n")


def test_a_page_that_cannot_be_written_and_a_state_of_something_else_are_refused_before_anything_is_measured(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(measuring, "survey_type", lambda *_: pytest.fail("was measured"))
    nowhere = run("opt", "--markdown", tmp_path / "none" / "atlas.md")
    assert (nowhere.exit_code, nowhere.stderr.split(": ")[0]) == (2, "HE710")
    (tmp_path / "state.json").write_text("[]")
    other = run("opt", "--state", tmp_path / "state.json")
    assert (other.exit_code, other.stderr.split(": ")[0]) == (2, "HE710")


def test_progress_is_a_bar_on_a_terminal_and_nothing_in_a_log_file_or_beside_json(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(common, "log_console", Console(file=shown, force_terminal=True, width=80))
    with common.bar(quiet=False) as on_type:
        on_type("opt", 1, 4)
    assert all(part in shown.getvalue() for part in ("1/4", "opt"))
    for console, quiet in (
        (Console(file=io.StringIO()), False),
        (Console(file=io.StringIO(), force_terminal=True), True),
    ):
        monkeypatch.setattr(common, "log_console", console)
        with common.bar(quiet=quiet) as on_type:
            on_type("opt", 1, 4)
        assert console.file.getvalue() == ""


def test_types_are_measured_once_and_kept_in_the_state(tmp_path, monkeypatch, of_opt):
    asked = []

    def survey_type(model_type, ways):
        asked.append(model_type)
        return [dataclasses.replace(row, model_type=model_type) for row in of_opt.rows if row.way in ways]

    monkeypatch.setattr(measuring, "survey_type", survey_type)
    state = tmp_path / "state.json"
    assert run("opt", "mamba", "--state", state).exit_code == 0
    assert run("opt", "llama", "--state", state).exit_code == 0
    assert asked == ["opt", "mamba", "llama"]
