"""The first floor stands alone: it needs no torch, and its examples are true."""

import doctest
import subprocess
import sys

import hermetic.plan
from hermetic.plan import histogram_plan, rows

PLAN_SOMETHING = "import sys; from hermetic.plan import plan_rows; plan_rows([3, 1], 4, seed=0).lower_bound"
FAIL_ON_TORCH = "sys.exit('torch' in sys.modules)"


def exit_code(program):
    return subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_planning_never_imports_torch():
    assert exit_code(f"{PLAN_SOMETHING}; {FAIL_ON_TORCH}") == 0


def test_the_check_above_fails_when_torch_is_imported():
    assert exit_code(f"{PLAN_SOMETHING}; import torch; {FAIL_ON_TORCH}") == 1


def test_the_public_names_of_the_floor_are_frozen():
    expected = "Assignment HistogramPlan OnlinePacker Piece Plan assign_rows plan_histogram plan_rows work_of_rows"
    assert hermetic.plan.__all__ == expected.split()


def test_the_examples_in_the_docstrings_are_true():
    results = [doctest.testmod(module) for module in (histogram_plan, rows)]
    assert [result.failed for result in results] == [0, 0]
    assert sum(result.attempted for result in results) >= 2
