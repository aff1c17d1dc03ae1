"""``hermetic plan``: what it prints, what it writes, and its exit codes."""

import json
import re

import pytest
from typer.testing import CliRunner

from hermetic.cli import common
from hermetic.plan import Plan, plan_rows
from hermetic.plan.arguments import STRATEGIES

LENGTHS = [6, 4, 3, 3, 2, 2, 0]


@pytest.fixture
def lengths_file(tmp_path):
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(LENGTHS))
    return path


def run(*arguments):
    return CliRunner().invoke(common.app, ["plan", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(autouse=True)
def _wide_consoles(monkeypatch):
    monkeypatch.setattr(common.out_console, "width", 200)
    monkeypatch.setattr(common.log_console, "width", 200)


def test_a_sound_plan_is_shown_with_its_bound_and_exits_with_0(lengths_file):
    result = run(lengths_file, "--capacity", 10)
    lines = [" ".join(line.strip("│").replace("│", " ").split()) for line in result.stdout.splitlines()]
    assert result.exit_code == 0, result.output
    for line in (
        "read from list",
        "documents (empty) 7 (1)",
        "tokens of a document 1 █ 16",
        "strategy, policy best_fit_decreasing, error",
        "utilization 100.000%",
        "rows (lower bound) 2 (2)",
        "gap no plan has fewer",
        "overflow nothing",
    ):
        assert line in lines


def test_the_comparison_names_every_other_way_with_its_rows(lengths_file):
    result = run(lengths_file, "--capacity", 10, "--compare")
    rows = {
        line.split("│")[1].strip(): line.split("│")[2].strip() for line in result.stdout.splitlines() if "│" in line
    }
    assert rows["this plan: best_fit_decreasing"] == "2"
    assert rows["padding: every document in a row of its own"] == "6"
    assert rows["next_fit: documents in their order"] == "2"
    assert rows["best fit in windows of 1,000, as TRL's default"] == "2"


@pytest.mark.parametrize(
    ("policy", "code", "cost"),
    [
        ("truncate", 1, "1 documents truncated, 2 tokens lost"),
        ("drop", 1, "1 documents dropped, 6 tokens lost"),
        ("split", 0, "1 documents cut into 2 fragments, no token lost"),
    ],
)
def test_a_lost_token_is_a_finding_and_exits_with_1(lengths_file, policy, code, cost):
    result = run(lengths_file, "--capacity", 4, "--on-overflow", policy)
    assert result.exit_code == code
    assert cost in result.stdout


def test_json_holds_every_number_and_nothing_else_stands_on_stdout(lengths_file):
    result = run(lengths_file, "--capacity", 4, "--on-overflow", "split", "--compare", "--json")
    summary = json.loads(result.stdout)
    plan = plan_rows(LENGTHS, 4, on_overflow="split")
    assert summary["rows"] == plan.num_rows
    assert summary["lower_bound"] == plan.lower_bound
    assert summary["utilization"] == plan.utilization
    assert len(summary["alternatives"]) == 3
    assert result.stderr == ""


def test_the_options_reach_the_plan_that_is_saved(lengths_file, tmp_path):
    options = ("--strategy", "next_fit", "--max-documents-per-row", 2, "--seed", 5)
    result = run(lengths_file, "--capacity", 10, *options, "--save", tmp_path / "plan.npz")
    assert result.exit_code == 0
    assert "next_fit, error, at most 2 in a row" in result.stdout
    expected = plan_rows(LENGTHS, 10, strategy="next_fit", max_documents_per_row=2, seed=5)
    assert Plan.load(tmp_path / "plan.npz") == expected


def test_align_and_the_time_limit_reach_the_plan(lengths_file, tmp_path):
    options = ("--align", 4, "--strategy", "optimal", "--time-limit", 5, "--save", tmp_path / "plan.npz")
    result = run(lengths_file, "--capacity", 12, *options)
    assert result.exit_code == 0
    assert "optimal, error, in multiples of 4" in result.stdout
    assert Plan.load(tmp_path / "plan.npz") == plan_rows(LENGTHS, 12, align=4, strategy="optimal", time_limit=5)


def test_a_histogram_that_states_its_capacity_needs_no_option(tmp_path):
    path = tmp_path / "histogram.json"
    path.write_text(json.dumps({"capacity": 10, "counts": [0, 2, 2, 1, 0, 1]}))
    result = run(path, "--align", 2, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == plan_rows(LENGTHS, 10, align=2).num_rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "HE600: .* states no capacity"),
        (("--capacity", "5"), "HE101: document 0 has 6 tokens and a row holds 5"),
        (("--capacity", "0"), "HE100: capacity is 0"),
        (("--capacity", "10", "--strategy", "x"), "HE100: strategy is 'x'; expected one of"),
        (("--capacity", "10", "--on-overflow", "x"), "HE100: on_overflow is 'x'; expected one of"),
        (("--capacity", "10", "--align", "3"), "HE100: align is 3 and does not divide the capacity 10"),
        (("--capacity", "10", "--time-limit", "3"), "HE100: time_limit is 3.0, but strategy 'best_fit_decreasing'"),
        (("--capacity", "10", "--column", "x"), "HE601: .* has no columns"),
        (("--capacity", "10", "--save", "no folder/plan.npz"), "HE103: cannot write a plan to"),
    ],
)
def test_wrong_usage_is_explained_on_stderr_and_exits_with_2(lengths_file, arguments, message):
    result = run(lengths_file, *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.search(message, result.stderr)


def test_the_help_names_every_strategy_and_shows_an_example():
    text = " ".join(run("--help").stdout.replace("│", " ").split())
    assert "Example: hermetic plan lengths.npy --capacity 4096 --compare" in text
    assert [name for name in STRATEGIES if name not in text] == []
