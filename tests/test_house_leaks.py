"""Every known leak in ``leaks/`` is what its docstring says: the probe finds it, and is silent after the way out."""

import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

LEAKS = Path(__file__).parents[1] / "leaks"
SCRIPTS = sorted(path.stem for path in LEAKS.glob("*.py") if path.stem != "tiny")
SLOW = {
    "compressed_attention",
    "no_way_in_for_positions",
    "state_of_a_delta_net",
    "state_of_a_hybrid",
    "seq_idx_unread",
}
"""Several models, or layers that are slow without their kernels."""
NEEDS = {"trl_without_seq_lengths": "trl"}
"""Optional packages."""

DECLARATION = re.compile(r"^The probe says: (?P<verdict>\w+)(?P<codes>(, HM\d{3})+)\.$", re.MULTILINE)
STORY = ("Reported: ", "Silent because ", "Way out: ")
MOST_LINES_OF_A_STORY = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What the probe said to one call of a model."""

    verdict: str
    codes: tuple[str, ...]


SILENT = Said(verdict="sealed", codes=())


def declared(story: str) -> Said:
    found = DECLARATION.search(story)
    return Said(verdict=found["verdict"], codes=tuple(re.findall(r"HM\d{3}", found["codes"])))


def story_of(name: str) -> str:
    return re.match(r'"""(.*?)"""', (LEAKS / f"{name}.py").read_text(encoding="utf-8"), re.DOTALL)[1]


def printed(lines: list[str]) -> list[Said]:
    """One for each call that a script shows; a call begins with a line that is not indented."""
    calls = [part.splitlines() for part in re.split(r"\n(?=\S)", "\n".join(lines))]
    return [
        Said(
            verdict=call[-1].removeprefix("  verdict: "),
            codes=tuple(line[2:7] for line in call if line.startswith("  HM")),
        )
        for call in calls
    ]


def objections(expected: Said, said: list[Said]) -> list[str]:
    """What is wrong with a script's calls: each leak, as declared, is followed by its way out, which is silent."""
    leaks, ways_out = said[::2], said[1::2]
    found = [f"leak {i} is {one}, declared is {expected}" for i, one in enumerate(leaks) if one != expected]
    found += [f"way out {i} is {one}" for i, one in enumerate(ways_out) if one != SILENT]
    return found + (["there is no way out"] if not said or len(leaks) > len(ways_out) else [])


@pytest.fixture
def output_of(monkeypatch, capsys):
    """Run a script as ``python SCRIPT`` does, in this process, which has imported transformers already."""
    monkeypatch.syspath_prepend(str(LEAKS))

    def run(script: Path) -> list[str]:
        runpy.run_path(str(script), run_name="__main__")
        sys.modules.pop("tiny", None)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCRIPTS])
def test_the_probe_says_of_a_known_leak_what_is_declared_and_nothing_of_its_way_out(name, output_of):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is an optional extra")
    said = printed(output_of(LEAKS / f"{name}.py"))

    assert objections(declared(story_of(name)), said) == []


def test_a_leak_moves_logits_by_far_more_than_any_tolerance(output_of):
    lines = output_of(LEAKS / "all_ones_mask.py")
    moved = [float(found[1]) for line in lines if (found := re.search(r"another one's logits by up to (\S+)$", line))]

    assert moved[0] > 1.0
    assert moved[1] == 0.0


def test_a_script_whose_declaration_is_wrong_is_caught(output_of, tmp_path):
    source = (LEAKS / "all_ones_mask.py").read_text(encoding="utf-8")
    harmless = source.replace('torch.ones_like(inputs["input_ids"])', "None").replace("hermetic.seal(model)\n", "")
    script = tmp_path / "harmless.py"
    script.write_text(harmless, encoding="utf-8")
    said = printed(output_of(script))

    assert said == [SILENT, SILENT]
    assert objections(declared(source), said) == [f"leak 0 is {SILENT}, declared is {declared(source)}"]


def test_a_way_out_that_leaks_and_one_that_is_missing_are_caught():
    leak = Said(verdict="leak", codes=("HM100",))

    assert objections(leak, [leak, SILENT, leak, SILENT]) == []
    assert objections(leak, [leak, leak]) == [f"way out 0 is {leak}"]
    assert objections(leak, [leak]) == ["there is no way out"]
    assert objections(leak, []) == ["there is no way out"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_story_says_who_reported_it_why_it_is_silent_and_the_way_out_in_ten_lines(name):
    story = story_of(name).strip()

    assert len(story.splitlines()) <= MOST_LINES_OF_A_STORY
    assert [part for part in STORY if f"\n{part}" not in story] == []
    assert DECLARATION.search(story) is not None


def test_every_script_is_in_the_readme_with_its_verdict_and_its_findings():
    readme = (LEAKS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\.py` \|.*\| (\w+) \| (HM[\dHM, ]+) \|.*\|$", readme, re.MULTILINE)

    assert {name: Said(verdict=verdict, codes=tuple(codes.split(", "))) for name, verdict, codes in rows} == {
        name: declared(story_of(name)) for name in SCRIPTS
    }
    assert len(rows) == len(SCRIPTS)


def test_a_link_of_a_story_is_in_the_readme():
    readme = (LEAKS / "README.md").read_text(encoding="utf-8")
    links = {link for name in SCRIPTS for link in re.findall(r"https://\S+\d", story_of(name))}

    assert len(links) >= len(SCRIPTS) - 1  # MiniMax alone has not been reported
    assert sorted(link for link in links if link not in readme) == []
