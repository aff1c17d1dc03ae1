"""The layout of documents into kernel calls loses no token, wastes little and is the cheapest of its kind."""

import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.attention.layout import Group, Layout, Prices, layout_from_lengths, prices_on

some_lengths = st.lists(st.integers(0, 40) | st.integers(0, 3), max_size=60).map(tuple)
price = st.sampled_from([0.0, 0.01, 1.0, 30.0, 1e6])
some_prices = st.builds(Prices, call=price, token=price, pair=price, move=price)

FREE_CALLS = Prices(call=0.0, token=1.0, pair=0.0, move=0.0)
DEAR_CALLS = Prices(call=1e9, token=1.0, pair=0.0, move=0.0)
DEAR_MOVES = Prices(call=1.0, token=1.0, pair=0.0, move=1e9)


def cost(layout, prices):
    """What a layout costs, from the meaning of the prices."""
    calls = sum(prices.call + group.num_slots * (prices.token + prices.pair * group.width) for group in layout.groups)
    return calls + (0.0 if layout.slots is None else prices.move * layout.slots.size)


def as_they_lie(*groups):
    """A layout without moves."""
    return Layout(
        groups=tuple(Group(width=max(lengths), lengths=lengths) for lengths in groups), tokens=None, slots=None
    )


@settings(max_examples=200)
@given(lengths=some_lengths, prices=some_prices)
def test_every_token_has_exactly_one_slot_and_each_row_is_one_document_from_its_first_token_on(lengths, prices):
    layout = layout_from_lengths(lengths, prices)
    num_slots = sum(group.num_slots for group in layout.groups)
    tokens = np.arange(num_slots) if layout.tokens is None else layout.tokens
    slots = np.arange(sum(lengths)) if layout.slots is None else layout.slots
    starts = {sum(lengths[:i]): length for i, length in enumerate(lengths) if length}

    assert tokens.size == num_slots
    assert tokens[slots].tolist() == list(range(sum(lengths)))
    begin = 0
    for group in layout.groups:
        grid = tokens[begin : begin + group.num_slots].reshape(group.rows, group.width)
        begin += group.num_slots
        for row, length in zip(grid.tolist(), group.lengths, strict=True):
            assert starts.pop(row[0]) == length
            assert row == [*range(row[0], row[0] + length), *[row[0] + length - 1] * (group.width - length)]
    assert not starts


@settings(max_examples=200)
@given(lengths=some_lengths, prices=some_prices)
def test_every_group_holds_at_most_a_quarter_of_its_tokens_as_padding_however_dear_a_call_is(lengths, prices):
    for group in layout_from_lengths(lengths, prices).groups:
        assert group.num_slots <= 1.25 * sum(group.lengths)
        assert max(group.lengths) == group.width


@settings(max_examples=200)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8).map(tuple), prices=some_prices)
def test_no_way_to_cut_the_sorted_lengths_is_cheaper_nor_is_the_row_as_it_lies(lengths, prices):
    found = cost(layout_from_lengths(lengths, prices), prices)
    by_length = sorted(lengths)

    for count in range(len(lengths)):
        for cuts in combinations(range(1, len(lengths)), count):
            groups = [tuple(part.tolist()) for part in np.split(np.array(by_length), cuts)]
            if all(len(group) * max(group) <= 1.25 * sum(group) for group in groups):
                assert found <= (cost(as_they_lie(*groups), prices) + prices.move * sum(lengths)) * (1 + 1e-12)
    assert found <= cost(as_they_lie(*((length,) for length in lengths)), prices) * (1 + 1e-12)


def test_the_comparison_above_sees_a_layout_that_is_one_call_too_many():
    prices = Prices(call=1.0, token=1.0, pair=0.0, move=0.0)
    one_too_many = cost(as_they_lie((7,) * 5, (7,)), prices)

    assert cost(layout_from_lengths((7,) * 6, prices), prices) == one_too_many - 1


def test_neighbours_of_equal_length_share_a_call_where_they_lie():
    layout = layout_from_lengths((7, 7, 0, 7, 5, 5, 7), DEAR_MOVES)

    assert layout == as_they_lie((7, 7, 7), (5, 5), (7,))


def test_where_calls_are_free_nothing_is_padded_and_where_they_are_dear_padding_is_used_up():
    lengths = tuple(range(1, 301))
    free, dear = (layout_from_lengths(lengths, prices) for prices in (FREE_CALLS, DEAR_CALLS))

    assert not any(group.is_padded for group in free.groups)
    # A group reaches down to 0.6 of its longest document, where the mean is 0.8: 300 * 0.6 ** 12 is below 1.
    assert len(dear.groups) <= 12
    # And not further: a group that holds all from 0.55 of its longest on would be padded by 29 %.
    assert all(min(group.lengths) > 0.55 * group.width for group in dear.groups if group.width > 20)


def test_the_documented_example_is_right():
    layout = layout_from_lengths((2, 5, 2), Prices(call=10.0, token=1.0, pair=0.0, move=0.1))

    assert layout.groups == (Group(width=2, lengths=(2, 2)), Group(width=5, lengths=(5,)))
    assert layout.tokens.tolist() == [0, 1, 7, 8, 2, 3, 4, 5, 6]
    assert layout.slots.tolist() == [0, 1, 4, 5, 6, 7, 8, 2, 3]


@pytest.mark.parametrize("lengths", [(), (0, 0)])
def test_a_row_without_tokens_has_no_groups(lengths):
    assert layout_from_lengths(lengths, DEAR_CALLS) == as_they_lie()


def test_on_the_cpu_long_documents_are_run_one_by_one_and_short_ones_together():
    long = tuple(np.random.default_rng(0).integers(200, 2_000, 30).tolist())
    short = tuple(np.random.default_rng(0).integers(5, 40, 400).tolist())

    assert layout_from_lengths(long, prices_on("cpu", 4 * 64)) == as_they_lie(*((length,) for length in long))
    assert len(layout_from_lengths(short, prices_on("cpu", 4 * 64)).groups) < 40
    assert layout_from_lengths((20,) * 420, prices_on("cpu", 4 * 64)) == as_they_lie((20,) * 420)


def test_an_accelerator_makes_fewer_calls_and_leaves_long_documents_apart():
    short = tuple(np.random.default_rng(0).integers(5, 40, 400).tolist())
    calls = {device: len(layout_from_lengths(short, prices_on(device, 256)).groups) for device in ("cpu", "cuda")}

    assert calls["cuda"] < calls["cpu"] / 2
    assert layout_from_lengths((30_000, 25_000), prices_on("cuda", 4_096)) == as_they_lie((30_000,), (25_000,))


def test_five_thousand_documents_are_laid_out_within_milliseconds():
    lengths = tuple(np.random.default_rng(0).integers(1, 100, 5_000).tolist())

    def seconds():
        start = time.process_time()
        layout_from_lengths(lengths, prices_on("cpu", 256))
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.03  # a tenth of it where the machine is not busy
