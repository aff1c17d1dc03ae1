"""All ranks together read one order of rows, and go on in it from wherever they were saved, however many they are."""

import doctest
import itertools
import json

import numpy as np
import pytest
from feed_helpers import global_rows, steps_of
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hermetic.data import RowBatchSampler, RowSampler
from hermetic.data.feed import RowOrder, arguments, order, sampler
from hermetic.data.feed.order import drawn, permutation
from hermetic.errors import FeedError

RANKS = st.sampled_from([1, 2, 3, 8])


def samplers(rows, size, ranks, *, state=None, ragged_end="carry", seed=5):
    made = [
        RowBatchSampler(rows, rows_per_batch=size, seed=seed, rank=rank, num_ranks=ranks, ragged_end=ragged_end)
        for rank in range(ranks)
    ]
    for one in made:
        if state is not None:
            one.load_state_dict(state)
    return made


def endless(rows, count, seed=5):
    """The first rows of the global order."""
    return RowOrder(rows, seed).take(0, 0, count).tolist()


@pytest.mark.parametrize("module", [arguments, order, sampler], ids=lambda module: module.__name__)
def test_every_worked_example_gives_what_it_says(module):
    results = doctest.testmod(module)

    assert (results.attempted > 0, results.failed) == (True, 0)


@given(st.integers(1, 200), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_holds_every_row_once(rows, seed, epoch):
    assert sorted(RowOrder(rows, seed).epoch(epoch).tolist()) == list(range(rows))


def test_the_order_of_a_seed_and_an_epoch_is_fixed_for_ever():
    assert permutation(8, 0, 0).tolist() == [7, 5, 6, 3, 0, 4, 1, 2]
    assert permutation(8, 0, 1).tolist() == [7, 0, 2, 3, 1, 4, 5, 6]
    assert permutation(8, 1, 0).tolist() == [5, 4, 1, 6, 0, 7, 2, 3]
    assert [drawn(1, count, 10) for count in range(8)] == [5, 7, 9, 4, 4, 7, 8, 5]


def test_each_order_of_four_rows_comes_about_equally_often():
    found = [tuple(permutation(4, seed, 0).tolist()) for seed in range(2400)]
    counts = np.array([found.count(one) for one in itertools.permutations(range(4))])

    # chi-squared with 23 degrees of freedom stays below 49.7 in 999 of 1000 fair shuffles; the seeds are fixed
    assert ((counts - 100) ** 2 / 100).sum() < 49.7


@given(st.integers(1, 60), st.integers(1, 4), RANKS, st.integers(1, 3))
@example(rows=5, size=1, ranks=4, passes=3)  # a step of four ranks does not divide five packed rows
def test_the_ranks_together_read_the_global_order_whatever_their_number(rows, size, ranks, passes):
    assume(size * ranks <= rows)
    all_ranks = samplers(rows, size, ranks)
    found = [row for _ in range(passes) for row in global_rows([iter(one) for one in all_ranks])]

    assert found == endless(rows, len(found))
    assert passes * rows <= len(found) < passes * rows + size * ranks


@given(st.integers(1, 60), st.integers(1, 4), RANKS, st.data())
def test_what_one_number_of_ranks_left_another_reads_each_row_once(rows, size, ranks, data):
    size_after, ranks_after = data.draw(st.integers(1, 4)), data.draw(RANKS)
    assume(max(size * ranks, size_after * ranks_after) <= rows)
    all_ranks = samplers(rows, size, ranks)
    saved_after = data.draw(st.integers(0, all_ranks[0].num_steps))
    before = list(itertools.islice(steps_of([iter(one) for one in all_ranks]), saved_after))
    state = json.loads(json.dumps(all_ranks[0].position_after(saved_after).state_dict()))

    resumed = samplers(rows, size_after, ranks_after, state=state)
    found = [row for _, batches in before for batch in batches for row in batch]
    for _ in range(2):
        found += global_rows([iter(one) for one in resumed])

    assert found == endless(rows, len(found))


@given(st.integers(1, 60), st.integers(1, 4), RANKS, st.data())
def test_the_state_of_a_pass_resumes_it_as_if_it_had_not_stopped(rows, size, ranks, data):
    assume(size * ranks <= rows)
    rank = data.draw(st.integers(0, ranks - 1))
    whole = iter(samplers(rows, size, ranks)[rank])
    saved_after = data.draw(st.integers(0, len(samplers(rows, size, ranks)[rank])))
    for _ in range(saved_after):
        next(whole)
    again = iter(samplers(rows, size, ranks)[rank])
    again.load_state_dict(json.loads(json.dumps(whole.state_dict())))

    assert list(again) == list(whole)


def check_dealing(deal, rows, ranks):
    """What the tests above ask of any way to deal rows: the order is the same for one rank and for several."""
    alone, together = global_rows([iter(deal(0, 1))]), global_rows([iter(deal(rank, ranks)) for rank in range(ranks)])
    assert together[: len(alone)] == alone[: len(together)]
    assert len(set(together)) == len(together)
    assert abs(len(together) - rows) < ranks


def test_the_check_of_the_order_fails_for_blocks_of_rows_for_each_rank_and_for_rows_given_twice():
    def blocks(rank, ranks):
        size = 12 // ranks
        return [[row] for row in range(rank * size, (rank + 1) * size)]

    def padded(rank, ranks):
        rows = [*range(11), *range(ranks - 11 % ranks)] if 11 % ranks else list(range(11))
        return [[row] for row in rows[rank::ranks]]

    def ours(rank, ranks):
        return RowBatchSampler(12, rows_per_batch=1, rank=rank, num_ranks=ranks, ragged_end="drop")

    check_dealing(ours, 12, 3)
    with pytest.raises(AssertionError):
        check_dealing(blocks, 12, 3)
    with pytest.raises(AssertionError):
        check_dealing(padded, 11, 3)


@given(st.integers(1, 60), st.integers(1, 4), RANKS)
def test_drop_leaves_out_and_counts_less_than_one_step(rows, size, ranks):
    assume(size * ranks <= rows)
    all_ranks = samplers(rows, size, ranks, ragged_end="drop")
    left_out, expected = all_ranks[0].num_left_out, len(all_ranks[0])
    found = global_rows([iter(one) for one in all_ranks])

    assert found == endless(rows, rows - left_out)
    assert left_out < size * ranks
    assert [one.position.epoch for one in all_ranks] == [1] * ranks
    assert expected * size * ranks + left_out == rows


@given(st.integers(1, 60), st.integers(1, 4), RANKS)
def test_short_gives_every_row_of_the_epoch_once_and_every_rank_equally_many_batches(rows, size, ranks):
    all_ranks = samplers(rows, size, ranks, ragged_end="short")
    if 0 < rows % (size * ranks) < ranks:
        with pytest.raises(FeedError, match=rf"has {rows % (size * ranks)} rows for {ranks} ranks, expected one for"):
            iter(all_ranks[0])
        return
    lengths = [len(one) for one in all_ranks]
    batches = [list(one) for one in all_ranks]

    assert [len(one) for one in batches] == lengths == [lengths[0]] * ranks
    assert global_rows([iter(one) for one in batches]) == endless(rows, rows)
    last = [len(one[-1]) for one in batches]
    assert max(last) - min(last) <= 1


def test_five_packed_rows_over_four_ranks_lose_none():
    """A step of four ranks takes four of five packs; where the fifth was dropped, it was lost in each epoch."""
    carried = samplers(5, 1, 4, seed=None)
    passes = [global_rows([iter(one) for one in carried]) for _ in range(4)]

    assert passes == [[0, 1, 2, 3, 4, 0, 1, 2], [3, 4, 0, 1], [2, 3, 4, 0], [1, 2, 3, 4]]
    assert samplers(5, 1, 4, ragged_end="drop")[0].num_left_out == 1


@given(st.integers(1, 40), st.integers(1, 3), RANKS, st.data())
def test_the_batches_of_all_ranks_in_turn_are_what_a_loader_can_deal_out_itself(rows, size, ranks, data):
    ragged_end = data.draw(st.sampled_from(["carry", "drop", "short"]))
    assume(rows >= size * ranks and not (ragged_end == "short" and 0 < rows % (size * ranks) < ranks))
    together = RowBatchSampler(rows, rows_per_batch=size, rank=None, num_ranks=ranks, seed=5, ragged_end=ragged_end)
    expected = len(together)
    batches = list(together)
    dealt = [list(one) for one in samplers(rows, size, ranks, ragged_end=ragged_end)]

    assert len(batches) == expected
    assert [batches[rank::ranks] for rank in range(ranks)] == dealt


@given(st.integers(1, 40), st.integers(1, 3), RANKS, st.data())
def test_row_by_row_is_batch_by_batch_also_when_resumed_inside_a_batch(rows, size, ranks, data):
    ragged_end = data.draw(st.sampled_from(["carry", "drop", "short"]))
    assume(rows >= size * ranks and not (ragged_end == "short" and 0 < rows % (size * ranks) < ranks))
    options = {"rows_per_batch": size, "num_ranks": ranks, "ragged_end": ragged_end}
    rank = data.draw(st.sampled_from([None, *range(ranks)]))
    single = RowSampler(rows, rank=rank, **options)
    expected = [row for batch in RowBatchSampler(rows, rank=rank, **options) for row in batch]
    assert len(single) == len(expected)
    reading = iter(single)
    taken = data.draw(st.integers(0, len(expected)))
    found = [next(reading) for _ in range(taken)]
    again = iter(RowSampler(rows, rank=rank, **options))
    again.load_state_dict(json.loads(json.dumps(reading.state_dict())))

    assert found + list(again) == expected


@given(st.integers(1, 40), st.integers(1, 3), RANKS, st.integers(0, 6))
def test_set_epoch_goes_where_the_passes_before_would_have_led(rows, size, ranks, epoch):
    assume(size * ranks <= rows)
    walked, jumped = (samplers(rows, size, ranks)[0] for _ in range(2))
    for _ in range(epoch):
        list(walked)
    jumped.set_epoch(epoch)

    assert walked.position == jumped.position
    assert list(walked) == list(jumped)


def test_a_pass_that_is_left_starts_over_and_set_epoch_to_its_own_epoch_keeps_a_loaded_position():
    one = RowBatchSampler(10, rows_per_batch=2, seed=None)
    one.load_state_dict(one.position_after(2).state_dict())
    one.set_epoch(0)
    next(iter(one))

    assert next(iter(one)) == [4, 5]
    assert one.position.position == 4


@pytest.mark.parametrize(
    ("arguments_", "message"),
    [
        ({"rows": 0}, "the number of rows is 0; expected a whole number of at least 1"),
        ({"rows": []}, "there are 0 rows, expected from 1 to 2147483647"),
        ({"rows_per_batch": 0}, "rows_per_batch is 0; expected a whole number of at least 1"),
        ({"rank": 2, "num_ranks": 2}, "rank is 2 of 2 ranks, expected 0 to 1"),
        ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
        ({"ragged_end": "wrap"}, "ragged_end is 'wrap'; expected one of: carry, drop, short"),
        ({"num_ranks": 11}, "10 rows are less than the 11 of one step of 11 ranks with 1 rows each"),
    ],
)
def test_a_sampler_that_cannot_be_is_refused_by_name(arguments_, message):
    with pytest.raises(FeedError, match=message):
        RowBatchSampler(**{"rows": 10, "rows_per_batch": 1, **arguments_})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rows": 9}, "saved with num_rows=9, and here it is 10: it is another order of rows"),
        ({"seed": 4}, "saved with seed=4, and here it is 0"),
        ({"position": 10}, "the position is 10 of 10 rows, expected less"),
        ({"epoch": -1}, "epoch of the position is -1, expected a whole number of at least 0"),
        ({"format": "other"}, "not of the format 'hermetic.row_position'"),
        ({"version": 2}, "is of version 2, and this release of hermetic reads version 1"),
        ({"more": 1}, r"in the keys \['more'\]"),
    ],
)
def test_a_position_in_other_rows_is_refused_by_name(changes, message):
    one = RowBatchSampler(10, rows_per_batch=1)

    with pytest.raises(FeedError, match=message):
        one.load_state_dict({**one.state_dict(), **changes})
    assert one.position.position == 0


def test_more_batches_than_a_pass_has_are_refused():
    with pytest.raises(FeedError, match="num_batches is 6, expected at most the 5 of the pass"):
        RowBatchSampler(10, rows_per_batch=2).position_after(6)
