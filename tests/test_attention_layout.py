"""The layout of documents into kernel calls loses no token and wastes little."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.attention.layout import layout_from_lengths

some_lengths = st.lists(st.integers(0, 40) | st.integers(0, 3), max_size=60).map(tuple)


@settings(max_examples=200)
@given(lengths=some_lengths)
def test_every_token_is_in_exactly_one_group_and_the_way_back_finds_it(lengths):
    layout = layout_from_lengths(lengths)
    order = np.concatenate([group.tokens for group in layout.groups] or [np.empty(0, np.int64)])

    assert sorted(order.tolist()) == list(range(sum(lengths)))
    assert order[layout.back].tolist() == list(range(sum(lengths)))


@settings(max_examples=200)
@given(lengths=some_lengths)
def test_every_group_holds_at_most_a_quarter_of_its_tokens_as_padding(lengths):
    for group in layout_from_lengths(lengths).groups:
        assert group.rows * group.width <= 1.25 * group.tokens.size
        assert group.tokens.size == sum(group.lengths)
        assert max(group.lengths) == group.width


@settings(max_examples=200)
@given(lengths=some_lengths)
def test_each_row_of_a_group_is_one_document_from_its_first_token_on(lengths):
    starts = {sum(lengths[:i]): length for i, length in enumerate(lengths) if length}
    for group in layout_from_lengths(lengths).groups:
        slots = np.arange(group.tokens.size) if group.slots is None else group.slots
        grid = np.full(group.rows * group.width, -1)
        grid[slots] = group.tokens
        for row, length in zip(grid.reshape(group.rows, group.width), group.lengths, strict=True):
            first = int(row[0])
            assert starts.pop(first) == length
            assert row.tolist() == [*range(first, first + length), *[-1] * (group.width - length)]
    assert not starts


def test_documents_of_equal_length_share_one_group_without_padding():
    (group,) = layout_from_lengths((7,) * 500).groups

    assert (group.rows, group.width, group.slots) == (500, 7, None)


def test_the_documented_example_is_right():
    first, second = layout_from_lengths((2, 5, 2)).groups

    assert (first.rows, first.width, first.tokens.tolist()) == (1, 5, [2, 3, 4, 5, 6])
    assert (second.rows, second.width, second.tokens.tolist()) == (2, 2, [0, 1, 7, 8])


def test_evenly_spread_lengths_cost_a_number_of_groups_that_grows_with_their_logarithm():
    # A group reaches down to 0.6 of its longest document, where the mean is 0.8: 300 * 0.6 ** 12 is below 1.
    assert len(layout_from_lengths(tuple(range(1, 301))).groups) <= 12
