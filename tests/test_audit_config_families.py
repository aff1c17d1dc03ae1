"""What the audit knows of types of models is what the atlas measured, and its certainty is no more than that."""

import doctest
import importlib
import importlib.util
import json
from pathlib import Path

import pytest
from audit_config_helpers import audited
from hypothesis import given
from hypothesis import strategies as st

from hermetic.audit.finding import Place
from hermetic.audit.setup import UNKNOWN, Setting
from hermetic.audit.stacks.families import _table, measured, model_of, scales_by_length, type_by_name

ROOT = Path(__file__).parents[1]
TYPES = _table()["types"]
PACKED = "dataset_name: x\nmax_length: 4096\npacking: true\npacking_strategy: bfd_split\n"


def script():
    spec = importlib.util.spec_from_file_location("families_table", ROOT / "scripts" / "families_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(value):
    return Setting(value=value, place=Place(key="model"))


def folder_of(tmp_path, **config):
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path / "model"


def certainties(report):
    return {finding.code: (finding.certainty, finding.versions) for finding in report.findings}


def test_the_table_is_that_of_the_page():
    module = script()
    page = module.PAGE.read_text(encoding="utf-8")

    assert module.TABLE.read_text(encoding="utf-8") == module.text(page), "run python scripts/families_table.py"
    assert len(TYPES) > 150


def test_a_page_that_says_otherwise_gives_another_table_and_one_without_a_version_is_refused():
    module = script()
    page = module.PAGE.read_text(encoding="utf-8")
    changed = module.table(page.replace("| `llama` | sdpa | ok |", "| `llama` | sdpa | leak 3 |"))

    assert changed["types"]["llama"]["sdpa"] == {"verdict": "leak", "size": 3.0, "module": None}
    with pytest.raises(ValueError, match="names no version"):
        module.table(page.replace("transformers ", ""))


def test_every_row_of_the_page_that_has_a_verdict_is_in_the_table():
    page = (ROOT / "docs" / "atlas.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    with_verdict = {
        (row[0].strip("| `"), row[1]) for row in rows if row[2].split()[0] in {"ok", "leak", "distortion", "row"}
    }

    assert {(kind, attention) for kind, entries in TYPES.items() for attention in entries} == with_verdict


@pytest.mark.parametrize(
    ("kind", "code"),
    [("gpt_oss", "HM123"), ("opt", "HM123"), ("lfm2", "HM320"), ("qwen3_next", "HM320"), ("doge", "HM221")],
)
def test_a_type_that_was_read_and_the_version_that_was_measured_are_certain_and_anything_less_is_not(
    tmp_path, kind, code
):
    folder = folder_of(tmp_path, model_type=kind)
    text = f"model_name_or_path: {folder}\nattn_implementation: eager\n{PACKED}"
    by_version = {
        version: certainties(audited(text, tmp_path, versions={"transformers": version} if version else {})).get(code)
        for version in (None, "5.24.0", "5.30.0")
    }
    by_name = certainties(audited(text.replace(str(folder), f"somebody/{kind}-1b"), tmp_path)).get(code)

    assert by_name == ("likely", None)
    if code == "HM320":  # TRL hands numbers of documents over, too, which kernels may read
        assert set(by_version.values()) == {("likely", None)}
    else:
        assert by_version == {
            None: ("depends on version", "measured in transformers 5.24.0"),
            "5.24.0": ("certain", None),
            "5.30.0": ("likely", None),
        }


def test_with_positions_alone_a_recurrence_that_was_read_is_certain(tmp_path):
    folder = folder_of(tmp_path, model_type="recurrent_gemma")
    text = (
        f"base_model: {folder}\nsequence_len: 4096\nsample_packing: true\nexcess_length_strategy: raise\n"
        "attn_implementation: flash_attention_2\n"
    )
    report = audited(text, tmp_path, versions={"transformers": "5.24.0"})

    assert certainties(report) == {"HM320": ("certain", None)}


def test_layers_that_axolotl_patches_depend_on_its_version(tmp_path):
    folder = folder_of(tmp_path, model_type="qwen3_next")
    text = (
        f"base_model: {folder}\nsequence_len: 4096\nsample_packing: true\nexcess_length_strategy: raise\n"
        "attn_implementation: flash_attention_2\n"
    )

    assert certainties(audited(text, tmp_path)) == {"HM320": ("depends on version", "axolotl < 0.21")}
    assert certainties(audited(text, tmp_path, versions={"axolotl": "0.21.0"})) == {}
    assert "HM320" in certainties(audited(text, tmp_path, versions={"axolotl": "0.19.0"}))


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path):
    folder_of(tmp_path, model_type="opt")

    assert "HM123" in certainties(audited(f"model_name_or_path: model\n{PACKED}", tmp_path))
    assert model_of(named("model"), base=tmp_path).certain
    assert model_of(named("model")) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": 3}', "[" * 2000, "\xff"])
def test_a_folder_whose_configuration_is_none_is_not_known(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")

    assert model_of(named(str(tmp_path))) is None


def test_flash_attention_was_not_measured_so_only_recurrent_layers_are_told(tmp_path):
    for kind, codes in (("gpt_oss", set()), ("lfm2", {"HM320"})):
        folder = folder_of(tmp_path, model_type=kind)
        text = f"model_name_or_path: {folder}\nattn_implementation: flash_attention_2\n{PACKED}"
        assert set(certainties(audited(text, tmp_path))) == codes


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openai/gpt-oss-20b", "gpt_oss"),
        ("Qwen/Qwen3-57B-A14B", "qwen3"),
        ("Qwen/Qwen3.5-7B", "qwen3_5"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next"),
        ("facebook/opt-125m", "opt"),
        ("optimus/optimum-7b", None),
        ("LiquidAI/LFM2-1.2B", "lfm2"),
        ("tiiuae/Falcon-H1-7B-Base", "falcon_h1"),
        ("state-spaces/mamba2-2.7b", "mamba2"),
        ("google/recurrentgemma-2b", "recurrent_gemma"),
        ("meta-llama/Llama-3.1-8B", "llama"),
        ("/models/gpt2/", "gpt2"),
        ("ibm-granite/granite-4.0-h-tiny", "granitemoehybrid"),
        ("ibm-granite/granite-4.0-micro", "granite"),
        ("ai21labs/AI21-Jamba-1.5-Mini", "jamba"),
        ("bigscience/bloomz-7b1", "bloom"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron_h"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron_h"),
        ("EleutherAI/pythia-160m", None),
        ("", None),
    ],
)
def test_a_name_finds_the_longest_type_that_it_begins_with(name, kind):
    assert type_by_name(name) == kind


@given(kind=st.sampled_from(sorted(TYPES)), joint=st.sampled_from(["-", "_", ".", ""]), upper=st.booleans())
def test_the_name_of_a_type_finds_it_however_it_is_written(kind, joint, upper):
    name = kind.replace("_", joint).replace("-", joint)
    found = type_by_name(f"somebody/{name.upper() if upper else name}-7b")

    assert found is not None
    assert found.replace("_", "").replace("-", "") == kind.replace("_", "").replace("-", "")


def test_what_is_not_known_or_no_name_is_no_model():
    assert model_of(None) is None
    assert model_of(named(UNKNOWN)) is None
    assert model_of(named(3)) is None
    assert measured("nobody", "sdpa") is None


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_scaling_by_length_is_read_from_the_model_too(tmp_path, key):
    by_length = folder_of(tmp_path, model_type="phi3", **{key: {"rope_type": "longrope", "short_factor": [1.0]}})
    told = certainties(audited(f"model_name_or_path: {by_length}\n{PACKED}", tmp_path))
    other = folder_of(tmp_path, model_type="phi3", **{key: {"rope_type": "yarn"}})

    assert told == {"HM220": ("likely", None)}
    assert certainties(audited(f"model_name_or_path: {other}\n{PACKED}", tmp_path)) == {}
    assert [scales_by_length(one) for one in ("dynamic", "linear", None)] == [True, False, False]


@pytest.mark.parametrize(
    "module",
    ["setup", "command", "anything", "stacks.families", "stacks.files", "stacks.shell"],
)
def test_the_examples_in_the_documentation_of_the_code_are_true(module):
    result = doctest.testmod(importlib.import_module(f"hermetic.audit.{module}"))

    assert result.failed == 0
    assert result.attempted > 0
