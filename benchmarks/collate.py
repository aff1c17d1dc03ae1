"""Tokens per second of collators: hermetic's, transformers' and TRL's, over the same documents in one run.

    python benchmarks/collate.py
    python benchmarks/collate.py --documents 64 --mean 2000

``flattening`` is transformers' DataCollatorWithFlattening, ``padding_free`` TRL's DataCollatorForLanguageModeling; both
return the edges of documents, as hermetic's collators do. Documents are given as Python lists, as NumPy arrays, as
torch tensors and as rows of a packed folder, of which flattening gets the documents, for it knows no rows. Seconds are
those of one thread on the CPU, so that other programs do not count; the best of several runs is taken. The last line is
JSON.
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
from hermetic.data import PackedDataset, pack_sources
from hermetic.data.feed import documents_of_row
from hermetic.integrations.rows import PackedCollator

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"
VOCABULARY = 512
REPEATS = 15
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


def best_time(collate: Collate, batch: Any) -> float:
    """CPU seconds of the fastest of several runs, after one that is not counted."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.thread_time()
        collate(batch)
        times.append(time.thread_time() - start)
    return min(times[1:])


def measure(made: Sequence[Document], folder: Path) -> dict[str, dict[str, float]]:
    """Million tokens per second of each collator, by what documents are given as."""
    flattening = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    padding_free = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    of_documents, of_rows = PackedCollator(items="documents"), PackedCollator()
    rows = packed_rows(made, folder)
    unpacked = [document for row in rows for document in documents_of_row(row)]
    inputs = {
        "lists": formed(made, lambda column: column.tolist()),
        "NumPy arrays": made,
        "torch tensors": formed(made, torch.from_numpy),
    }
    calls: dict[str, list[tuple[str, Collate, Any]]] = {
        name: [
            ("flattening", flattening, batch),
            ("padding_free", padding_free, batch),
            ("hermetic", of_documents, batch),
        ]
        for name, batch in inputs.items()
    }
    calls["packed rows"] = [
        ("flattening", flattening, unpacked),
        ("padding_free", padding_free, rows),
        ("hermetic", of_rows, rows),
    ]
    tokens = sum(len(document["input_ids"]) for document in made)
    return {
        name: {collator: tokens / best_time(collate, batch) / 1e6 for collator, collate, batch in each}
        for name, each in calls.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=128, help="documents of a batch")
    parser.add_argument("--mean", type=int, default=400, help="their mean length in tokens")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # TRL copies tensors in a way of which torch warns
    made = documents(options.documents, options.mean)
    with tempfile.TemporaryDirectory() as name:
        speeds = measure(made, Path(name))
    print(f"{len(made)} documents, {sum(len(d['input_ids']) for d in made):,} tokens; million tokens per second")
    print(f"{'given as':<14}{'flattening':>12}{'padding_free':>14}{'hermetic':>10}{'against flattening':>20}")
    for form, found in speeds.items():
        ratio = found["hermetic"] / found["flattening"]
        print(
            f"{form:<14}{found['flattening']:>12.2f}{found['padding_free']:>14.2f}{found['hermetic']:>10.2f}{ratio:>19.1f}x"
        )
    print(json.dumps({"benchmark": "collate", "documents": len(made), "million_tokens_per_second": speeds}))


if __name__ == "__main__":
    main()
