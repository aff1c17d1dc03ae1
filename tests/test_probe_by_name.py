"""``hermetic probe`` takes a model type in the place of a folder, and says that it did."""

import json

import pytest
from typer.testing import CliRunner

from hermetic.atlas import build_tiny, model_types, tiny_by_name
from hermetic.cli import app
from hermetic.errors import AtlasError


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(app, ["probe", *arguments])


def test_a_bare_model_type_is_a_tiny_random_model_and_the_report_says_so():
    shown = run("llama")

    assert shown.exit_code == 0
    assert shown.stdout.startswith("a tiny random llama (LlamaForCausalLM): sealed\n")
    assert "note: llama is a model type here, not a folder" in shown.stdout


def test_options_hold_for_it_as_for_any_model():
    leaking, sealed = (run("opt", *options, "--json") for options in ((), ("--seal",)))

    assert (leaking.exit_code, sealed.exit_code) == (1, 0)
    for result, verdict in ((leaking, "leak"), (sealed, "sealed")):
        report = json.loads(result.stdout)
        assert (report["subject"], report["verdict"]) == ("a tiny random opt (OPTForCausalLM)", verdict)
        assert "opt is a model type here" in report["note"][-1]
    assert tiny_by_name("llama", attention="eager").config._attn_implementation == "eager"


def test_a_folder_of_that_name_wins(tmp_path):
    build_tiny("opt").save_pretrained(tmp_path / "llama")

    report = json.loads(run("llama", "--json").stdout)

    assert tiny_by_name("llama") is None
    assert (report["subject"], report["note"]) == ("OPTForCausalLM", [])


def test_a_name_that_is_neither_is_refused_with_those_spelled_most_like_it():
    asked = run("qwen_next")

    assert (asked.exit_code, asked.stdout) == (2, "")
    assert "HE710: 'qwen_next' is no folder here and no model type" in asked.stderr
    assert "; closest: qwen3_next, " in asked.stderr
    with pytest.raises(AtlasError, match=r"model_types\(\)$"):
        tiny_by_name("xyzzy")


@pytest.mark.parametrize("place", ["./llama", "~/llama", "owner/llama", "/nowhere/llama"])
def test_paths_and_hub_ids_are_not_taken_for_types(place):
    assert "llama" in model_types()
    assert tiny_by_name(place) is None


@pytest.mark.parametrize(("name", "closest"), [("nomodel", "olmoe"), ("lama", "llama, ")])
def test_one_that_is_like_it_and_several_are_named_without_a_verb_that_fits_only_one_of_them(name, closest):
    with pytest.raises(AtlasError, match=rf"one of hermetic.atlas.model_types\(\); closest: {closest}"):
        tiny_by_name(name)
