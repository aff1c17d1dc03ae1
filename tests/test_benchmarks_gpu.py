"""The GPU run keeps what came out, whatever fails on the way; here it runs without a GPU, on stand-ins."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import hermetic

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"

SUITE = """
import json

def test_one_backend(record_property):
    record_property("conformance", json.dumps({"backend": "one", "worst_ratio": 0.25}))

def test_another_backend(record_property):
    record_property("conformance", json.dumps({"backend": "another", "failed": ["<swap> & \\"tail\\""]}))
    raise AssertionError("it does not conform")

def test_without_a_record():
    pass
"""


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("benchmarks_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suite(tmp_path):
    """The command that runs three stand-in tests in a folder of their own."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]


def python(program):
    return [sys.executable, "-c", program]


def test_what_tests_record_and_which_fail_is_collected(gpu, suite):
    results = gpu.run_tests(suite)

    assert results.pop("seconds") > 0.0
    assert results == {
        "exit_code": pytest.ExitCode.TESTS_FAILED,
        "passed": 2,
        "failed": ["test_another_backend"],
        "conformance": [
            {"backend": "one", "worst_ratio": 0.25},
            {"backend": "another", "failed": ['<swap> & "tail"']},
        ],
    }


def test_tests_that_do_not_start_are_a_failure_without_records(gpu):
    results = gpu.run_tests(python("raise SystemExit(4)"))

    assert results == {"exit_code": 4, "seconds": results["seconds"]}


def test_the_last_line_of_the_benchmark_is_kept_and_all_lines_are_shown(gpu, capfd):
    results = gpu.run_benchmark(python("print('a table'); print('{\"tokens\": 3}')"))

    assert results == {"exit_code": 0, "seconds": results["seconds"], "measured": {"tokens": 3}}
    assert capfd.readouterr().out == 'a table\n{"tokens": 3}\n'


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("print('half a table')", 0), ("raise SystemExit(3)", 3), ("print('{}'); raise SystemExit(3)", 3)],
)
def test_a_benchmark_that_fails_or_ends_in_no_json_is_no_success(gpu, program, exit_code):
    results = gpu.run_benchmark(python(program))

    assert results["exit_code"] == exit_code
    assert not gpu.succeeded({"exit_code": 0}, results)


def test_it_succeeds_only_if_both_do(gpu):
    measured = {"exit_code": 0, "measured": {}}

    assert gpu.succeeded({"exit_code": 0}, measured)
    assert not gpu.succeeded({"exit_code": 1}, measured)


def test_both_run_and_the_file_is_written_even_if_the_tests_fail(gpu, suite, tmp_path, monkeypatch):
    output = tmp_path / "results.json"
    monkeypatch.setattr(gpu, "TESTS", suite)
    monkeypatch.setattr(gpu, "BENCHMARK", python("print('{\"tokens\": 3}')"))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(output)])

    with pytest.raises(SystemExit) as ended:
        gpu.main()

    results = json.loads(output.read_text())
    assert ended.value.code == 1
    assert results["tests"]["failed"] == ["test_another_backend"]
    assert results["attention"]["measured"] == {"tokens": 3}
    assert (results["torch"], results["hermetic"]) == (torch.__version__, hermetic.__version__)
    assert results.keys() >= {"card", "compute_capability", "memory_bytes", "cuda", "python"}


def test_the_real_commands_name_files_that_exist(gpu):
    assert Path(gpu.TESTS[-1]).is_dir()
    assert gpu.TESTS[3:5] == ("-m", "gpu")
    assert Path(gpu.BENCHMARK[1]).is_file()
    assert gpu.BENCHMARK[2:] == ("--device", "cuda")
