"""Every script in ``examples/`` runs to its end on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
LAST_LINES = {
    "accelerate_loop.py": "falling: True",
    "lightning_rows.py": "probe: sealed",
    "train_sealed.py": "probe: sealed",
    "trl_dpo.py": "falling: True",
    "trl_sft.py": "probe: sealed",
}
"""How the last line that each script prints has to end."""


def run(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # tiny tensors are faster without hand-overs
    return subprocess.run(command, cwd=script.parent, env=one_thread, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_example_runs_and_ends_as_it_says(script):
    finished = run(script)

    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1].endswith(LAST_LINES[script.name])


def test_every_example_has_an_expected_end():
    assert sorted(LAST_LINES) == [script.name for script in SCRIPTS]


def test_an_example_that_fails_is_seen(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit(3)\n")

    assert run(script).returncode == 3
