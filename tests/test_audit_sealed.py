"""What hermetic's own plugin seals is no finding of a configuration, and values are shown as they stand in it."""

from pathlib import Path

import pytest

from hermetic.audit import audit_config

SEALED = """base_model: {model}
sequence_len: 4096
sample_packing: true
excess_length_strategy: raise
datasets:
  - path: texts.jsonl
    type: completion
{more}plugins:
  - other.Plugin
  - {plugin}
"""
PLUGIN = "hermetic.integrations.axolotl.HermeticPlugin"


def report_of_sealed(folder, model="acme/llama", more="", plugin=PLUGIN):
    path = folder / "train.yaml"
    path.write_text(SEALED.format(model=model, more=more, plugin=plugin))
    return audit_config(path)


@pytest.mark.parametrize(
    ("model", "more", "found"),
    [
        ("NousResearch/Llama-3.2-1B", "", {"HM122", "HM420"}),
        ("NousResearch/Llama-3.2-1B", "sdp_attention: true\n", {"HM122", "HM420"}),
        ("facebook/opt-125m", "attn_implementation: sdpa\n", {"HM122", "HM123", "HM420"}),
        ("LiquidAI/LFM2-1.2B", "attn_implementation: sdpa\n", {"HM122", "HM320", "HM420"}),
        (
            "Qwen/Qwen3-0.6B",
            "attn_implementation: flex_attention\nrope_scaling:\n  type: dynamic\n",
            {"HM220", "HM420"},
        ),
    ],
)
def test_what_a_seal_covers_is_no_finding_where_the_plugin_of_axolotl_seals(tmp_path, model, more, found):
    sealed = report_of_sealed(tmp_path, model, more)

    assert {one.code for one in report_of_sealed(tmp_path, model, more, plugin="another.Plugin").findings} == found
    assert {one.code for one in sealed.findings} == set()
    assert dict(sealed.facts)["sealed"] == f"by {PLUGIN}"
    assert any("Failed to load plugin" in note for note in sealed.notes)


def test_a_seal_that_no_row_tells_its_documents_covers_nothing(tmp_path):
    more = "pretraining_dataset:\n  - path: texts\npretrain_multipack_attn: false\n"
    report = report_of_sealed(tmp_path, more=more)

    assert "HM121" in {one.code for one in report.findings}
    assert "sealed" not in dict(report.facts)


def test_the_example_of_axolotl_is_sound():
    assert audit_config(Path(__file__).parents[1] / "examples" / "programs" / "axolotl.yaml").sound


@pytest.mark.parametrize("flag", ["sdp_attention", "eager_attention"])
def test_a_switch_is_shown_as_it_stands_in_the_file(tmp_path, flag):
    report = report_of_sealed(tmp_path, more=f"{flag}: true\n", plugin="another.Plugin")
    (found,) = (one for one in report.findings if one.code == "HM122")

    assert (found.place.key, found.value) == (flag, "true")
    assert {"sdp_attention": "sdpa", "eager_attention": "eager"}[flag] in found.what
