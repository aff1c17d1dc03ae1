"""``hermetic compare`` and the documents that it makes itself."""

import json
import re
from dataclasses import replace
from importlib import import_module

import pytest
import transformers
from data_helpers import DEMO_TOKENIZER, everything_under
from train_helpers import model_folder, only_json, token_file
from typer.testing import CliRunner

from hermetic.cli import app
from hermetic.data import open_packed, pack_sources
from hermetic.demo.near_duplicates import near_duplicates, write_near_duplicates
from hermetic.demo.presets import PRESETS

LENGTHS = [5, 9, 12, 3, 7, 8, 11, 2, 6, 4]


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def questions_and_answers(**options):
    return [tuple(message["content"] for message in one["messages"][1:]) for one in near_duplicates(**options)]


# near-duplicates


def test_near_duplicates_come_in_pairs_that_share_their_answer_and_not_their_question():
    made = questions_and_answers(count=400, seed=0)
    pairs = list(zip(made[::2], made[1::2], strict=True))
    assert len(pairs) == 200
    assert all(first[1] == second[1] and first[0] != second[0] for first, second in pairs)
    assert len({answer for _, answer in made}) == 200, "another pair has another answer"


def test_an_answer_says_more_than_its_question():
    fixed = {"has", "a", "in", "the", "made", "by", "given"}
    for question, answer in questions_and_answers(count=100, seed=0):
        told = set(question.replace("?", "").replace(".", "").split())
        new = [word for word in answer.replace(",", "").replace(".", "").split() if word not in told | fixed]
        assert len(new) == 5


def test_near_duplicates_are_the_same_for_the_same_arguments_and_others_for_others():
    common = {"count": 50, "seed": 0}
    assert questions_and_answers(**common) == questions_and_answers(**common)
    assert questions_and_answers(**common) != questions_and_answers(count=50, seed=1)
    assert questions_and_answers(**common) == questions_and_answers(count=80, seed=0)[:50]
    assert len(questions_and_answers(count=7, seed=0)) == 7


def test_no_pair_that_is_held_out_is_trained_on_whatever_the_seeds():
    train = {answer for seed in (0, 1) for _, answer in questions_and_answers(count=2000, seed=seed)}
    heldout = {answer for _, answer in questions_and_answers(count=400, seed=1, split="heldout")}
    assert len(heldout) == 200
    assert train.isdisjoint(heldout)


def test_the_file_holds_the_conversations_and_the_preset_packs_each_with_its_twin(tmp_path):
    preset = PRESETS["near-duplicates"]
    write_near_duplicates(tmp_path / "a.jsonl", count=60, seed=0)
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == list(
        near_duplicates(count=60, seed=0)
    )
    options = {"tokenizer": DEMO_TOKENIZER, "capacity": preset.capacity}
    pack_sources(tmp_path / "a.jsonl", tmp_path / "packed", **options, **preset.pack_options)
    rows = [row["document_ids"] for row in open_packed(tmp_path / "packed").dataset]
    assert rows == [[first, first + 1] for first in range(0, 60, 2)]


# the command


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model"))


def test_the_command_compares_a_model_folder_and_writes_what_it_was_asked_for(tmp_path, llama):
    source = token_file(tmp_path / "documents.jsonl", LENGTHS)
    before = transformers.utils.logging.get_verbosity()
    common = ["--model", llama, "--data", source, "--capacity", 16, "--steps", 2, "--seeds", 1]
    done = run(*common, "--arms", "naive,sealed", "--out", tmp_path / "out", "--html", tmp_path / "page.html", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    values = only_json(done.stdout)
    assert [arm["name"] for arm in values["arms"]] == ["naive", "sealed"]
    assert values == json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (tmp_path / "page.html").read_text() == (tmp_path / "out" / "comparison.html").read_text()
    assert values["settings"]["max_steps"] == values["steps"] == 2
    assert transformers.utils.logging.get_verbosity() == before


def test_the_command_brings_documents_and_a_model_of_its_own_and_prints_a_table(monkeypatch):
    small = replace(PRESETS["near-duplicates"], conversations=40, heldout=4)
    monkeypatch.setitem(PRESETS, "near-duplicates", small)
    done = run("--data", "near-duplicates", "--steps", 1, "--seeds", 2, "--arms", "padded,naive")
    assert done.exit_code == 0, done.output
    assert "2 seeds" in done.stdout
    assert all(f"│{arm} " in done.stdout for arm in ("padded", "naive"))
    assert "Loss illusion of naive" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nowhere.jsonl"], "HE700: nowhere.jsonl came without a model"),
        (["--data", "near-duplicates", "--seeds", "0"], "HE700: seeds is 0"),
        (["--data", "near-duplicates", "--arms", "padded,bare"], "HE700: arm 'bare' is unknown"),
        (["--data", "near-duplicates", "--backend", "hope"], "HE301: backend is 'hope'"),
        (["--data", "near-duplicates", "--steps", "0"], "HE700: max_steps is 0"),
        (["--data", "near-duplicates", "--heldout", "x.jsonl"], "HE700: near-duplicates makes the documents"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_the_reason(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert everything_under(tmp_path) == []


def test_arms_may_have_spaces_between_them(tmp_path, llama):
    source = token_file(tmp_path / "documents.jsonl", LENGTHS)
    common = ["--model", llama, "--data", source, "--capacity", 16, "--steps", 1, "--seeds", 1, "--json"]
    done = run(*common, "--arms", " sealed, naive ")
    assert done.exit_code == 0, done.output
    assert [arm["name"] for arm in only_json(done.stdout)["arms"]] == ["naive", "sealed"]


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Files by the names that the tests below give, in the working folder."""
    monkeypatch.chdir(tmp_path)
    token_file(tmp_path / "good.jsonl", LENGTHS)
    token_file(tmp_path / "long.jsonl", [5, 40, 3])
    token_file(tmp_path / "lone.jsonl", [1, 1])
    (tmp_path / "bad.jsonl").write_text("{not json\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "beyond.jsonl").write_text('{"input_ids": [1, 999999]}\n')
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--data": "long.jsonl"}, "HE101: .*long.jsonl:2: document 1 has 40 tokens and a row holds 16"),
        ({"--heldout": "long.jsonl"}, "HE101: .*long.jsonl:2: document 1 has 40 tokens and a row holds 16"),
        ({"--model": "./nowhere"}, "HE600: no tokenizer can be loaded from './nowhere'"),
        ({"--model": "folder"}, "HE600: no tokenizer can be loaded from 'folder'"),
        ({"--heldout": "nowhere.jsonl"}, "HE601: nowhere.jsonl does not exist"),
        ({"--heldout": "bad.jsonl"}, "HE601: bad.jsonl:1: malformed JSON"),
        ({"--heldout": "empty.jsonl"}, "HE601: empty.jsonl is empty"),
        ({"--heldout": "folder"}, "HE604: folder has no manifest.json"),
        ({"--heldout": "lone.jsonl"}, "HE700: lone.jsonl holds out 2 documents, and no token of them is supervised"),
        ({"--heldout": "beyond.jsonl"}, r"HE602: beyond.jsonl:1: input_ids\[1\] is 999999"),
        ({"--arms": "naive,"}, "HE700: arm '' is unknown"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(changes, said, llama, sources, monkeypatch):
    monkeypatch.setattr(
        import_module("hermetic.compare.compare"), "run_comparison", lambda *_, **__: pytest.fail("it was trained")
    )
    before = everything_under(sources)
    chosen = {"--model": llama, "--data": "good.jsonl", "--capacity": 16, "--seeds": 1, "--out": "out", **changes}
    done = run(*(word for pair in chosen.items() for word in pair))

    assert done.exit_code == 2
    assert re.search(said, done.stderr)
    assert done.stdout == ""
    assert everything_under(sources) == before


@pytest.mark.parametrize(
    ("module", "draws"), [("hermetic.compare.compare", "page"), ("hermetic.report", "write_report")]
)
def test_an_error_while_a_page_is_drawn_loses_nothing_that_was_measured(module, draws, llama, sources, monkeypatch):
    def broken(*_):
        raise MemoryError("no room for a page")

    monkeypatch.setattr(import_module(module), draws, broken)
    common = ["--model", llama, "--data", "good.jsonl", "--capacity", 16, "--steps", 1, "--seeds", 1, "--arms", "naive"]
    done = run(*common, "--json", "--out", "out", "--html", "page.html")

    assert isinstance(done.exception, MemoryError)
    kept = json.loads((sources / "out" / "comparison.json").read_text())
    assert len(kept["arms"][0]["runs"]) == 1
    assert (sources / "out" / "packed" / "manifest.json").is_file()
    assert not (sources / "page.html").exists()
    if draws == "write_report":
        assert only_json(done.stdout) == kept, "it was said before the page was drawn"


@pytest.mark.slow
def test_after_the_whole_preset_naive_twins_have_an_illusion_and_what_is_apart_is_as_padded():
    done = run("--data", "near-duplicates", "--seeds", "2", "--json")
    assert done.exit_code == 0, done.output
    arms = {arm["name"]: arm for arm in only_json(done.stdout)["arms"]}
    assert all(arm["refusal"] is None for arm in arms.values())
    for name in ("naive", "positions_only"):
        assert arms[name]["spread"]["train_illusion"]["mean"] > 0.01
        assert arms[name]["spread"]["heldout_illusion"]["mean"] > 0.01
    for name in ("mask_only", "sealed"):
        assert abs(arms[name]["spread"]["train_illusion"]["mean"]) < 1e-5
        assert arms[name]["spread"]["heldout_loss"]["mean"] == pytest.approx(
            arms["padded"]["spread"]["heldout_loss"]["mean"], rel=0.02
        )
