"""Twenty exercises: each bug is found by audit or doctor with its code and nothing else, and sound ones are silent."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hermetic.audit import audit_script
from hermetic.audit.rules import RULES
from hermetic.doctor import diagnose

FOLDER = Path(__file__).parent / "spot_the_bug"
FAST = {"08_state_space", "09_hybrid"}
"""Exercises that the doctor reads in a few seconds: they need no transformers."""


def load_page():
    spec = importlib.util.spec_from_file_location("spot_the_bug_page", FOLDER / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = load_page()
SOLUTIONS = PAGE.solutions()
RUNNABLE = [name for name, one in SOLUTIONS.items() if one["doctor"] is not None]


def audited(name: str) -> list[str]:
    return [finding.code for finding in audit_script(FOLDER / f"{name}.py").findings]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_audit_says_of_an_exercise_its_one_bug_or_nothing(name):
    one = SOLUTIONS[name]

    assert audited(name) == ([one["code"]] if one["by"] == "audit" else [])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in RUNNABLE]
)
def test_the_doctor_says_of_an_exercise_that_runs_here_what_is_declared(name):
    diagnosis = diagnose([sys.executable, str(FOLDER / f"{name}.py")], timeout=120)
    expected = SOLUTIONS[name]["doctor"]

    assert [finding.code for finding in diagnosis.findings] == expected
    assert diagnosis.sound == (expected == [])


def test_twelve_of_twenty_have_a_bug_and_each_has_another_code():
    codes = [one["code"] for one in SOLUTIONS.values() if one["code"]]

    assert (len(SOLUTIONS), len(codes), len(set(codes))) == (20, 12, 12)
    assert set(codes) <= RULES.keys()
    assert all((one["code"] is None) == (one["by"] is None) for one in SOLUTIONS.values())
    assert sorted(SOLUTIONS) == [path.stem for path in PAGE.exercises()]


def test_a_bug_that_the_doctor_finds_is_declared_of_an_exercise_that_runs():
    by_doctor = [one for one in SOLUTIONS.values() if one["by"] == "doctor"]

    assert by_doctor != []
    assert all(one["code"] in one["doctor"] for one in by_doctor)


def test_exercises_are_short_and_do_not_give_themselves_away():
    words = ("bug", "wrong", "leak", "hermetic says", "HM1", "HM2", "HM4", "HM5")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in PAGE.exercises()}

    assert [name for name, text in texts.items() if text.count("\n") >= 60] == []
    assert [(name, word) for name, text in texts.items() for word in words if word in text] == []


def test_the_page_is_what_the_exercises_and_solutions_make_of_it():
    assert PAGE.PAGE.read_text(encoding="utf-8") == PAGE.page()


def test_taking_the_bug_out_of_an_exercise_takes_the_finding_away(tmp_path):
    repairs = {
        "01_tickets": ("q, k, v, is_causal=True)", "q, k, v, attn_mask=mask)"),
        "03_varlen": ("torch.cumsum(lengths, 0)", "functional.pad(torch.cumsum(lengths, 0), (1, 0))"),
        "04_lesson_plans": ("model(**batch)", "model(**batch, use_cache=False)"),
        "05_recipes": ('            row["attention_mask"] += recipe["attention_mask"]\n', ""),
        "07_dialogues": ('row[:-1], "labels": row[1:]', 'row, "labels": row'),
        "10_news": ('"wrapped"', '"bfd_split"'),
        "11_proofs": ("return q_idx >= kv_idx", "return (q_idx >= kv_idx) & (docs[q_idx] == docs[kv_idx])"),
        "13_patents": ("torch.arange(len(input_ids))", "torch.cat([torch.arange(int(n)) for n in lengths])"),
        "15_answers": (
            "(losses * supervised).sum(dim=1) / supervised.sum(dim=1).clamp(min=1)",
            "losses[supervised > 0]",
        ),
        "17_rankings": ('rejected["cu_seqlens"]]', 'rejected["cu_seqlens"][1:] + chosen["cu_seqlens"][-1]]'),
        "18_stories": ("use_cache=False)", "use_cache=False, num_items_in_batch=supervised)"),
    }
    left = {}
    for name, (bad, good) in repairs.items():
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        assert text.count(bad) == 1, name
        (tmp_path / f"{name}.py").write_text(text.replace(bad, good), encoding="utf-8")
        left[name] = [finding.code for finding in audit_script(tmp_path / f"{name}.py").findings]

    assert set(repairs) == {name for name, one in SOLUTIONS.items() if one["by"] == "audit"}
    assert {name: codes for name, codes in left.items() if codes} == {}


def test_an_audit_of_a_script_imports_neither_torch_nor_numpy():
    code = (
        "import json, sys\n"
        "from hermetic.audit import audit_script\n"
        f"codes = [f.code for f in audit_script({str(FOLDER / '10_news.py')!r}).findings]\n"
        "print(json.dumps([codes, sorted({'torch', 'numpy', 'transformers', 'trl'} & set(sys.modules))]))\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert json.loads(said) == [["HM120"], []]
