"""What `hermetic audit` finds in realistic configurations of every stack, against what was expected, and how fast.

The configurations stand in `tests/audit_configs`, with what each should be told beside them, written from what the
stacks do. Each is audited with every set of versions that is expected of it. A finding counts as found if code,
certainty and line are those expected; any other is false. Then the command runs as a process of its own, again and
again, on one configuration after another. Prints a table and, last, one line of JSON.

``--runs 3`` is the default number of timed processes for each configuration.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from audit_config_helpers import Case, cases, told

from hermetic.audit import audit_config


def scored(case: Case) -> dict[str, object]:
    """What one configuration was told, counted against what was expected."""
    report = audit_config(case.path, versions=case.versions)
    found, expected = Counter(told(report)), Counter(case.expected)
    return {
        "name": case.name,
        "stack": report.stack,
        "sound": "_sound" in case.path.name,
        "right": list((found & expected).elements()),
        "missed": list((expected - found).elements()),
        "false": list((found - expected).elements()),
    }


def rates(rows: list[dict[str, object]], *, certain_only: bool) -> dict[str, float]:
    """Recall and precision over all configurations."""

    def count(kind: str) -> int:
        return sum(not certain_only or certainty == "certain" for row in rows for _, certainty, _ in row[kind])

    right, missed, false = count("right"), count("missed"), count("false")
    return {"findings": right + missed, "recall": right / (right + missed), "precision": right / (right + false)}


def seconds_of_process(case: Case) -> tuple[float, float]:
    """From starting Python to the end of the command: by the clock, and of the processor, which no neighbour slows."""
    versions = [word for one in case.versions.items() for word in ("--with", "==".join(one))]
    command = [sys.executable, "-c", "from hermetic.cli import main; main()", "audit", str(case.path), *versions]
    used, start = processor_seconds(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - this interpreter, our command
    seconds = time.perf_counter() - start, processor_seconds() - used
    assert done.returncode in {0, 1}, done.stderr  # noqa: S101 - a benchmark of a command that fails is none
    return seconds


def summary(times: list[float]) -> dict[str, float]:
    """The middle one and the largest."""
    return {"median": round(statistics.median(times), 3), "most": round(max(times), 3)}


def processor_seconds() -> float:
    """What all processes that were started took so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Audit all configurations, then time the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    everything = list(cases())
    rows = [scored(case) for case in everything]
    table = Table("configuration", "stack", "found", "missed", "false", title="Configurations, audited")
    for row in rows:
        codes = " ".join(code for code, *_ in sorted(row["right"], key=str)) or "nothing, as expected"
        table.add_row(row["name"], row["stack"], codes, str(len(row["missed"])), str(len(row["false"])))
    Console().print(table)
    times = [seconds_of_process(case) for case in everything for _ in range(options.runs)]
    result = {
        "configurations": len({case.path for case in everything}),
        "audits": len(rows),
        "stacks": len({row["stack"] for row in rows}),
        "certain": rates(rows, certain_only=True),
        "all": rates(rows, certain_only=False),
        "sound": sum(bool(row["sound"]) for row in rows),
        "findings_in_sound": sum(len(row["right"]) + len(row["false"]) for row in rows if row["sound"]),
        "seconds": summary([clock for clock, _ in times]),
        "processor_seconds": summary([processor for _, processor in times]),
        "processes": len(times),
    }
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main()
