"""Tokens per second of collators: hermetic's, transformers' and TRL's, over the same documents in one run.

    python benchmarks/collate.py
    python benchmarks/collate.py --documents 64 --mean 2000

``flattening`` is transformers' DataCollatorWithFlattening, ``padding_free`` TRL's DataCollatorForLanguageModeling; both
return the edges of documents, as hermetic's collators do. Documents are given as Python lists, as NumPy arrays, as
torch tensors and as rows of a packed folder, of which flattening gets the documents, for it knows no rows. ``floor``
is hermetic's conversion of the columns to two arrays, with nothing around it. Seconds are those of one thread on the
CPU, so that other programs do not count; collators take turns of several calls, and the best call of each counts. The
last line is JSON.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorWithFlattening
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import hermetic.demo
from hermetic.batch.columns import join_columns
from hermetic.data import PackedDataset, pack_sources
from hermetic.data.feed import documents_of_row
from hermetic.integrations.rows import PackedCollator

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"
VOCABULARY = 512
TURNS, CALLS = 8, 6
Document = dict[str, Any]
Collate = Callable[[Any], Any]


def documents(number: int, mean: int) -> list[Document]:
    """Random tokens of log-normal lengths, the first third of each without a label."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(mean) - 0.5, 1.0, number).astype(int), 4, 4096)
    made = []
    for length in lengths:
        ids = random.integers(8, VOCABULARY, length)
        labels = ids.copy()
        labels[: 1 + length // 3] = -100
        made.append({"input_ids": ids, "labels": labels})
    return made


def formed(made: Sequence[Document], form: Callable[[Any], Any]) -> list[Document]:
    """The same documents with columns of another type."""
    return [{name: form(column) for name, column in document.items()} for document in made]


def packed_rows(made: Sequence[Document], folder: Path) -> list[Document]:
    """The same documents as rows of a packed folder."""
    lines = (json.dumps(document) for document in formed(made, lambda column: column.tolist()))
    (folder / "ids.jsonl").write_text("\n".join(lines) + "\n")
    pack_sources(folder / "ids.jsonl", folder / "rows", tokenizer=TOKENIZER, capacity=4096)
    return list(PackedDataset(folder / "rows"))


def best_times(collates: dict[str, tuple[Collate, Any]]) -> dict[str, float]:
    """CPU seconds of the fastest call of each; the first of each turn does not count."""
    times: dict[str, list[float]] = {name: [] for name in collates}
    for _ in range(TURNS):
        for name, (collate, batch) in collates.items():
            collate(batch)
            for _ in range(CALLS):
                start = time.thread_time()
                collate(batch)
                times[name].append(time.thread_time() - start)
    return {name: min(taken) for name, taken in times.items()}


def columns_alone(batch: Sequence[Document]) -> Any:
    """The two columns as arrays, unchecked."""
    return join_columns([document[name] for name in ("input_ids", "labels") for document in batch])


def measure(made: Sequence[Document], folder: Path) -> dict[str, dict[str, float]]:
    """Million tokens per second of each collator, by what documents are given as."""
    flattening = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    padding_free = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    documents_alone, rows_alone = PackedCollator(items="documents"), PackedCollator()
    rows = packed_rows(made, folder)
    unpacked = [document for row in rows for document in documents_of_row(row)]
    inputs = {
        "lists": formed(made, lambda column: column.tolist()),
        "NumPy arrays": made,
        "torch tensors": formed(made, torch.from_numpy),
    }
    calls: dict[str, dict[str, tuple[Collate, Any]]] = {
        name: {
            "flattening": (flattening, batch),
            "padding_free": (padding_free, batch),
            "hermetic": (documents_alone, batch),
            "floor": (columns_alone, batch),
        }
        for name, batch in inputs.items()
    }
    calls["packed rows"] = {
        "flattening": (flattening, unpacked),
        "padding_free": (padding_free, rows),
        "hermetic": (rows_alone, rows),
    }
    tokens = num_tokens(made)
    return {
        name: {collator: tokens / seconds / 1e6 for collator, seconds in best_times(each).items()}
        for name, each in calls.items()
    }


def num_tokens(made: Sequence[Document]) -> int:
    """Tokens of all documents."""
    return sum(len(document["input_ids"]) for document in made)


def show(made: Sequence[Document], speeds: dict[str, dict[str, float]]) -> None:
    """Print one table."""
    print(f"{len(made)} documents, {num_tokens(made):,} tokens; million tokens per second")
    print(
        f"{'given as':<14}{'flattening':>12}{'padding_free':>14}{'hermetic':>10}{'floor':>8}{'hermetic/flattening':>21}"
    )
    for form, found in speeds.items():
        floor = f"{found['floor']:.1f}" if "floor" in found else ""
        numbers = f"{found['flattening']:>12.2f}{found['padding_free']:>14.2f}{found['hermetic']:>10.2f}{floor:>8}"
        print(f"{form:<14}{numbers}{found['hermetic'] / found['flattening']:>19.1f}x")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=128, help="documents of a batch")
    parser.add_argument("--mean", type=int, nargs="+", default=[400, 40], help="their mean length in tokens; several")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # TRL copies tensors in a way of which torch warns
    tables = []
    for mean in options.mean:
        made = documents(options.documents, mean)
        with tempfile.TemporaryDirectory() as name:
            speeds = measure(made, Path(name))
        show(made, speeds)
        tables.append({"documents": len(made), "tokens": num_tokens(made), "million_tokens_per_second": speeds})
    print(json.dumps({"benchmark": "collate", "tables": tables}))


if __name__ == "__main__":
    main()
