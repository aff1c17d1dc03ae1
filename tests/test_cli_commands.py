"""What the commands print and with which exit code: 0 sound, 1 a finding, 2 bad input."""

import json
import os
import subprocess
import sys

import pytest
from data_helpers import CHAT, DEMO_TOKENIZER, everything_under, tokenizer_folder, write_jsonl
from train_helpers import model_folder, only_json, token_file
from typer.testing import CliRunner

import hermetic.demo.run
from hermetic.cli import app
from hermetic.data import pack_sources
from hermetic.demo.run import DemoSize
from hermetic.train import TrainSettings


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("lfm2"), "lfm2")


@pytest.fixture
def chats(tmp_path):
    return write_jsonl(tmp_path / "chats.jsonl", [CHAT] * 6)


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def pack(source, out, *, capacity=128, tokenizer=DEMO_TOKENIZER, more=()):
    return run("pack", source, "--tokenizer", tokenizer, "--capacity", capacity, "--out", out, *more)


def refused(result, match, *, code, exit_code=2):
    """One line on stderr, nothing on stdout."""
    assert result.exit_code == exit_code
    assert result.stdout == ""
    assert result.stderr.startswith(f"{code}: ")
    assert result.stderr.count("\n") == 1
    assert match in result.stderr


# pack


def test_packing_shows_what_the_folder_holds(tmp_path, chats):
    result = pack(chats, tmp_path / "packed")
    assert result.exit_code == 0
    assert "utilization" in result.stdout
    assert result.stderr == ""
    assert (tmp_path / "packed" / "manifest.json").is_file()


def test_packing_as_json_prints_the_manifest_and_nothing_else(tmp_path, chats):
    result = pack(chats, tmp_path / "packed", more=["--json"])
    assert result.exit_code == 0
    assert only_json(result.stdout) == json.loads((tmp_path / "packed" / "manifest.json").read_text())
    assert result.stderr == ""


def test_options_of_packing_reach_the_manifest(tmp_path):
    data = token_file(tmp_path / "documents.jsonl", [5, 9, 3])
    more = ["--json", "--strategy", "next_fit", "--on-overflow", "truncate", "--seed", "7"]
    manifest = only_json(pack(data, tmp_path / "packed", capacity=8, more=more).stdout)
    found = [manifest[name] for name in ("strategy", "on_overflow", "seed", "tokens_lost")]
    assert found == ["next_fit", "truncate", 7, 1]


def test_a_missing_source_is_bad_input(tmp_path):
    result = pack(tmp_path / "nope.jsonl", tmp_path / "packed")
    refused(result, "nope.jsonl does not exist", code="HE601")


def test_malformed_json_is_shown_with_file_and_line(tmp_path, chats):
    with chats.open("a") as file:
        file.write('{"messages": [\n')
    result = pack(chats, tmp_path / "packed")
    refused(result, f"{chats}:7: malformed JSON", code="HE601")
    assert everything_under(tmp_path) == ["chats.jsonl"]


def test_a_name_of_a_file_that_would_steer_the_terminal_is_shown_as_an_escape(tmp_path):
    source = tmp_path / "bad\x1b[31m\x07é.jsonl"
    source.write_text('{"text":\n')
    result = pack(source, tmp_path / "packed")
    refused(result, "bad\\x1b[31m\\x07é.jsonl:1: malformed JSON", code="HE601")
    assert "\x1b[31m" not in result.stderr


def test_a_capacity_of_0_is_bad_input(tmp_path, chats):
    refused(pack(chats, tmp_path / "packed", capacity=0), "capacity is 0", code="HE100")


def test_a_tokenizer_without_a_chat_template_is_bad_input(tmp_path, chats):
    tokenizer = tokenizer_folder(tmp_path / "tokenizer", chat_template=None)
    result = pack(chats, tmp_path / "packed", tokenizer=tokenizer)
    refused(result, "chat template", code="HE603")
    assert not (tmp_path / "packed").exists()


def test_a_document_that_is_too_long_is_bad_input_with_the_ways_out(tmp_path, chats):
    result = pack(chats, tmp_path / "packed", capacity=8)
    refused(result, f"{chats}:1: document 0 has ", code="HE101")
    assert "by on_overflow (--on-overflow on the command line): 'truncate' keeps the first 8 tokens" in result.stderr
    assert "too long: " in result.stderr
    assert everything_under(tmp_path) == ["chats.jsonl"]


def test_an_unknown_policy_and_an_unknown_strategy_are_bad_input(tmp_path, chats):
    refused(pack(chats, tmp_path / "packed", more=["--on-overflow", "hope"]), "'hope'", code="HE100")
    refused(pack(chats, tmp_path / "packed", more=["--strategy", "hope"]), "'hope'", code="HE100")


# inspect


def test_a_sound_folder_is_exit_code_0(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    shown, as_json = run("inspect", tmp_path / "packed"), run("inspect", tmp_path / "packed", "--json")
    assert shown.exit_code == as_json.exit_code == 0
    assert "documents placed" in shown.stdout
    assert only_json(as_json.stdout)["documents"] == 6
    assert shown.stderr == as_json.stderr == ""


def test_skipped_records_are_a_finding(tmp_path, chats):
    with chats.open("a") as file:
        file.write('{"input_ids": []}\n')
    pack(chats, tmp_path / "packed", more=["--on-bad-record", "skip"])
    shown = run("inspect", tmp_path / "packed")
    assert shown.exit_code == 1
    assert "records skipped, empty" in shown.stdout


def test_lost_tokens_are_a_finding(tmp_path):
    data = token_file(tmp_path / "documents.jsonl", [5, 9, 3])
    pack_sources(data, tmp_path / "packed", tokenizer=DEMO_TOKENIZER, capacity=8, on_overflow="truncate")
    shown, as_json = run("inspect", tmp_path / "packed"), run("inspect", tmp_path / "packed", "--json")
    assert shown.exit_code == as_json.exit_code == 1
    assert only_json(as_json.stdout)["manifest"]["tokens_lost"] == 1


def test_a_damaged_folder_and_no_folder_are_bad_input(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    rows = next((tmp_path / "packed").glob("*.arrow"))
    rows.write_bytes(rows.read_bytes()[:-1] + b"?")
    refused(run("inspect", tmp_path / "packed"), "is damaged", code="HE604")
    refused(run("inspect", tmp_path / "nope"), "has no manifest.json", code="HE604")


def test_rows_are_shown_as_text_or_as_one_json_object(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    with_text = ["inspect", tmp_path / "packed", "--show", 2, "--tokenizer", DEMO_TOKENIZER]
    shown, as_json, ids = run(*with_text), run(*with_text, "--json"), run("inspect", tmp_path / "packed", "--show", 1)
    assert shown.exit_code == as_json.exit_code == ids.exit_code == 0
    assert "▌ You are welcome.<|end|>" in shown.stdout
    assert "chats.jsonl:" in shown.stdout
    (row, *_) = only_json(as_json.stdout)["rows"]
    assert "".join(token["text"] for token in row["documents"][0]["tokens"]).startswith("<|user|>What is 2 plus 3?")
    assert "welcome" not in ids.stdout
    assert shown.stderr == as_json.stderr == ids.stderr == ""
    refused(run("inspect", tmp_path / "packed", "--show", 0), "rows is 0, expected at least 1", code="HE600")


def test_a_checked_folder_is_sound_or_a_finding(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    check = ["inspect", tmp_path / "packed", "--check", "--tokenizer", DEMO_TOKENIZER]
    sound = run(*check)
    assert sound.exit_code == 0
    assert sound.stdout.splitlines()[-1] == "sound"
    (tmp_path / "packed" / "state.json").write_text("{}")
    damaged, as_json = run(*check), run(*check, "--json")
    assert damaged.exit_code == as_json.exit_code == 1
    assert "HE604" in damaged.stdout
    failed = [check for check in only_json(as_json.stdout)["checks"] if check["result"] == "failed"]
    assert [(check["code"], "state.json is damaged" in check["found"]) for check in failed] == [("HE604", True)]
    refused(run("inspect", tmp_path / "nope", "--check"), "has no manifest.json", code="HE604")


def test_duplicates_are_a_finding_and_their_absence_is_none(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    find = ["inspect", tmp_path / "packed", "--duplicates"]
    shown, as_json = run(*find, "--tokenizer", DEMO_TOKENIZER), run(*find, "--threshold", 1, "--json")
    assert shown.exit_code == as_json.exit_code == 1
    assert "tokens: <|user|>What" in shown.stdout
    found = only_json(as_json.stdout)
    assert (found["pairs"], found["identical_pairs"], found["clusters"], found["threshold"]) == (15, 15, 1, 1.0)
    refused(run(*find, "--threshold", 0.1), "threshold is 0.1, expected 0.5 to 1", code="HE600")

    pack_sources(token_file(tmp_path / "one.jsonl", [9]), tmp_path / "one", tokenizer=DEMO_TOKENIZER, capacity=16)
    assert run("inspect", tmp_path / "one", "--duplicates").exit_code == 0


# export


def test_exporting_says_in_one_line_or_one_json_object_what_was_written(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    shown = run("export", tmp_path / "packed", "--to", "megatron", "--out", tmp_path / "a")
    as_json = run("export", tmp_path / "packed", "--to", "tokens", "--out", tmp_path / "b", "--json")
    assert shown.exit_code == as_json.exit_code == 0
    assert shown.stdout.count("\n") == 1
    assert f"written as megatron to {tmp_path / 'a'}" in shown.stdout
    assert only_json(as_json.stdout) == json.loads((tmp_path / "b" / "export.json").read_text())
    assert shown.stderr == as_json.stderr == ""


def test_exporting_refuses_bad_input(tmp_path, chats):
    pack(chats, tmp_path / "packed")
    export = ["export", tmp_path / "packed", "--out", tmp_path / "out"]
    refused(run(*export, "--to", "npy"), "expected one of trl, parquet, megatron", code="HE600")
    refused(run("export", tmp_path / "nope", "--out", tmp_path / "out", "--to", "trl"), "no manifest", code="HE604")
    refused(run(*export[:2], "--out", tmp_path / "packed", "--to", "trl"), "is not empty", code="HE604")
    assert not (tmp_path / "out").exists()


# probe


def test_a_sound_model_is_exit_code_0(llama):
    shown, as_json = run("probe", llama), run("probe", llama, "--seal", "--json")
    assert shown.exit_code == as_json.exit_code == 0
    assert "LlamaForCausalLM: sealed" in shown.stdout
    assert only_json(as_json.stdout)["verdict"] == "sealed"
    assert shown.stderr == as_json.stderr == ""


def test_a_leaking_model_is_a_finding(lfm2):
    shown, as_json = run("probe", lfm2), run("probe", lfm2, "--json")
    assert shown.exit_code == as_json.exit_code == 1
    assert "Lfm2ForCausalLM: " in shown.stdout
    assert only_json(as_json.stdout)["verdict"] != "sealed"


@pytest.mark.parametrize("family", ["gpt_oss", "lfm2"])
def test_a_model_that_leaks_until_it_is_sealed_is_sealed_by_the_option(tmp_path, family):
    folder = model_folder(tmp_path / "model", family)
    leaking = run("probe", folder, "--json")
    sealed = run("probe", folder, "--seal", "--backend", "reference", "--json")
    assert (leaking.exit_code, sealed.exit_code) == (1, 0)
    assert only_json(leaking.stdout)["verdict"] == "leak"
    assert only_json(sealed.stdout)["verdict"] == "sealed"


def test_a_page_has_the_tokens_and_layers_that_the_report_then_has_too(tmp_path, llama):
    result = run("probe", llama, "--layers", "--html", tmp_path / "report.html", "--json")
    report = only_json(result.stdout)
    page = (tmp_path / "report.html").read_text()
    assert result.exit_code == 0
    assert [layer["influence"] for layer in report["layers"]] == [0.0] * len(report["layers"]) != []
    assert len(report["reach"]) == sum(report["lengths"])
    assert "Which token reaches which" in page
    assert report["layers"][0]["name"] in page

    plain = only_json(run("probe", llama, "--json").stdout)
    assert plain["layers"] is plain["reach"] is None
    refused(run("probe", llama, "--html", tmp_path / "nope" / "report.html"), "a folder that exists", code="HE740")


def test_an_attention_implementation_can_be_chosen(llama):
    assert run("probe", llama, "--attention", "eager", "--json").exit_code == 0
    result = run("probe", llama, "--attention", "nope")
    refused(result, "cannot be loaded as a causal language model", code="HE700")


def test_a_model_that_cannot_be_sealed_and_no_model_are_bad_input(tmp_path):
    folder = model_folder(tmp_path / "model", "prophetnet")
    refused(run("probe", folder, "--seal"), "cannot be sealed", code="HE400")
    refused(run("probe", folder, "--seal", "--backend", "hope"), "backend is 'hope'", code="HE301")
    refused(run("probe", tmp_path / "nope"), "nope does not exist; expected a folder with a config", code="HE700")


# train


def train(model, data, out, *more):
    return run("train", "--model", model, "--data", data, "--capacity", 128, "--out", out, *more)


def test_training_says_in_one_line_what_it_did(tmp_path, chats, llama):
    result = train(llama, chats, tmp_path / "tuned")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert "steps over 6 documents in" in result.stdout
    assert f"probe: sealed; written to {tmp_path / 'tuned'}" in result.stdout
    assert result.stderr == ""


def test_training_as_json_prints_the_metrics_and_nothing_else(tmp_path, chats, llama):
    result = train(llama, chats, tmp_path / "tuned", "--json", "--max-steps", 2, "--no-pack")
    metrics = only_json(result.stdout)
    assert result.exit_code == 0
    assert metrics == json.loads((tmp_path / "tuned" / "hermetic_metrics.json").read_text())
    assert (metrics["steps"], metrics["packed"], metrics["verdict"]) == (2, False, None)


def test_options_of_training_reach_the_run(tmp_path, llama):
    data = token_file(tmp_path / "documents.jsonl", [100] * 8)
    common = ["--json", "--epochs", 2, "--rows-per-batch", 2, "--learning-rate", "1e-3", "--seed", 3]
    plain = only_json(train(llama, data, tmp_path / "a", *common, "--gradient-checkpointing").stdout)
    accumulated = only_json(train(llama, data, tmp_path / "b", *common, "--accumulation-steps", 2).stdout)
    adapters = only_json(train(llama, data, tmp_path / "c", *common, "--lora", "--backend", "reference").stdout)
    assert (plain["steps"], accumulated["steps"], adapters["steps"]) == (8, 4, 8)
    assert plain["losses"][0] == pytest.approx(adapters["losses"][0], rel=1e-5)
    assert plain["losses"][-1] != pytest.approx(adapters["losses"][-1], rel=1e-3)
    assert (tmp_path / "c" / "adapter_config.json").is_file()


def test_training_refuses_bad_input(tmp_path, chats, llama):
    refused(train(llama, chats, tmp_path / "tuned", "--epochs", 0), "epochs is 0.0", code="HE700")
    refused(train(llama, chats, tmp_path / "tuned", "--backend", "hope"), "backend is 'hope'", code="HE301")
    refused(train(llama, tmp_path / "nope.jsonl", tmp_path / "tuned"), "does not exist", code="HE601")
    assert everything_under(tmp_path) == ["chats.jsonl"]


# demo


@pytest.fixture
def small_demo(monkeypatch):
    settings = TrainSettings(rows_per_batch=2, learning_rate=3e-3)
    size = DemoSize(conversations=40, heldout=4, settings=settings)
    whole = hermetic.demo.run.run_demo
    monkeypatch.setattr(hermetic.demo.run, "run_demo", lambda *, on_stage: whole(size=size, on_stage=on_stage))


@pytest.mark.usefixtures("small_demo")
def test_the_demo_prints_one_object_as_json_and_a_picture_otherwise():
    shown, as_json = run("demo"), run("demo", "--json")
    assert shown.exit_code == as_json.exit_code == 0
    assert only_json(as_json.stdout)["probe"] == {"naive": "leak", "sealed": "sealed"}
    assert all(arm in shown.stdout for arm in ("padded", "naive", "sealed", "held-out"))
    assert as_json.stderr == ""


# the real thing, in a process of its own, where libraries may print what they like


def test_in_a_process_of_its_own_stdout_is_one_json_object_and_the_folder_it_runs_in_stays_clean(
    tmp_path, chats, llama
):
    here = tmp_path / "here"
    here.mkdir()
    command = ["train", "--model", llama, "--data", chats, "--capacity", "128", "--out", tmp_path / "tuned", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from hermetic.cli import main; main()", *map(str, command)],
        cwd=here,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert only_json(done.stdout)["verdict"] == "sealed"
    assert done.stderr == ""
    assert everything_under(here) == []
