"""The pipeline from a file of conversations to packed rows: documents and megabytes a second, stage by stage.

Conversations are generated from a fixed seed. Each stage is timed by itself on the same records, beside raw batch
encoding by the tokenizer and a copy of the same bytes in memory; then the whole of ``hermetic pack`` and the whole of
what TRL does by default (``datasets.map`` with the chat template, then ``pack_dataset``) on the same file. What comes
after tokenizing is compared on the same tokens. Memory is the largest sum over all processes of the run.

Prints a table and, last, one line of JSON. ``--documents 1000000`` is the default; ``--peer-documents`` bounds what the
peer tokenizes, which takes it minutes.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import hermetic.demo
from hermetic.data import load_tokenizer, pack_sources
from hermetic.data.encode import encode_part
from hermetic.data.encoder import TextEncoder
from hermetic.data.sources import find_files, parse_source, read_part, split_into_parts

TOKENIZER = Path(hermetic.demo.__file__).parent / "tokenizer"
CAPACITY = 2048
SAMPLE = 40_000
WORDS = [
    "the",
    "a",
    "small",
    "black",
    "wagon",
    "stood",
    "in",
    "attic",
    "garden",
    "where",
    "Greta",
    "and",
    "Tomas",
    "put",
    "it",
    "yesterday",
    "because",
    "rain",
    "came",
    "down",
    "please",
    "tell",
    "me",
    "how",
    "many",
    "apples",
    "are",
    "left",
    "when",
    "three",
    "of",
    "them",
    "were",
    "eaten",
    "by",
    "hungry",
    "horse",
    "of",
    "neighbour",
    "today",
]


def write_conversations(path: Path, count: int) -> None:
    """Short conversations of one to three turns, about 110 tokens each, in ``messages`` shape."""
    generator = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            turns = []
            for length in generator.lognormal(2.2, 0.7, 2 * int(generator.integers(1, 4))).astype(int) + 2:
                role = "user" if len(turns) % 2 == 0 else "assistant"
                words = [WORDS[index] for index in generator.integers(0, len(WORDS), min(length, 200))]
                turns.append({"role": role, "content": " ".join(words)})
            file.write(json.dumps({"messages": turns}) + "\n")


class Stages:
    """Rows of the table."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, stage: str, seconds: float, documents: int, size: int, note: str = "") -> float:
        """Documents a second."""
        rate = documents / seconds
        self.rows.append(
            {
                "stage": stage,
                "seconds": round(seconds, 3),
                "documents_per_second": round(rate),
                "megabytes_per_second": round(size / seconds / 1e6, 1),
                "note": note,
            }
        )
        return rate


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what it returned."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def resident(process: psutil.Process) -> int:
    """Bytes in memory; 0 of a process that has just ended."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The largest sum of resident bytes of this process's children and what it has gained itself."""
    process, found, done = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(0.02):
            total = process.memory_info().rss - before + sum(map(resident, process.children(recursive=True)))
            found[0] = max(found[0], total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def stages_of_tokenizing(source: Path, folder: Path, stages: Stages) -> dict[str, float]:
    """Reading, rendering and tokenizing a sample, in this process, beside raw batch encoding of the same texts."""
    tokenizer = load_tokenizer(TOKENIZER)
    files = find_files([parse_source(str(source))], spool=folder)
    parts = split_into_parts(files, part_bytes=1 << 24)
    size = sum(part.stop - part.start for part in parts)
    seconds, records = timed(lambda: [one for part in parts for one in read_part(files[0], part)])
    stages.add("read and parse JSON", seconds, len(records), size)
    chats = [record.values["messages"] for record in records]
    seconds, texts = timed(lambda: tokenizer.apply_chat_template(chats, tokenize=False))
    stages.add("render the template (peer: apply_chat_template)", seconds, len(records), size)
    rust = tokenizer.backend_tokenizer
    rust.encode_batch(texts[:1000], add_special_tokens=False)
    raw_seconds, encodings = timed(lambda: rust.encode_batch(texts, add_special_tokens=False))
    raw = stages.add("raw encode_batch (peer)", raw_seconds, len(records), size)
    tokens = sum(len(one) for one in encodings)
    del encodings
    encoder, wheres = TextEncoder(tokenizer), ["sample"] * len(texts)
    seconds, _ = timed(lambda: [np.array(one.ids, dtype=np.int32) for one in encoder.encodings(wheres, texts)])
    stage = stages.add("tokenize: ids into arrays", seconds, len(records), size)
    seconds, encoded = timed(
        lambda: encode_part(iter(records), tokenizer=tokenizer, train_on="assistant", on_bad_record="error")
    )
    whole = stages.add("encode_part: check, render, tokenize, label", seconds, len(records), size)
    assert len(encoded.tokens) == tokens  # noqa: S101 - otherwise the two did not do the same
    seconds, _ = timed(lambda: (encoded.tokens.copy(), encoded.labels.copy()))
    stages.add("memcpy of its tokens and labels", seconds, len(records), 8 * tokens)
    return {"raw": raw, "stage": stage, "whole": whole}


def pack_all(source: Path, out: Path, workers: int, stages: Stages, documents: int) -> dict[str, Any]:
    """``hermetic pack`` end to end; its stages as its own progress tells them."""
    marks: list[tuple[float, str]] = []
    with peak_memory() as peak:
        start = time.perf_counter()
        manifest = pack_sources(
            source,
            out,
            tokenizer=TOKENIZER,
            capacity=CAPACITY,
            workers=workers,
            on_progress=lambda now: marks.append((time.perf_counter(), now.stage)),
        )
        end = time.perf_counter()
    first = {stage: min(moment for moment, named in marks if named == stage) for _, stage in marks}
    size = source.stat().st_size
    token_bytes = 8 * manifest.tokens_placed
    stages.add(
        f"hermetic pack, tokenizing ({workers} workers)", first["planning"] - first["tokenizing"], documents, size
    )
    after = end - first["planning"]
    stages.add("hermetic pack, all after tokenizing", after, documents, token_bytes)
    stages.add(f"hermetic pack, end to end ({workers} workers)", end - start, documents, size)
    return {
        "after": after,
        "peak_bytes": peak[0],
        "rows": manifest.rows,
        "tokens": manifest.tokens_placed,
        "end_to_end": documents / (end - start),
    }


def peer_after_tokenizing(packed: Path, folder: Path, stages: Stages) -> dict[str, float]:
    """TRL's ``pack_dataset`` with its default strategy on the very tokens, as a data set on disk."""
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    rows = datasets.load_from_disk(str(packed)).with_format("arrow")
    batches = []
    for batch in rows.iter(batch_size=1024):
        lengths = batch.column("seq_lengths").combine_chunks().flatten().to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        columns = [
            pa.ListArray.from_arrays(offsets, batch.column(name).combine_chunks().flatten())
            for name in ("input_ids", "labels")
        ]
        batches.append(pa.record_batch(columns, names=["input_ids", "labels"]))
    documents = datasets.Dataset(pa.Table.from_batches(batches))
    documents.save_to_disk(folder / "documents")
    documents = datasets.load_from_disk(folder / "documents")
    size = 8 * sum(len(batch.column(0).flatten()) for batch in batches)
    seconds, result = timed(lambda: pack_dataset(documents, CAPACITY, "bfd"))
    stages.add("TRL pack_dataset (bfd), the same tokens (peer)", seconds, len(documents), size)
    return {"after": seconds, "rows": len(result)}


def peer_end_to_end(source: Path, count: int, folder: Path, stages: Stages) -> float:
    """``datasets`` and TRL by default: one record at a time through the chat template, then ``pack_dataset``."""
    import datasets
    from trl import pack_dataset

    tokenizer = load_tokenizer(TOKENIZER)
    head = folder / "head.jsonl"
    with source.open("rb") as lines, head.open("wb") as file:
        for _, line in zip(range(count), lines, strict=False):
            file.write(line)

    def tokenize(example: dict[str, Any]) -> dict[str, Any]:
        made = tokenizer.apply_chat_template(
            example["messages"], return_dict=True, return_assistant_tokens_mask=True, tokenize=True
        )
        return {"input_ids": made["input_ids"], "assistant_masks": made["assistant_masks"]}

    def run() -> Any:
        records = datasets.load_dataset("json", data_files=str(head), split="train", cache_dir=str(folder / "cache"))
        return pack_dataset(records.map(tokenize, remove_columns=["messages"]), CAPACITY, "bfd")

    seconds, _ = timed(run)
    return stages.add(
        f"datasets.map + TRL pack_dataset, end to end, {count:,} (peer)", seconds, count, head.stat().st_size
    )


def main() -> None:
    """Measure, print a table, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--peer-documents", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    stages = Stages()
    folder = Path(tempfile.mkdtemp(prefix="hermetic-data-"))
    try:
        source, sample = folder / "chats.jsonl", folder / "sample.jsonl"
        write_conversations(source, options.documents)
        with source.open("rb") as lines, sample.open("wb") as file:
            for _, line in zip(range(SAMPLE), lines, strict=False):
                file.write(line)
        ours = pack_all(source, folder / "packed", options.workers, stages, options.documents)
        peer = peer_after_tokenizing(folder / "packed", folder, stages)
        speeds = stages_of_tokenizing(sample, folder, stages)
        peer_rate = peer_end_to_end(source, min(options.peer_documents, options.documents), folder, stages)
    finally:
        shutil.rmtree(folder)
    table = Table("stage", "seconds", "documents/s", "MB/s", title=f"{options.documents:,} conversations")
    for row in stages.rows:
        table.add_row(
            *(str(row[name]) for name in ("stage", "seconds", "documents_per_second", "megabytes_per_second"))
        )
    Console(width=120).print(table)
    result = {
        "documents": options.documents,
        "tokens": ours["tokens"],
        "workers": options.workers,
        "stages": stages.rows,
        "tokenizing_over_raw_encoding": round(speeds["stage"] / speeds["raw"], 3),
        "encode_part_over_raw_encoding": round(speeds["whole"] / speeds["raw"], 3),
        "after_tokenizing_over_trl": round(peer["after"] / ours["after"], 2),
        "end_to_end_over_trl": round(ours["end_to_end"] / peer_rate, 2),
        "rows": {"hermetic": ours["rows"], "trl": peer["rows"]},
        "peak_megabytes": round(ours["peak_bytes"] / 1e6),
    }
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main()
