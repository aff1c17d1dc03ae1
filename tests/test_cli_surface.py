"""The commands and options are frozen; help has an example; wrong usage is exit code 2."""

import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from hermetic.cli import app

COMMON = {"--help", "-h"}
SURFACE = {
    "demo": {"--json"},
    "plan": {
        "--capacity",
        "--column",
        "--strategy",
        "--on-overflow",
        "--max-documents-per-row",
        "--seed",
        "--align",
        "--time-limit",
        "--compare",
        "--save",
        "--json",
    },
    "pack": {
        "--tokenizer",
        "--capacity",
        "--out",
        "--strategy",
        "--on-overflow",
        "--train-on",
        "--on-bad-record",
        "--seed",
        "--format",
        "--today",
        "--workers",
        "--engine",
        "--html",
        "--trust-remote-code",
        "--no-trust-remote-code",
        "--json",
    },
    "inspect": {
        "--show",
        "--check",
        "--duplicates",
        "--threshold",
        "--tokenizer",
        "--seed",
        "--html",
        "--trust-remote-code",
        "--no-trust-remote-code",
        "--json",
    },
    "export": {"--to", "--out", "--json"},
    "show": {
        "--lengths",
        "--row",
        "--window",
        "--chunk",
        "--causal",
        "--no-causal",
        "--reader",
        "--tokenizer",
        "--svg",
        "--png",
        "--json",
    },
    "audit": {
        "--batch",
        "--stack",
        "--with",
        "--tokenizer",
        "--duplicates",
        "--ignore",
        "--sarif",
        "--html",
        "--json",
    },
    "explain": {"--list", "--json"},
    "probe": {
        "--seal",
        "--attention",
        "--backend",
        "--layers",
        "--html",
        "--trust-remote-code",
        "--no-trust-remote-code",
        "--json",
    },
    "doctor": {"--timeout", "--html", "--json"},
    "train": {
        "--model",
        "--data",
        "--capacity",
        "--out",
        "--pack",
        "--no-pack",
        "--lora",
        "--epochs",
        "--max-steps",
        "--rows-per-batch",
        "--accumulation-steps",
        "--learning-rate",
        "--gradient-checkpointing",
        "--seed",
        "--on-overflow",
        "--backend",
        "--bf16",
        "--trust-remote-code",
        "--no-trust-remote-code",
        "--json",
    },
    "compare": {
        "--data",
        "--model",
        "--capacity",
        "--heldout",
        "--seeds",
        "--arms",
        "--steps",
        "--epochs",
        "--rows-per-batch",
        "--accumulation-steps",
        "--learning-rate",
        "--bf16",
        "--on-overflow",
        "--backend",
        "--out",
        "--html",
        "--trust-remote-code",
        "--no-trust-remote-code",
        "--json",
    },
    "atlas": {"--sealed", "--no-sealed", "--markdown", "--state", "--json"},
}
ARGUMENTS = {
    "demo": [],
    "plan": ["lengths"],
    "pack": ["sources"],
    "inspect": ["folder"],
    "export": ["folder"],
    "show": ["subject"],
    "audit": ["target"],
    "explain": ["code"],
    "probe": ["model"],
    "doctor": ["command"],
    "train": [],
    "compare": [],
    "atlas": ["types"],
}


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def commands():
    return typer.main.get_command(app).commands


def test_the_commands_options_and_arguments_are_these():
    found, arguments = {}, {}
    for name, command in commands().items():
        options = [p for p in command.params if p.param_type_name == "option"]
        found[name] = {flag for p in options for flag in (*p.opts, *p.secondary_opts)} - COMMON
        arguments[name] = [p.name for p in command.params if p.param_type_name == "argument"]
    assert found == SURFACE
    assert arguments == ARGUMENTS


@pytest.mark.parametrize("command", SURFACE)
def test_help_shows_every_option_whole_and_an_example(command):
    for flag in ("--help", "-h"):
        result = run(command, flag)
        assert result.exit_code == 0
        assert f"Example: hermetic {command}" in result.stdout
        assert all(option in result.stdout for option in SURFACE[command])
        assert "…" not in result.stdout


def test_the_help_of_all_names_each_command_with_a_whole_sentence():
    result = run("--help")
    listed = result.stdout.split("Commands:")[1].strip().splitlines()
    assert result.exit_code == 0
    assert [line.split()[0] for line in listed] == list(SURFACE)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nope"],
        ["plan"],
        ["pack"],
        ["train"],
        ["compare"],
        ["inspect"],
        ["inspect", "packed", "--check", "--duplicates"],
        ["inspect", "packed", "--check", "--show", "1"],
        ["inspect", "packed", "--check", "--html", "page.html"],
        ["export", "packed", "--to", "trl"],
        ["explain"],
        ["explain", "HM101", "--list"],
        ["probe"],
        ["doctor"],
        ["pack", "chats.jsonl", "--tokenizer", "model", "--capacity", "many", "--out", "packed"],
        ["demo", "--nope"],
        ["inspect", "one", "two"],
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_nothing_on_stdout_but_help(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stdout + result.stderr
    if arguments:
        assert result.stdout == ""


def test_the_installed_command_answers():
    asked = subprocess.run(
        [sys.executable, "-c", "from hermetic.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pack, seal, prove, train" in asked.stdout
    assert asked.stderr == ""
