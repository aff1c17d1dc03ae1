"""Through torch's and torchdata's loaders, with workers that read ahead: nothing is lost, repeated or out of order."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from feed_helpers import LENGTHS, packed_folder, steps_of, stream_of
from feed_rows import known, rows_known
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from hermetic.data import (
    PackedDataset,
    RowBatchSampler,
    RowSampler,
    row_position_from_loaders,
    stream_position_from_loaders,
)
from hermetic.data.feed import RowOrder, ledger_from_loader
from hermetic.errors import FeedError

ROWS_PER_BATCH = 2
CONTEXTS = [(0, None), (2, "fork")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return packed_folder(tmp_path_factory.mktemp("packed"), [length % 8 + 1 for length in range(60)])


def sampler_of(dataset, rank=0, ranks=1, kind=RowBatchSampler, **options):
    return kind(dataset, rows_per_batch=ROWS_PER_BATCH, seed=3, rank=rank, num_ranks=ranks, **options)


def row_loader(folder, rank=0, ranks=1, *, workers=(0, None), loader=StatefulDataLoader, start=None, **options):
    """A loader of one rank's rows."""
    dataset = PackedDataset(folder)
    sampler = sampler_of(dataset, rank, ranks)
    if start is not None:
        sampler.load_state_dict(start.state_dict())
    number, context = workers
    return loader(
        dataset,
        batch_sampler=sampler,
        num_workers=number,
        multiprocessing_context=context,
        collate_fn=rows_known,
        **options,
    )


def stream_loader(rank=0, ranks=1, *, workers=(0, None), start=None, loader=StatefulDataLoader, options=None, **more):
    """A loader of one rank's part of a stream."""
    stream = stream_of(rank=rank, num_ranks=ranks, **(options or {}))
    if start is not None:
        stream.start_at(start)
    number, context = workers
    return loader(
        stream, batch_size=None, num_workers=number, multiprocessing_context=context, collate_fn=rows_known, **more
    )


def flat(batches):
    return [row for batch in batches for row in batch]


def in_order(folder, count):
    dataset = PackedDataset(folder)
    return [known(dataset[row]) for row in RowOrder(len(dataset), 3).take(0, 0, count)]


@pytest.mark.parametrize("workers", CONTEXTS)
@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
def test_a_loader_gives_the_rows_of_its_sampler_epoch_after_epoch(folder, workers, loader):
    loading = row_loader(folder, workers=workers, loader=loader)
    found = [flat(loading) for _ in range(2)]

    assert sum(found, []) == in_order(folder, sum(map(len, found)))  # noqa: RUF017 - two lists
    assert found[0] != found[1]


def test_a_sampler_of_single_rows_gives_the_same_batches(folder):
    dataset = PackedDataset(folder)
    options = {"sampler": sampler_of(dataset, 1, 2, RowSampler), "batch_size": ROWS_PER_BATCH}

    expected = list(row_loader(folder, 1, 2))
    assert list(DataLoader(dataset, collate_fn=rows_known, **options)) == expected
    saving = StatefulDataLoader(
        dataset, collate_fn=rows_known, **options | {"sampler": sampler_of(dataset, 1, 2, RowSampler)}
    )
    reading = iter(saving)
    found = [next(reading) for _ in range(2)]
    again = StatefulDataLoader(
        dataset, collate_fn=rows_known, **options | {"sampler": sampler_of(dataset, 1, 2, RowSampler)}
    )
    again.load_state_dict(json.loads(json.dumps(saving.state_dict())))

    assert found + list(again) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_where_all_rows_stand_is_known_from_the_steps_however_far_a_plain_loader_reads_ahead(folder, persistent):
    loading = row_loader(folder, workers=(2, "fork"), loader=DataLoader, persistent_workers=persistent)
    sampler = loading.batch_sampler
    first = list(loading)
    reading = iter(loading)
    second = list(itertools.islice(reading, len(sampler) - 2))
    position = sampler.position_after(len(second))
    rest = row_loader(folder, start=position)

    assert sampler.position.epoch == 2, "the workers have read to the end of the epoch"
    assert position.epoch == 1
    assert list(rest) == list(reading)
    assert len(first) > len(second)


@pytest.mark.parametrize("workers", CONTEXTS)
@pytest.mark.parametrize("stop", [0, 1, 5, None])
def test_a_stateful_loader_of_rows_resumes_inside_an_epoch_and_goes_on_to_the_next(folder, workers, stop):
    loading = row_loader(folder, workers=workers)
    reading = iter(loading)
    before = list(itertools.islice(reading, stop))
    state = json.loads(json.dumps(loading.state_dict()))
    rest, following = list(reading), list(loading)
    again = row_loader(folder, workers=workers)
    again.load_state_dict(state)
    found = list(again)
    if stop is None:  # the state was saved at the very end: the next pass is the next epoch
        assert found in ([], following)
        found = found or list(again)
        assert found == following
    else:
        assert found == rest
        assert list(again) == following
    assert flat(before) == in_order(folder, len(flat(before)))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("workers", "after"), [((0, None), (2, "fork")), ((2, "fork"), (0, None))])
def test_rows_go_on_under_other_ranks_and_workers(folder, every, workers, after):
    loaders = [row_loader(folder, rank, 2, workers=workers, snapshot_every_n_steps=every) for rank in range(2)]
    before = [batches for _, batches in itertools.islice(steps_of([iter(one) for one in loaders]), 4)]
    # a loader without workers has no snapshots but its state itself
    position = row_position_from_loaders([one.state_dict() for one in loaders])
    resumed = [row_loader(folder, rank, 3, workers=after, start=position) for rank in range(3)]
    rest = [batches for _, batches in steps_of([iter(one) for one in resumed])]
    found = flat(itertools.chain(*before, *rest))

    assert position.position == 4 * 2 * ROWS_PER_BATCH
    assert found == in_order(folder, len(found))
    assert len(found) >= len(PackedDataset(folder))


def test_states_of_ranks_at_different_steps_are_no_position(folder):
    loaders = [row_loader(folder, rank, 2) for rank in range(2)]
    readers = [iter(one) for one in loaders]
    assert row_position_from_loaders([one.state_dict() for one in loaders]).position == 0
    next(readers[0])

    with pytest.raises(FeedError, match=r"the ranks stand at \[\(0, 0\), \(0, 4\)\] \(epoch, position\), expected one"):
        row_position_from_loaders([one.state_dict() for one in loaders])
    with pytest.raises(FeedError, match=r"of the ranks \[0\], expected one of each of the 2 ranks"):
        row_position_from_loaders([loaders[0].state_dict()])
    with pytest.raises(FeedError, match="the state holds 0 passes of a row sampler, expected one"):
        row_position_from_loaders([{}])


def test_torchs_own_sampler_does_not_go_on_under_other_ranks(folder):
    """The check above can fail: rows dealt one by one to ranks are lost or repeated when the ranks change."""
    dataset = PackedDataset(folder)

    def theirs(rank, ranks):
        sampler = torch.utils.data.distributed.DistributedSampler(dataset, ranks, rank, seed=3)
        return DataLoader(dataset, sampler=sampler, batch_size=ROWS_PER_BATCH, collate_fn=rows_known)

    before = [batches for _, batches in itertools.islice(steps_of([iter(theirs(rank, 2)) for rank in range(2)]), 4)]
    skipped = 4 * 2 // 3
    rest = [list(itertools.islice(theirs(rank, 3), skipped, None)) for rank in range(3)]
    found = flat(itertools.chain(*before, *rest))

    assert len(found) != len(set(found))


@pytest.mark.parametrize("workers", CONTEXTS)
@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
def test_a_loader_gives_the_batches_of_a_stream_in_order_whatever_its_workers(workers, loader):
    expected = [[known(row) for row in batch] for batch in stream_of()]

    assert list(stream_loader(workers=workers, loader=loader)) == expected


@pytest.mark.parametrize("workers", CONTEXTS)
@pytest.mark.parametrize("stop", [0, 1, 4, None])
def test_a_stateful_loader_of_a_stream_resumes_exactly(workers, stop):
    loading = stream_loader(1, 2, workers=workers)
    reading = iter(loading)
    list(itertools.islice(reading, stop))
    state = json.loads(json.dumps(loading.state_dict()))
    rest = list(reading)
    again = stream_loader(1, 2, workers=workers)
    again.load_state_dict(state)
    found = list(again)

    assert found == rest or (stop is None and found == list(loading))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("workers", "after"), [((0, None), (2, "fork")), ((2, "fork"), (0, None))])
def test_a_stream_goes_on_under_other_ranks_and_workers(every, workers, after):
    expected = [known(row) for batch in stream_of() for row in batch]
    loaders = [stream_loader(rank, 2, workers=workers, snapshot_every_n_steps=every) for rank in range(2)]
    before = [batches for _, batches in itertools.islice(steps_of([iter(one) for one in loaders]), 4)]
    position = stream_position_from_loaders([one.state_dict() for one in loaders])
    resumed = [stream_loader(rank, 3, workers=after, start=position) for rank in range(3)]
    rest = [batch or [] for _, batches in steps_of([iter(one) for one in resumed]) for batch in batches]

    assert flat(itertools.chain(*before)) + flat(rest) == expected


@pytest.mark.parametrize("workers", CONTEXTS)
def test_the_ledger_of_a_whole_pass_reaches_the_process_of_the_loader(workers):
    loading = stream_loader(0, 3, workers=workers, options={"on_overflow": "drop", "ragged_end": "drop"})
    assert loading.dataset.last_ledger is None
    placed = flat(loading)
    ledger, snapshot = loading.dataset.last_ledger, ledger_from_loader(loading.state_dict())

    ledger.check()
    snapshot.check()
    assert 3 * len(placed) == ledger.rows_placed == snapshot.rows_placed
    assert ledger.documents_dropped == 2 * sum(length > 8 for length in LENGTHS) > 0
    assert (ledger.tokens_waiting, ledger.documents_read) == (0, 2 * len(LENGTHS))
    assert ledger.rows_left_out > 0


def test_workers_that_stay_see_the_next_epoch():
    options = {"epochs": 1}
    loading = stream_loader(workers=(2, "fork"), options=options, persistent_workers=True)
    first = list(loading)
    loading.dataset.set_epoch(1)
    second = list(loading)
    expected = stream_of(**options)
    expected.set_epoch(1)

    assert second == [[known(row) for row in batch] for batch in expected]
    assert first != second


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "rows"])
def test_spawned_workers_give_the_same_rows_and_resume_exactly(folder, kind):
    def loader(workers):
        return stream_loader(1, 2, workers=workers) if kind == "stream" else row_loader(folder, 1, 2, workers=workers)

    loading = loader((2, "spawn"))
    reading = iter(loading)
    before = [next(reading) for _ in range(3)]
    again = loader((2, "spawn"))
    again.load_state_dict(json.loads(json.dumps(loading.state_dict())))

    assert before + list(again) == list(loader((0, None)))


PROGRAM = """
import json, sys
from test_feed_loaders import *
states, folder = json.loads(open(sys.argv[1]).read()), sys.argv[2]
loaders = {"stream": stream_loader(1, 2), "rows": row_loader(folder, 1, 2)}
for name, loading in loaders.items():
    loading.load_state_dict(states[name])
print(json.dumps({name: list(loading) for name, loading in loaders.items()}))
"""


@pytest.mark.slow
def test_a_fresh_process_goes_on_with_the_same_rows(folder, tmp_path):
    loaders = {"stream": stream_loader(1, 2), "rows": row_loader(folder, 1, 2)}
    readers = {name: iter(loading) for name, loading in loaders.items()}
    for reader in readers.values():
        next(reader)
    states = {name: loading.state_dict() for name, loading in loaders.items()}
    (tmp_path / "states.json").write_text(json.dumps(states))
    tests = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "states.json"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rest = {name: list(reader) for name, reader in readers.items()}

    assert json.loads(done.stdout) == json.loads(json.dumps(rest))
    assert all(len(batches) > 3 for batches in rest.values())
