"""The survey finds what is known of a few types, survives what it cannot measure, and goes on where it stopped."""

import dataclasses
import io
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from rich.console import Console

from hermetic import seal
from hermetic.atlas import Row, Survey, page, render, require_place, survey, write_page
from hermetic.atlas.page import head
from hermetic.atlas.tiny import supports
from hermetic.errors import AtlasError, SealError

measuring = import_module("hermetic.atlas.survey")  # the package's attribute of this name is the function
MISTAKES = ("all_ones_mask", "default_cache", "running_positions")


def by_way(rows, implementation):
    return {row.way: row for row in rows if row.implementation == implementation}


@pytest.fixture(scope="module")
def of_llama():
    return survey(["llama"])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_llama_is_sound_when_called_correctly_and_leaks_at_each_mistake_and_not_when_sealed(of_llama, implementation):
    rows = by_way(of_llama.rows, implementation)
    assert tuple(rows) == measuring.WAYS
    assert {rows[way].verdict for way in ("correct", "sealed")} == {"sealed"}
    assert max(rows[way].size for way in ("correct", "sealed")) < 1e-4
    assert {rows[way].verdict for way in MISTAKES} == {"leak"}
    assert min(rows[way].size for way in MISTAKES) > 1
    assert {rows[way].where for way in MISTAKES} == {"model.layers.0.self_attn (LlamaAttention)"}
    assert {row.class_name for row in rows.values()} == {"LlamaForCausalLM"}


def test_types_that_give_their_masks_no_positions_leak_even_when_called_correctly_and_can_be_sealed():
    rows = survey(["opt"]).rows
    shipped = [row for row in rows if row.way != "sealed"]
    assert len(rows) == 10
    assert {row.verdict for row in shipped} == {"leak"}
    assert {row.where for row in shipped} == {"model.decoder.layers.0.self_attn (OPTAttention)"}
    assert {row.verdict for row in rows if row.way == "sealed"} == {"sealed"}


def test_a_type_that_cannot_be_built_is_rows_with_the_reason_and_no_number():
    rows = survey(["gemma4_unified_assistant"]).rows
    assert {row.verdict for row in rows} == {"not_built"}
    assert all("shared_kv_states" in row.reason and row.size is None for row in rows)
    assert {row.way for row in rows} == set(measuring.WAYS)


@pytest.mark.parametrize(
    ("model_type", "how"),
    [
        ("llama", ("interface",)),
        ("lfm2", ("Lfm2ShortConv", "interface")),
        ("bart", ("BartLearnedPositionalEmbedding", "interface")),
        ("roberta", ("RobertaEmbeddings", "interface")),
        ("deepseek_v4", ("DeepseekV4DecoderLayer",)),
    ],
)
def test_a_sealed_row_is_sound_and_says_how_it_is_sealed(model_type, how):
    rows = measuring.survey_type(model_type, ("sealed",))
    assert len(rows) == len(supports(model_type))
    assert {(row.way, row.verdict, row.how) for row in rows} == {("sealed", "sealed", how)}


def test_without_the_seal_there_are_rows_of_the_model_as_shipped_only():
    assert {row.way for row in survey(["llama"], sealed=False).rows} == set(measuring.SHIPPED)


def test_a_seal_that_changes_what_a_document_alone_computes_is_found(monkeypatch):
    def with_other_weights(model):
        torch.nn.init.zeros_(model.get_input_embeddings().weight)
        return seal(model)

    monkeypatch.setattr(measuring, "seal", with_other_weights)
    found = survey(["llama"])
    changed = by_way(found.rows, "eager")["sealed"]
    assert (changed.verdict, changed.where) == ("changed", "a document alone")
    assert changed.size > 1
    assert {row.verdict for row in found.unsound} == {"changed"}


def test_a_type_that_fails_on_a_document_alone_is_not_run_in_any_way_and_not_the_seals_fault(monkeypatch):
    def alone(_model):
        raise IndexError("no layer 7")

    monkeypatch.setattr(measuring, "_alone", alone)
    found = survey(["llama"])
    assert {row.verdict for row in found.rows} == {"not_run"}
    assert found.rows[0].reason == "LlamaForCausalLM fails on a document alone (IndexError: no layer 7)"
    assert found.unsound == ()


@pytest.mark.parametrize("verdict", ["leak", "distortion", "row_length_dependent", "unsupported", "changed", "failed"])
def test_these_verdicts_on_a_sealed_model_break_the_promise_and_on_a_shipped_one_they_do_not(verdict):
    of = {way: row("any", way, verdict) for way in measuring.WAYS}
    found = dataclasses.replace(THREE, rows=tuple(of.values()))
    assert found.unsound == (of["sealed"],)


@pytest.mark.parametrize("verdict", ["sealed", "not_causal", "refused", "not_built", "not_run"])
def test_these_verdicts_on_a_sealed_model_break_no_promise(verdict):
    assert dataclasses.replace(THREE, rows=(row("any", "sealed", verdict),)).unsound == ()


def test_a_model_that_fails_on_its_own_is_a_row_that_names_it():
    rows = by_way(survey(["reformer"]).rows, "eager")
    assert rows["correct"].verdict == "failed"
    assert rows["correct"].reason.startswith("ReformerModelWithLMHead failed on document 0 alone")


def test_whatever_a_model_raises_is_a_row_and_the_survey_goes_on(monkeypatch):
    def probe(*_args, **_options):
        raise KeyError("layer 7")

    def seal(_model):
        raise SealError("there is a mixer\nthat cannot be sealed")

    monkeypatch.setattr(measuring, "probe", probe)
    monkeypatch.setattr(measuring, "seal", seal)
    rows = by_way(survey(["llama"]).rows, "eager")
    assert (rows["correct"].verdict, rows["correct"].reason) == ("failed", "KeyError: 'layer 7'")
    assert (rows["sealed"].verdict, rows["sealed"].reason) == ("refused", "there is a mixer that cannot be sealed")


def test_a_survey_goes_on_where_it_stopped_and_measures_no_type_twice(tmp_path, monkeypatch, of_llama):
    measured, told = [], []

    def survey_type(model_type, _ways):
        measured.append(model_type)
        if model_type == "opt" and measured.count("opt") == 1:
            raise KeyboardInterrupt
        return [dataclasses.replace(row, model_type=model_type) for row in of_llama.rows]

    monkeypatch.setattr(measuring, "survey_type", survey_type)
    state = tmp_path / "atlas.json"
    with pytest.raises(KeyboardInterrupt):
        survey(["llama", "opt", "gpt2"], state=state)
    whole = survey(["llama", "opt", "gpt2"], state=state, on_type=lambda *progress: told.append(progress))
    assert measured == ["llama", "opt", "opt", "gpt2"]
    assert told == [("llama", 0, 3), ("opt", 1, 3), ("gpt2", 2, 3)]
    assert json.loads(state.read_text()) == json.loads(json.dumps(whole.to_dict()))
    assert {row.model_type for row in survey(["gpt2"], state=state).rows} == {"gpt2"}
    assert len(measured) == 4


def test_a_type_that_was_finished_without_the_seal_is_measured_again_with_it(tmp_path, monkeypatch, of_llama):
    asked = []

    def survey_type(_type, ways):
        asked.append(tuple(ways))
        return [row for row in of_llama.rows if row.way in ways]

    monkeypatch.setattr(measuring, "survey_type", survey_type)
    state = tmp_path / "atlas.json"
    survey(["llama"], state=state, sealed=False)
    assert {row.way for row in survey(["llama"], state=state).rows} == set(measuring.WAYS)
    assert {row.way for row in survey(["llama"], state=state, sealed=False).rows} == set(measuring.SHIPPED)
    assert len(json.loads(state.read_text())["rows"]) == len(of_llama.rows)
    assert asked == [tuple(measuring.SHIPPED), measuring.WAYS]


def test_a_state_of_other_versions_or_of_something_else_is_refused(tmp_path, of_llama):
    state = tmp_path / "atlas.json"
    other = dataclasses.replace(of_llama, versions=(("transformers", "4.0"),))
    state.write_text(json.dumps(other.to_dict()))
    with pytest.raises(AtlasError, match=r"was measured with \{'transformers': '4.0'\}, and here are"):
        survey(["llama"], state=state)
    for text in ("{", "[]", '{"rows": [{"model_type": "llama"}], "versions": {}, "date": ""}'):
        state.write_text(text)
        with pytest.raises(AtlasError, match="is not the state of a survey"):
            survey(["llama"], state=state)


def test_an_unknown_type_is_refused_with_the_closest_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(measuring, "survey_type", lambda *_: pytest.fail("was measured"))
    with pytest.raises(AtlasError, match=r"model type is 'lama'; .*; the closest is 'llama'$"):
        survey(["opt", "lama"])
    with pytest.raises(AtlasError, match=r"model type is '1'; expected one of hermetic.atlas.model_types\(\)$"):
        survey(["1"])


def row(model_type, way, verdict, size=None, *, where=None, how=(), reason=None):
    return Row(
        model_type=model_type,
        class_name="A",
        implementation="eager",
        way=way,
        verdict=verdict,
        size=size,
        where=where,
        how=how,
        seconds=0.1,
        reason=reason,
    )


THREE = Survey(
    rows=(
        row("good", "correct", "sealed", 1e-6),
        row("good", "sealed", "sealed", 1e-6, how=("native", "interface")),
        row("leaky", "correct", "leak", 2.5, where="layers.0 (Mixer)"),
        row("leaky", "sealed", "refused", reason="a <mixer> | no"),
        row("missing", "correct", "not_built", reason="needs timm"),
        row("missing", "sealed", "not_built", reason="needs timm"),
    ),
    versions=(("transformers", "5.24.0"),),
    date="2026-01-02",
)


def test_the_page_has_a_line_for_each_type_the_totals_and_every_reason_once():
    text = page(THREE)
    assert "| `good` | eager | ok |  |  |  | ok |  | `native`, `interface` |" in text
    assert "| `leaky` | eager | leak 2 |  |  |  | refused | `layers.0 (Mixer)` |  |" in text
    assert "| `missing` | eager | not built |  |  |  | not built |  |  |" in text
    assert "Measured on 2026-01-02 with transformers 5.24.0" in text
    assert "- 2 of 3 types were built and run." in text
    assert "- called correctly: 1 of 2 are ok in every attention implementation." in text
    assert "default cache: " not in text
    assert "- `leaky, refused`: a &lt;mixer> \\| no" in text
    assert text.count("needs timm") == 1


def test_sealed_models_that_fail_are_named_above_the_table():
    broken = row("broken", "sealed", "distortion", 0.5, where="document 2")
    text = page(dataclasses.replace(THREE, rows=(*THREE.rows, broken)))
    assert "- Sealed and unsound: broken (eager): distortion 0.5, document 2." in text
    assert "unsound" not in page(THREE)


def test_the_page_in_the_documentation_begins_as_the_code_writes_it():
    text = (Path(__file__).parents[1] / "docs" / "atlas.md").read_text(encoding="utf-8")
    date, versions = re.search(r"^Measured on (\S+) with (.+), on a CPU", text, re.MULTILINE).groups()
    named = tuple(tuple(one.split(" ")) for one in versions.split(", "))
    begin = "\n".join(head(Survey(rows=(), versions=named, date=date)))
    assert [name for name, _ in named] == ["hermetic", "python", "torch", "transformers"]
    assert text.startswith(begin)
    assert "| `llama` | sdpa | ok | leak" in text


def test_a_page_that_cannot_be_written_is_refused_and_one_that_can_replaces_the_old(tmp_path):
    for place in (tmp_path, tmp_path / "none" / "atlas.md"):
        with pytest.raises(AtlasError, match="a page cannot be written to"):
            require_place(place)
    target = tmp_path / "atlas.md"
    target.write_text("old")
    require_place(target)
    write_page(THREE, target)
    assert target.read_text() == page(THREE)
    assert list(tmp_path.iterdir()) == [target]


def test_the_terminal_shows_the_same_cells():
    console = Console(file=io.StringIO(), width=120)
    console.print(render(THREE))
    shown = console.file.getvalue()
    assert all(
        cell in shown for cell in ("good", "leak 2", "refused", "not built", "needs timm", "transformers 5.24.0")
    )
    assert "2 of 3 types were built and run." in shown
