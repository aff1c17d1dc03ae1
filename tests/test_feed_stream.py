"""A stream gives one order of rows to any ranks and workers, loses nothing unsaid, and resumes as if not stopped."""

import dataclasses
import doctest
import itertools
import json
import pickle

import numpy as np
import pytest
from data_helpers import demo_tokenizer, write_jsonl
from feed_helpers import LENGTHS, documents, global_rows, known, ranks_of, steps_of, stream_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermetic.data import DocumentList, FileDocuments, PackedStream, StreamLedger, StreamPosition
from hermetic.data import stream_position_from_loaders as position_of
from hermetic.data.feed import DocumentPart, DocumentSource, ledger_from_loader, maker, source, stream
from hermetic.errors import DocumentTooLongError, FeedError, PlanError

RANKS = st.sampled_from([1, 2, 3, 8])
WORKERS = st.integers(1, 2)
BATCH = st.integers(1, 3)
DOCUMENTS = st.lists(st.integers(0, 20), min_size=1, max_size=24)
ENDS = st.sampled_from(["short", "drop"])
POLICIES = st.sampled_from(["truncate", "split", "drop"])


def whole(lengths=LENGTHS, **changes):
    """The global order, read by one."""
    return [known(row) for batch in stream_of(lengths, **changes) for row in batch]


@pytest.mark.parametrize("module", [source, stream], ids=lambda module: module.__name__)
def test_every_worked_example_gives_what_it_says(module):
    results = doctest.testmod(module)

    assert (results.attempted > 0, results.failed) == (True, 0)


@settings(max_examples=12)
@given(DOCUMENTS, POLICIES, BATCH, RANKS, WORKERS)
@example(lengths=LENGTHS, policy="split", size=1, ranks=4, workers=2)
@example(lengths=[1], policy="split", size=2, ranks=1, workers=1)  # one step holds a document of both epochs
def test_ranks_and_workers_together_read_the_global_order(lengths, policy, size, ranks, workers):
    options = {"lengths": lengths, "on_overflow": policy, "rows_per_batch": size}
    expected = whole(**options)

    assert global_rows(ranks_of(ranks, workers=workers, **options)) == expected
    complete = len(expected) // (ranks * size) * ranks * size
    assert global_rows(ranks_of(ranks, workers=workers, ragged_end="drop", **options)) == expected[:complete]


@settings(max_examples=12)
@given(lengths=DOCUMENTS, policy=POLICIES, ragged_end=ENDS, size=BATCH, ranks=RANKS, shuffled=st.integers(0, 4))
def test_the_ledger_counts_every_token_and_every_document(*, lengths, policy, ragged_end, size, ranks, shuffled):
    reading = iter(
        stream_of(
            lengths,
            on_overflow=policy,
            ragged_end=ragged_end,
            rows_per_batch=size,
            num_ranks=ranks,
            shuffle_rows=shuffled,
            epochs=1,
        )
    )
    for _ in reading:
        reading.ledger.check()
    ledger, longer = reading.ledger, [length for length in lengths if length > 8]
    lost = {"truncate": sum(longer) - 8 * len(longer), "drop": sum(longer), "split": 0}[policy]

    ledger.check()
    assert (ledger.documents_read, ledger.tokens_read) == (len(lengths), sum(lengths))
    assert (ledger.documents_empty, ledger.tokens_waiting) == (lengths.count(0), 0)
    assert ledger.documents_dropped == (len(longer) if policy == "drop" else 0)
    assert ledger.documents_truncated == (len(longer) if policy == "truncate" else 0)
    assert ledger.tokens_lost == lost
    assert ledger.tokens_placed + ledger.tokens_left_out == sum(lengths) - lost
    assert ledger.rows_left_out < size * ranks
    assert ragged_end == "drop" or ledger.rows_left_out == 0


def test_a_ledger_that_misses_a_token_is_refused():
    reading = iter(stream_of())
    next(reading)
    reading.ledger.check()

    with pytest.raises(FeedError, match=r"does not add up: \d+ tokens were read, and \d+ are"):
        dataclasses.replace(reading.ledger, tokens_waiting=reading.ledger.tokens_waiting - 1).check()
    state = reading.state_dict()
    state["maker"]["buffer"] = state["maker"]["buffer"][:-1]
    with pytest.raises(FeedError, match="does not add up"):
        iter(stream_of()).load_state_dict(state)


def tokens_by_document(rows):
    """What each document of an epoch has in the rows: its part, its number, its tokens in whatever pieces."""
    found = {}
    for row in rows:
        ends = np.cumsum(row["seq_lengths"])
        pieces = np.split(row["input_ids"], ends[:-1])
        for part, number, piece in zip(row["part_numbers"], row["document_numbers"], pieces, strict=True):
            found.setdefault((int(part), int(number)), []).append(piece.tolist())
    return found


def test_every_document_is_in_each_epoch_once_and_its_labels_are_its_own():
    rows = [row for batch in stream_of(epochs=1) for row in batch]
    expected = documents(LENGTHS)
    found = tokens_by_document(rows)

    for (part, number), pieces in found.items():
        ids = expected[4 * part + number]["input_ids"]
        assert sorted(itertools.chain(*pieces)) == sorted(ids)
        assert len(pieces) == -(-len(ids) // 8)
    assert len(found) == sum(length > 0 for length in LENGTHS)
    for row in rows:
        starts = np.cumsum(row["seq_lengths"]) - row["seq_lengths"]
        supervised = np.delete(np.arange(len(row["labels"])), starts)
        assert (row["labels"][starts] == -100).all()
        assert (row["labels"][supervised] == row["input_ids"][supervised]).all()
        assert row["seq_lengths"].sum() == len(row["input_ids"]) <= 8


def test_epochs_hold_the_same_documents_in_another_order_and_set_epoch_reaches_each():
    both = whole(rows_per_batch=1)
    one, two = whole(epochs=1, rows_per_batch=1), stream_of(epochs=1, rows_per_batch=1)
    two.set_epoch(1)
    second = [known(row) for batch in two for row in batch]

    assert both == one + second
    assert one != second
    assert sorted(token for row in one for token in row[0]) == sorted(token for row in second for token in row[0])


def test_a_seed_gives_another_order_and_none_that_of_the_source():
    assert whole(seed=1) != whole(seed=2)
    plain = stream_of([5, 6, 7], seed=None, shuffle_rows=0, epochs=1)
    assert [row["document_numbers"].tolist() for batch in plain for row in batch] == [[2], [1], [0]]
    with pytest.raises(FeedError, match="seed is None and shuffle_rows is 3, expected a seed or shuffle_rows=0"):
        stream_of(seed=None)


@settings(max_examples=12)
@given(lengths=DOCUMENTS, policy=POLICIES, ragged_end=ENDS, ranks=RANKS, workers=WORKERS, data=st.data())
def test_a_consumer_resumes_as_if_it_had_not_stopped(*, lengths, policy, ragged_end, ranks, workers, data):
    options = {"lengths": lengths, "on_overflow": policy, "ragged_end": ragged_end}
    rank = data.draw(st.integers(0, ranks - 1))
    reading = ranks_of(ranks, workers=workers, **options)[rank]
    total = len(list(ranks_of(ranks, workers=workers, **options)[rank]))
    for _ in range(data.draw(st.integers(0, total))):
        next(reading)
    again = ranks_of(ranks, workers=workers, **options)[rank]
    again.load_state_dict(json.loads(json.dumps(reading.state_dict())))

    assert list(again) == list(reading)


@settings(max_examples=12)
@given(lengths=DOCUMENTS, ranks=RANKS, workers=WORKERS, after=RANKS, workers_after=WORKERS, size=BATCH, data=st.data())
def test_other_ranks_and_workers_go_on_with_exactly_the_rest(
    *, lengths, ranks, workers, after, workers_after, size, data
):
    expected = whole(lengths, rows_per_batch=2)
    readers = ranks_of(ranks, workers=workers, lengths=lengths)
    complete = len(expected) // (2 * ranks)
    steps = data.draw(st.integers(0, complete))
    before = [row for _, batches in itertools.islice(steps_of(readers), steps) for batch in batches for row in batch]
    lag = data.draw(st.integers(0, steps))
    states = [reader.state_dict() for reader in readers]
    if lag:
        earlier = ranks_of(ranks, workers=workers, lengths=lengths)
        list(itertools.islice(steps_of(earlier), steps - lag))
        states = [reader.state_dict() | {"_steps_since_snapshot": lag} for reader in earlier]
    position = StreamPosition.from_state_dict(json.loads(json.dumps(position_of(states[::-1]).state_dict())))
    resumed = ranks_of(after, workers=workers_after, start=position, lengths=lengths, rows_per_batch=size)

    assert before + global_rows(resumed) == expected


@pytest.mark.parametrize("lost", ["packer", "ready", "buffer", "document"])
def test_a_state_without_what_waits_would_lose_it_and_the_check_sees_it(lost):
    """A pending document that lived nowhere but in a generator was skipped at resume."""
    reading = iter(stream_of(max_buffered_tokens=64))
    for _ in range(3):
        next(reading)
    state = reading.state_dict()
    rest = [known(row) for batch in reading for row in batch]
    assert state["maker"]["packer"]["entries"]
    assert state["maker"]["buffer"]
    again = iter(stream_of(max_buffered_tokens=64))
    again.load_state_dict(state)
    assert [known(row) for batch in again for row in batch] == rest

    broken = forgetful(json.loads(json.dumps(state)), lost)
    again = iter(stream_of(max_buffered_tokens=64))
    try:
        again.load_state_dict(broken)
    except (FeedError, PlanError):
        return
    assert lost in ("ready", "document")
    assert [known(row) for batch in again for row in batch] != rest or not state["maker"]["ready"]


def forgetful(state, what):
    if what == "packer":
        state["maker"]["packer"] |= {"entries": [], "lengths": []}
    elif what == "document":
        state["maker"]["document"] += 1
    else:
        state["maker"][what] = []
    return state


def test_a_state_holds_no_tokens_and_grows_with_what_waits():
    lengths = [100] * 400
    options = {"capacity": 1000, "max_buffered_tokens": 8000, "shuffle_rows": 8, "documents_per_part": 10}
    reading = iter(stream_of(lengths, **options))
    next(reading)

    assert len(json.dumps(reading.state_dict())) < 6000  # 150 documents and 15,000 tokens wait


@dataclasses.dataclass
class Counted:
    """A source that says which parts were read."""

    inner: DocumentList
    reads: list

    num_parts = property(lambda self: self.inner.num_parts)
    fingerprint = property(lambda self: self.inner.fingerprint)

    def read(self, part):
        self.reads.append(part)
        return self.inner.read(part)


def test_a_pass_reads_each_part_once_and_a_resume_only_those_that_wait():
    counted = Counted(DocumentList(documents([5] * 64), documents_per_part=4), [])
    assert isinstance(counted, DocumentSource)
    options = {"capacity": 20, "rows_per_batch": 1, "ragged_end": "short", "max_buffered_tokens": 40}
    make = lambda: PackedStream(counted, shuffle_rows=2, shuffle_parts=False, **options)  # noqa: E731
    reading = iter(make())
    for _ in range(8):
        next(reading)
    state = reading.state_dict()
    list(reading)
    assert counted.reads == list(range(16))
    counted.reads.clear()
    resumed = iter(make())
    resumed.load_state_dict(state)
    waiting = sorted(counted.reads)

    assert waiting == sorted(set(waiting))
    assert len(waiting) <= 5
    list(resumed)
    assert set(counted.reads) | set(range(12)) >= set(range(16))
    assert len(counted.reads) < 16


class Changed(DocumentList):
    """A source whose documents changed behind its back."""

    @property
    def fingerprint(self):
        return "the same"


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 5, 5, 4, 5, 5, 5, 5], "document 3 of part 0 has 4 tokens now, and had 5 when the state was saved"),
        ([5, 5], "document 3 of part 0 has -1 tokens now, and had 5"),
    ],
)
def test_a_source_that_gives_other_documents_now_is_refused(lengths, message):
    options = {"capacity": 8, "rows_per_batch": 1, "ragged_end": "short", "shuffle_rows": 2, "max_buffered_tokens": 16}
    reading = iter(PackedStream(Changed(documents([5] * 8)), **options))
    next(reading)

    with pytest.raises(FeedError, match=message):
        iter(PackedStream(Changed(documents(lengths)), **options)).load_state_dict(reading.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 9}, "capacity=8, and this one has 9"),
        ({"seed": 3}, "seed=0, and this one has 3"),
        ({"epochs": None}, "epochs=2, and this one has None"),
        ({"lengths": [1, 2]}, "num_parts=9, and this one has 1"),
        ({"rank": 1, "num_ranks": 2}, "of a consumer with rank=0, and this one has 1; to go on with other ranks"),
        ({"rows_per_batch": 5}, "rows_per_batch=2, and this one has 5"),
    ],
)
def test_a_state_of_another_stream_is_refused_with_the_way_out(changes, message):
    state = iter(stream_of()).state_dict()

    with pytest.raises(FeedError, match=message):
        iter(stream_of(**changes)).load_state_dict(state)


def test_positions_of_missing_or_uneven_ranks_are_refused():
    readers = ranks_of(3)
    states = [reader.state_dict() for reader in readers]
    assert position_of(states).rows_behind == 0

    with pytest.raises(FeedError, match=r"of the ranks \[0, 2\], expected one of each of the 3 ranks"):
        position_of([states[0], states[2]])
    next(readers[1])
    with pytest.raises(FeedError, match=r"the ranks stood after \[0, 1, 0\] steps, expected one number"):
        position_of([reader.state_dict() for reader in readers])
    with pytest.raises(FeedError, match="there is no state"):
        position_of([])
    with pytest.raises(FeedError, match="the state holds no pass of a stream"):
        position_of([{"_snapshot": {}}])
    with pytest.raises(FeedError, match="capacity=8, and this one has 9"):
        stream_of(capacity=9).start_at(position_of(states))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows_per_batch": 0}, "rows_per_batch is 0"),
        ({"ragged_end": "carry"}, "ragged_end is 'carry'; expected one of: drop, short"),
        ({"epochs": 0}, "epochs is 0"),
        ({"rank": 1}, "rank is 1 of 1 ranks"),
        ({"shuffle_rows": -1}, "shuffle_rows is -1"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_by_name(changes, message):
    with pytest.raises(FeedError, match=message):
        stream_of(**changes)


def test_a_document_that_does_not_fit_is_named():
    with pytest.raises(DocumentTooLongError, match=r"document 1 of part 0: .* has 9 tokens and a row holds 8"):
        list(stream_of([3, 9], on_overflow="error"))


def test_malformed_documents_and_parts_are_refused():
    with pytest.raises(FeedError, match="there are no documents"):
        DocumentList([])
    broken = DocumentList([*documents([3] * 5), {"input_ids": [1.5]}], documents_per_part=4)
    with pytest.raises(FeedError, match=r"in the documents from number 4 on, document 1's input_ids has dtype float"):
        broken.read(1)
    numbers = np.zeros(3, np.int32)
    with pytest.raises(FeedError, match="a part has 3 tokens, 3 labels and lengths of 2 tokens"):
        DocumentPart(tokens=numbers, labels=numbers, lengths=np.array([2], np.int32))


def test_a_stream_without_end_goes_on_and_its_pickle_is_another_equal_one():
    endless = stream_of(epochs=None)
    copy = pickle.loads(pickle.dumps(endless))  # noqa: S301 - made here

    found = [[known(row) for row in batch] for batch in itertools.islice(endless, 100)]
    assert [[known(row) for row in batch] for batch in itertools.islice(copy, 100)] == found
    assert all(len(batch) == 2 for batch in found)


def file_stream(folder, **changes):
    options = {"tokenizer": demo_tokenizer(), "spool": folder / "spool", "part_bytes": 200, **changes}
    return FileDocuments.find([str(folder / "*.jsonl")], **options)


def test_files_are_read_in_parts_and_a_state_is_good_where_they_lie_elsewhere(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "one.jsonl", [{"text": f"This is text {number}."} for number in range(30)])
        write_jsonl(tmp_path / folder / "two.jsonl", [{"text": "You are welcome."}, {"text": ""}] * 5)
    here, there = (file_stream(tmp_path / folder, on_bad_record="skip") for folder in ("a", "b"))
    options = {"capacity": 64, "rows_per_batch": 2, "ragged_end": "short", "shuffle_rows": 3, "on_overflow": "split"}
    reading = iter(PackedStream(pickle.loads(pickle.dumps(here)), **options))  # noqa: S301 - made here
    assert here.num_parts > 3
    next(reading)
    again = iter(PackedStream(there, **options))
    again.load_state_dict(reading.state_dict())
    rest = [known(row) for batch in reading for row in batch]

    assert [known(row) for batch in again for row in batch] == rest
    assert again.ledger == reading.ledger
    assert (again.ledger.documents_read, again.ledger.records_skipped) == (35, 5)


def test_what_files_cannot_give_a_stream_is_refused(tmp_path):
    path = write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    assert file_stream(tmp_path).fingerprint != file_stream(tmp_path, train_on="all").fingerprint

    with pytest.raises(FeedError, match=r"has the weight 0.5, and a stream takes each document once"):
        FileDocuments.find([f"{path}@0.5"], tokenizer=demo_tokenizer(), spool=tmp_path)
    with pytest.raises(FeedError, match="holds preference pairs, which belong into one row"):
        file_stream(tmp_path).read(0)


def test_the_ledger_is_in_the_state_of_a_loader():
    (reader,) = ranks_of(1, workers=3)
    list(reader)
    alone = iter(stream_of())
    list(alone)
    reader.states = [one.state_dict() for one in reader.passes]

    assert isinstance(ledger_from_loader(reader.state_dict()), StreamLedger)
    assert ledger_from_loader(reader.state_dict()) == alone.ledger
    assert maker.FORMAT in json.dumps(reader.state_dict())
