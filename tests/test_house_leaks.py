"""The probe catches every known leak in ``leaks/``, by the findings that are expected of it."""

import re
import runpy
import sys
from pathlib import Path

import pytest

LEAKS = Path(__file__).parents[1] / "leaks"
FINDINGS = {
    "all_ones_mask.py": ["HM100", "HM101"],
    "boolean_mask_on_eager.py": ["HM100"],
    "default_cache.py": ["HM100", "HM102"],
    "document_numbers_in_mask.py": ["HM100", "HM103"],
    "gpt_oss_ignores_positions.py": ["HM100"],
    "short_convolution.py": ["HM302"],
}


@pytest.fixture
def output_of(monkeypatch, capsys):
    """Run a script as ``python SCRIPT`` does, in this process, which has imported transformers already."""
    monkeypatch.syspath_prepend(str(LEAKS))

    def run(script: Path) -> list[str]:
        runpy.run_path(str(script), run_name="__main__")
        sys.modules.pop("tiny", None)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("name", FINDINGS)
def test_the_probe_catches_the_known_leak(name, output_of):
    lines = output_of(LEAKS / name)

    assert lines[-1] == "verdict: leak"
    assert [line[:5] for line in lines if line.startswith("HM")] == FINDINGS[name]
    assert float(re.search(r"up to (\S+)$", lines[0])[1]) > 1.0


def test_the_same_call_of_a_sealed_model_is_no_leak(output_of, tmp_path):
    source = (LEAKS / "all_ones_mask.py").read_text()
    sealed = source.replace("model = build(LlamaForCausalLM)", "model = hermetic.seal(build(LlamaForCausalLM))")
    script = tmp_path / "sealed.py"
    script.write_text(sealed)

    assert sealed != source
    assert output_of(script) == [
        "swapping a document moves another one's logits by up to 0.0",
        "verdict: sealed",
    ]


def test_every_script_is_run_here_and_described_in_the_readme():
    scripts = sorted(path.name for path in LEAKS.glob("*.py") if path.name != "tiny.py")
    described = re.findall(r"^\| `(\w+\.py)` \|.*\| (HM[\dHM, ]+) \|", (LEAKS / "README.md").read_text(), re.MULTILINE)

    assert sorted(FINDINGS) == scripts
    assert {name: codes.split(", ") for name, codes in described} == FINDINGS
