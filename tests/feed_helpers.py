"""For the tests of hermetic.data.feed: small folders and streams, and readings of them by many ranks and workers."""

import itertools
import types
import unittest.mock

import numpy as np
from data_helpers import DEMO_TOKENIZER, write_jsonl
from feed_rows import known

from hermetic.data import DocumentList, PackedStream, pack_sources
from hermetic.data.feed import stream as stream_module


def documents(lengths, *, seed=0):
    """Documents of random tokens; no two tokens of all documents are likely the same run."""
    random = np.random.default_rng(seed)
    return [{"input_ids": random.integers(1, 200, length).tolist()} for length in lengths]


def packed_folder(folder, lengths, *, capacity=8, seed=0, **options):
    source = write_jsonl(folder / "ids.jsonl", documents(lengths, seed=seed))
    pack_sources(source, folder / "rows", tokenizer=DEMO_TOKENIZER, capacity=capacity, **options)
    return folder / "rows"


def steps_of(iterators):
    """What all ranks get in each step, until no rank gets anything; a rank that has none gives None."""
    for step in itertools.count():
        batches = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in batches):
            return
        yield step, batches


def global_rows(iterators):
    """The ranks' rows of all steps end to end."""
    return [row for _, batches in steps_of(iterators) for batch in batches for row in batch or []]


LENGTHS = [3, 9, 1, 7, 0, 4, 12, 6, 2, 2, 5, 8, 1, 20, 3, 3, 7, 6, 4, 1, 5, 2, 9, 8, 3, 1, 1, 6, 30, 2, 4, 7, 5]


def stream_of(lengths=LENGTHS, *, documents_per_part=4, **changes):
    """A stream with everything in it: splits, an empty document, several parts, two epochs."""
    options = {
        "capacity": 8,
        "rows_per_batch": 2,
        "ragged_end": "short",
        "on_overflow": "split",
        "max_buffered_tokens": 24,
        "shuffle_rows": 3,
        "epochs": 2,
        "provenance": True,
    }
    return PackedStream(
        DocumentList(documents(lengths), documents_per_part=documents_per_part), **{**options, **changes}
    )


def _pass_of(stream, worker, number):
    """What a worker of a loader gets from the stream."""
    info = types.SimpleNamespace(id=worker, num_workers=number)
    with unittest.mock.patch.object(stream_module, "get_worker_info", return_value=info if number > 1 else None):
        return iter(stream)


class Workers:
    """The workers of one rank in one process, asked in turn as a DataLoader asks them."""

    def __init__(self, stream, number):
        self.passes = [_pass_of(stream, worker, number) for worker in range(number)]
        self.turn = 0
        self.states = [reader.state_dict() for reader in self.passes]

    def __iter__(self):
        return self

    def __next__(self):
        worker = self.turn % len(self.passes)
        batch = next(self.passes[worker])
        self.states[worker] = self.passes[worker].state_dict()
        self.turn += 1
        return [known(row) for row in batch]

    def state_dict(self):
        """As a loader's: the states of all workers somewhere inside."""
        return {"_snapshot": {f"worker_{number}": state for number, state in enumerate(self.states)}, "turn": self.turn}

    def load_state_dict(self, state):
        self.states = list(state["_snapshot"].values())
        for reader, saved in zip(self.passes, self.states, strict=True):
            reader.load_state_dict(saved)
        self.turn = state["turn"]


def ranks_of(number, *, workers=1, start=None, **changes):
    """Readers of all ranks."""
    streams = [stream_of(rank=rank, num_ranks=number, **changes) for rank in range(number)]
    for stream in streams:
        if start is not None:
            stream.start_at(start)
    return [Workers(stream, workers) for stream in streams]
