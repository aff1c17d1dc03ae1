"""The shared fixtures do what they promise."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent

TWO_TESTS = """
import pytest

@pytest.mark.gpu
def test_a_kernel():
    raise AssertionError("it ran")

def test_anywhere():
    assert True
"""


def run_pytest_without_cuda(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(TESTS / "conftest.py", folder)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_it.py").write_text(TWO_TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_gpu_test_that_was_asked_for_fails_without_a_cuda_device_instead_of_being_skipped(tmp_path):
    done = run_pytest_without_cuda(tmp_path, "-m", "gpu")

    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "test_a_kernel needs a CUDA device" in done.stdout
    assert "skipped" not in done.stdout


def test_gpu_tests_are_not_selected_by_default(tmp_path):
    done = run_pytest_without_cuda(tmp_path)

    assert done.returncode == pytest.ExitCode.OK
    assert "1 passed, 1 deselected" in done.stdout


@pytest.mark.usefixtures("poisoned_memory")
def test_poisoned_memory_reads_as_nan_for_floats_and_leaves_integers_alone():
    like = torch.zeros(3)

    assert torch.empty(2, 3).isnan().all()
    assert torch.empty_like(like).isnan().all()
    assert like.new_empty(4, dtype=torch.bfloat16).isnan().all()
    assert torch.empty(2, requires_grad=True).isnan().all()
    assert torch.empty(2, dtype=torch.int64).dtype == torch.int64


def test_memory_is_poisoned_only_while_the_fixture_is_in_use(request):
    request.getfixturevalue("poisoned_memory")
    poisoned = torch.empty
    request.getfixturevalue("monkeypatch").undo()

    assert not inspect.isbuiltin(poisoned)
    assert inspect.isbuiltin(torch.empty)


def test_tests_run_on_one_thread_so_that_bits_do_not_depend_on_the_machine():
    assert torch.get_num_threads() == 1
