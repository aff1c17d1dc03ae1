"""All that needs a GPU, in one go: the GPU tests, the attention benchmark, and one file that says what came out.

    python benchmarks/gpu.py                          writes gpu-results.json
    python benchmarks/gpu.py --output results.json

Both run to their end whatever the other does; the exit code is 1 if either failed. The file has the card and the
versions, what each backend conforms to, the tests that failed, and the benchmark's own JSON. Nothing is downloaded.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import torch

import hermetic
from hermetic.files import write_text

ROOT = Path(__file__).parents[1]

# -W default: a GPU machine brings its own versions of torch and transformers, and their warnings are not ours.
TESTS = (sys.executable, "-m", "pytest", "-m", "gpu", "-W", "default", str(ROOT / "tests"))
BENCHMARK = (sys.executable, str(ROOT / "benchmarks" / "attention.py"), "--device", "cuda")


def main() -> None:
    """Run both, write the file, say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gpu-results.json"))
    output = parser.parse_args().output
    tests, attention = run_tests(TESTS), run_benchmark(BENCHMARK)
    write_text(output, json.dumps({**machine(), "tests": tests, "attention": attention}, indent=1) + "\n")
    print(f"wrote {output}")
    sys.exit(not succeeded(tests, attention))


def machine() -> dict[str, object]:
    """What it ran on; without a card, ``card`` is None."""
    card = torch.cuda.get_device_properties() if torch.cuda.is_available() else None
    return {
        "card": None if card is None else card.name,
        "compute_capability": None if card is None else f"{card.major}.{card.minor}",
        "memory_bytes": None if card is None else card.total_memory,
        "hermetic": hermetic.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def run_tests(command: Sequence[str]) -> dict[str, object]:
    """Run pytest, whose output goes to the terminal, and collect what its tests recorded."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False)  # noqa: S603 - our own tests
        collected = recorded(report.read_text(encoding="utf-8")) if report.exists() else {}
    return {"exit_code": done.returncode, "seconds": round(time.perf_counter() - start, 1), **collected}


def recorded(report: str) -> dict[str, object]:
    """How many tests passed, which did not, and the conformance that they recorded, from pytest's JUnit report."""
    cases = list(ET.fromstring(report).iter("testcase"))  # noqa: S314 - written by our own pytest a moment ago
    bad = [case.get("name") for case in cases if any(case.find(kind) is not None for kind in ("failure", "error"))]
    properties = [each for case in cases for each in case.iter("property")]
    said = [each.get("value", "") for each in properties if each.get("name") == "conformance"]
    return {"passed": len(cases) - len(bad), "failed": bad, "conformance": [json.loads(text) for text in said]}


def run_benchmark(command: Sequence[str]) -> dict[str, object]:
    """Run a benchmark, show its output as it comes, and keep its last line, which is JSON."""
    start = time.perf_counter()
    lines = [""]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own script
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    seconds = round(time.perf_counter() - start, 1)
    return {"exit_code": process.returncode, "seconds": seconds, "measured": json_or_none(lines[-1])}


def json_or_none(line: str) -> object:
    """Read a line of JSON; a benchmark that failed ends in something else."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def succeeded(tests: dict[str, object], attention: dict[str, object]) -> bool:
    """All tests passed, and the benchmark ended well and in JSON."""
    return tests["exit_code"] == attention["exit_code"] == 0 and attention["measured"] is not None


if __name__ == "__main__":
    main()
