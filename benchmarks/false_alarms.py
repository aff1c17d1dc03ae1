"""How often the probe accuses a sound model: every sealed type of causal language model, by seed and dtype.

Each type that builds tiny and seals is probed with the five instruments that look at isolation and content; another
seed chooses other documents, other directions of gradients and other roundings of the noise floor. A verdict other than
``sealed`` is a false alarm; the types that see later tokens by design have to be called ``not_causal``. Prints a table
and, last, one line of JSON.

``--seeds 20`` is the default; ``--types llama jamba`` takes some types only.
"""

import argparse
import dataclasses
import json
import time
import warnings

import torch
from rich.console import Console
from rich.table import Table
from transformers import logging

import hermetic
from hermetic.atlas import build_tiny, model_types
from hermetic.errors import AtlasError, SealError

DTYPES = (torch.float32, torch.bfloat16)
ISOLATION = ("swap", "gradient", "solo", "length-change", "causality")
BIDIRECTIONAL = {"xlm", "xlnet"}


def alarms_of(model_type: str, dtype: torch.dtype, seeds: int) -> list[dict[str, object]] | None:
    """The probes of one type that did not say what is so; ``None``: the type is not built or not sealed here."""
    try:
        model = hermetic.seal(build_tiny(model_type).to(dtype))
    except (AtlasError, SealError):
        return None
    expected = "not_causal" if model_type in BIDIRECTIONAL else "sealed"
    found = []
    for seed in range(seeds):
        report = hermetic.probe(model, instruments=ISOLATION, seed=seed)
        if report.verdict != expected:
            finding = dataclasses.asdict(report.findings[0]) if report.findings else None
            found.append({"seed": seed, "verdict": report.verdict, "finding": finding})
    return found


def main() -> None:
    """Probe all types, print each alarm as it is raised, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--types", nargs="*", default=None)
    options = parser.parse_args()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    console, alarms, probed = Console(), [], dict.fromkeys(DTYPES, 0)
    for model_type in options.types or model_types():
        for dtype in DTYPES:
            found = alarms_of(model_type, dtype, options.seeds)
            if found is None:
                continue
            probed[dtype] += 1
            for alarm in found:
                alarms.append({"type": model_type, "dtype": str(dtype).removeprefix("torch."), **alarm})
                console.print(alarms[-1], highlight=False)
    table = Table("dtype", "types", "probes", "false alarms", title="Sealed types, probed")
    rows = []
    for dtype, types in probed.items():
        name = str(dtype).removeprefix("torch.")
        count = sum(alarm["dtype"] == name for alarm in alarms)
        rows.append({"dtype": name, "types": types, "probes": types * options.seeds, "false_alarms": count})
        table.add_row(*map(str, rows[-1].values()))
    console.print(table)
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"rows": rows, "alarms": alarms, "seconds": seconds}, separators=(",", ":")))


if __name__ == "__main__":
    main()
