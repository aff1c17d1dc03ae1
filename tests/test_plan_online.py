"""The packer of streams: bounded, conserving, near the whole plan, and resumable anywhere."""

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from length_files import length_file

import hermetic
import hermetic.plan.online
from hermetic.errors import DocumentTooLongError, PlanError
from hermetic.plan import OnlinePacker, Piece, plan_rows

ROOT = Path(hermetic.__file__).parents[1]
CAPACITY = 10
LENGTHS = st.lists(st.integers(0, 35), max_size=60)
SETTINGS = {
    "max_buffered_tokens": st.integers(CAPACITY, 90),
    "on_overflow": st.sampled_from(["truncate", "split", "drop"]),
    "max_documents_per_row": st.none() | st.integers(1, 3),
}
PACKERS = st.fixed_dictionaries(SETTINGS)


def emitted_by(packer, lengths, first=0):
    """All rows of a stream whose documents are named by their place in it."""
    rows = [row for document, length in enumerate(lengths, first) for row in packer.push(document, length)]
    return rows + packer.flush()


def tokens_of(entry, lengths):
    """What an entry of a row stands for: (document, token) pairs."""
    if isinstance(entry, Piece):
        return [(entry.document, entry.start + token) for token in range(entry.length)]
    return [(entry, token) for token in range(lengths[entry])]


def expected_tokens(lengths, on_overflow):
    kept = {"truncate": lambda n: min(n, CAPACITY), "split": lambda n: n, "drop": lambda n: n if n <= CAPACITY else 0}
    return [(document, token) for document, n in enumerate(lengths) for token in range(kept[on_overflow](n))]


def lognormal(size, capacity, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(5.3, 0.9, size).astype(np.int64), 1, capacity)


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS, arguments=PACKERS)
def test_every_pushed_token_is_in_exactly_one_row_or_counted_as_lost(lengths, arguments):
    packer = OnlinePacker(CAPACITY, **arguments)
    rows = emitted_by(packer, lengths)
    tokens = [token for row in rows for entry in row for token in tokens_of(entry, lengths)]
    assert sorted(tokens) == expected_tokens(lengths, arguments["on_overflow"])
    assert packer.num_tokens == sum(lengths) == len(tokens) + packer.lost_tokens
    assert packer.num_documents == len(lengths)
    assert packer.num_rows == len(rows)


@settings(deadline=None, max_examples=150)
@given(lengths=LENGTHS, arguments=PACKERS)
def test_no_row_is_empty_or_above_a_limit_and_the_buffer_never_exceeds_its_bound(lengths, arguments):
    packer = OnlinePacker(CAPACITY, **arguments)
    limit = arguments["max_documents_per_row"] or len(lengths) + 1
    rows = []
    for document, length in enumerate(lengths):
        rows += packer.push(document, length)
        assert packer.buffered_tokens <= arguments["max_buffered_tokens"]
        assert packer.num_tokens == packer.emitted_tokens + packer.buffered_tokens + packer.lost_tokens
        assert packer.buffered_tokens == sum(packer.state_dict()["lengths"])
    rows += packer.flush()
    assert packer.buffered_tokens == packer.num_buffered == 0
    for row in rows:
        assert 1 <= len(row) <= limit
        assert 1 <= sum(len(tokens_of(entry, lengths)) for entry in row) <= CAPACITY


@settings(deadline=None, max_examples=100)
@given(lengths=LENGTHS, arguments=PACKERS, data=st.data())
def test_a_packer_resumed_from_json_at_any_point_emits_the_same_rows(lengths, arguments, data):
    stop = data.draw(st.integers(0, len(lengths)))
    whole, before = OnlinePacker(CAPACITY, **arguments), OnlinePacker(CAPACITY, **arguments)
    rows = [row for document in range(stop) for row in before.push(document, lengths[document])]
    after = OnlinePacker(CAPACITY, **arguments)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.state_dict() == before.state_dict()
    assert rows + emitted_by(after, lengths[stop:], stop) == emitted_by(whole, lengths)
    assert after.state_dict() == whole.state_dict()


def test_a_packer_resumed_in_another_process_emits_the_same_rows():
    lengths = lognormal(3_000, 2_000, seed=4).tolist()
    options = {"max_buffered_tokens": 40_000, "on_overflow": "split"}
    packer = OnlinePacker(700, **options)
    for document, length in enumerate(lengths[:1_700]):
        packer.push(f"d{document}", length)
    program = (
        "import json, sys; from hermetic.plan import OnlinePacker\n"
        "state, options, documents = json.load(sys.stdin)\n"
        "packer = OnlinePacker(700, **options); packer.load_state_dict(state)\n"
        "rows = [row for name, length in documents for row in packer.push(name, length)] + packer.flush()\n"
        "print(repr(rows)); print(json.dumps(packer.state_dict()))\n"
    )
    rest = [(f"d{document}", length) for document, length in enumerate(lengths)][1_700:]
    state = packer.state_dict()
    assert len(state["entries"]) > 10, "nothing that was read waits to be emitted"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([state, options, rest]),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    rows = [row for name, length in rest for row in packer.push(name, length)] + packer.flush()
    printed_rows, printed_state = done.stdout.splitlines()
    assert printed_rows == repr(rows)
    assert json.loads(printed_state) == packer.state_dict()


def test_a_stream_that_fits_into_the_buffer_is_packed_as_plan_rows_packs_it():
    lengths = lognormal(500, 2_048).tolist()
    packer = OnlinePacker(2_048, max_buffered_tokens=sum(lengths))
    plan = plan_rows(lengths, 2_048)
    rows = emitted_by(packer, lengths)
    whole = [row for row in rows if lengths[row[0]] == 2_048]  # these left first, for they are rows of their own
    assert sorted(map(tuple, rows)) == sorted(tuple(row.tolist()) for row in plan.rows())
    assert rows[: len(whole)] == whole


@pytest.mark.parametrize(("capacity", "seed"), [(2_048, 0), (4_096, 1)])
def test_a_buffer_of_ten_thousand_documents_is_within_a_thousandth_of_the_whole_plan(capacity, seed):
    lengths = lognormal(60_000, capacity, seed)
    buffered = 10_000 * int(lengths.mean())
    packer = OnlinePacker(capacity, max_buffered_tokens=buffered)
    rows = emitted_by(packer, lengths.tolist())
    assert sum(lengths) > 3 * buffered
    assert len(rows) <= 1.001 * plan_rows(lengths, capacity).num_rows


@pytest.mark.slow
@pytest.mark.lengths
@pytest.mark.parametrize("name", ["openchat_v1_lengths.json", "sharegpt_lengths.json"])
@pytest.mark.parametrize("capacity", [2_048, 4_096, 8_192])
def test_on_real_lengths_the_stream_is_within_a_thousandth_of_the_whole_plan(name, capacity):
    lengths = np.array(length_file(name)["lengths"])
    offline = plan_rows(lengths[lengths > 0], capacity, on_overflow="truncate")
    packer = OnlinePacker(capacity, max_buffered_tokens=10_000 * int(lengths.mean()), on_overflow="truncate")
    assert len(emitted_by(packer, lengths.tolist())) <= 1.001 * offline.num_rows


def test_a_small_buffer_costs_rows_and_a_large_one_does_not():
    lengths = lognormal(5_000, 2_048).tolist()
    rows = [len(emitted_by(OnlinePacker(2_048, max_buffered_tokens=size), lengths)) for size in (2_048, 2_000_000)]
    assert rows[1] == plan_rows(lengths, 2_048).num_rows < rows[0]


def test_splitting_emits_full_rows_at_once_and_keeps_the_rest_for_company():
    packer = OnlinePacker(4, max_buffered_tokens=8, on_overflow="split")
    heads = [[Piece(document="long", start=0, length=4)], [Piece(document="long", start=4, length=4)]]
    assert packer.push("long", 9) == heads
    assert packer.push("short", 3) == []
    assert packer.flush() == [["short", Piece(document="long", start=8, length=1)]]
    assert packer.lost_tokens == 0


def test_truncation_leaves_a_piece_that_says_what_is_left_and_counts_the_rest():
    packer = OnlinePacker(4, max_buffered_tokens=4, on_overflow="truncate")
    assert packer.push("long", 9) == [[Piece(document="long", start=0, length=4)]]
    assert (packer.lost_tokens, packer.num_truncated, packer.num_dropped, packer.utilization) == (5, 1, 0, 1.0)


def test_dropping_counts_the_document_and_its_tokens():
    packer = OnlinePacker(4, max_buffered_tokens=4, on_overflow="drop")
    assert packer.push("long", 9) == packer.flush() == []
    assert (packer.lost_tokens, packer.num_dropped, packer.num_truncated, packer.utilization) == (9, 1, 0, 1.0)


def test_an_empty_document_is_counted_and_in_no_row():
    packer = OnlinePacker(4, max_buffered_tokens=4)
    assert packer.push("empty", 0) == packer.flush() == []
    assert (packer.num_empty, packer.num_documents, packer.lost_tokens) == (1, 1, 0)


def test_integers_of_numpy_are_taken_as_their_values_and_survive_json():
    packer = OnlinePacker(np.int64(4), max_buffered_tokens=np.int32(8))
    packer.push(np.int64(7), np.int16(2))
    packer.push(np.str_("a"), 2)
    assert json.loads(json.dumps(packer.state_dict()))["entries"] == [7, "a"]


def test_a_refused_document_leaves_the_packer_as_it_was():
    packer = OnlinePacker(4, max_buffered_tokens=8)
    packer.push("a", 3)
    before = packer.state_dict()
    with pytest.raises(DocumentTooLongError, match=r"document 'b' has 5 tokens and a row holds 4 \(5 > 4\).*'split'"):
        packer.push("b", 5)
    with pytest.raises(PlanError, match=r"the length of document 'c' is -1; expected a whole number of at least 0"):
        packer.push("c", -1)
    with pytest.raises(PlanError, match=r"the length of document 'c' is 1\.5, a float"):
        packer.push("c", 1.5)
    with pytest.raises(PlanError, match=r"the length of document 'c' is True, a boolean"):
        packer.push("c", True)
    assert packer.state_dict() == before


@pytest.mark.parametrize("value", [None, 1.0, True, (1, 2), b"a"])
def test_an_id_that_json_would_change_is_refused(value):
    with pytest.raises(PlanError, match=r"document id .* is a \w+; expected an int or a str, which JSON can hold"):
        OnlinePacker(4, max_buffered_tokens=4).push(value, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 0}, "capacity is 0; expected a whole number of at least 1"),
        ({"max_buffered_tokens": 9.0}, r"max_buffered_tokens is 9\.0, a float"),
        ({"max_buffered_tokens": 3}, "max_buffered_tokens is 3, less than the capacity 4; expected room for at least"),
        ({"on_overflow": "cut"}, "on_overflow is 'cut'; expected one of: error, truncate, split, drop"),
        ({"max_documents_per_row": 0}, "max_documents_per_row is 0; expected a whole number of at least 1"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises(PlanError, match=message):
        OnlinePacker(**({"capacity": 4, "max_buffered_tokens": 8} | arguments))


def sound_state():
    packer = OnlinePacker(4, max_buffered_tokens=8, on_overflow="split")
    packer.push("a", 3)
    packer.push("b", 5)
    return json.loads(json.dumps(packer.state_dict()))


def piece(**changes):
    return {"document": "b", "start": 4, "length": 1} | changes


def ledger(**changes):
    return sound_state()["ledger"] | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x"}, "it is not the state of an OnlinePacker"),
        ({"version": 2}, "it is of version 2, and this release of hermetic reads version 1"),
        ({"more": 1}, r"its keys differ from the expected ones in \['more'\]"),
        ({"capacity": 5}, "its packer had capacity=5, and this one has 4"),
        ({"on_overflow": "drop"}, "its packer had on_overflow='drop', and this one has 'split'"),
        ({"lengths": None}, "entries and lengths are not both lists"),
        ({"lengths": [3]}, "it has 2 entries and 1 lengths"),
        ({"lengths": [3, 0]}, "the buffered length of Piece.* is 0; expected a whole number of at least 1"),
        ({"lengths": [4, 1]}, "it buffers 'a' with 4 tokens, and only less than 4 ever wait"),
        ({"lengths": [3, 2]}, r"Piece\(document='b', start=4, length=1\) is buffered with 2 tokens"),
        ({"lengths": [2, 1]}, "its emitted, lost and buffered tokens are 7, but 8 were pushed"),
        ({"entries": ["a"] * 4, "lengths": [3] * 4}, "it buffers 12 tokens, more than max_buffered_tokens 8"),
        ({"entries": ["a", None]}, "document id None is a NoneType"),
        ({"entries": ["a", {"document": "b"}]}, r"a piece has the keys \['document'\], not document, start and length"),
        ({"entries": ["a", piece(start=-1)]}, "the start of a piece is -1; expected a whole number of at least 0"),
        ({"entries": ["a", piece(length=0)]}, "the length of a piece is 0; expected a whole number of at least 1"),
        ({"ledger": {}}, "its ledger does not count exactly emitted_tokens, lost_tokens, num_documents"),
        ({"ledger": ledger(num_rows=-1)}, "num_rows is -1; expected a whole number of at least 0"),
    ],
)
def test_a_damaged_state_is_refused_and_the_packer_stays_as_it_was(changes, message):
    packer = OnlinePacker(4, max_buffered_tokens=8, on_overflow="split")
    packer.push("z", 2)
    before = packer.state_dict()
    with pytest.raises(PlanError, match=message):
        packer.load_state_dict(sound_state() | changes)
    assert packer.state_dict() == before
    packer.load_state_dict(sound_state())
    assert packer.flush() == [["a", Piece(document="b", start=4, length=1)]]


def test_a_state_that_is_no_mapping_is_refused():
    with pytest.raises(PlanError, match=r"not the state of an OnlinePacker\. Expected what state_dict returned"):
        OnlinePacker(4, max_buffered_tokens=8).load_state_dict([1])


def test_the_examples_of_the_module_are_true():
    assert doctest.testmod(hermetic.plan.online) == (0, 4)
