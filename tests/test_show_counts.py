"""Counts of blocks are those of the dense mask, for any lengths, rule, padding and size of blocks."""

import doctest
import importlib
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hermetic
from hermetic.batch import Boundaries
from hermetic.batch.dialects import dense_mask
from hermetic.show.masks import Ground, ReadAs, Rule, block_for, flex_picture, picture_of
from hermetic.show.pattern import Cells, Intervals, pattern_of
from hermetic.show.picture import KINDS, MAX_CELLS

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=8)
RULES = st.one_of(
    st.just(Rule()),
    st.just(Rule(causal=False)),
    st.builds(Rule, window=st.integers(1, 12)),
    st.builds(Rule, chunk=st.integers(1, 6)),
    st.builds(Rule, window=st.integers(1, 6), chunk=st.integers(1, 6)),
    st.builds(Rule, chunk=st.integers(1, 6), causal=st.just(False)),
)


def ground_of(lengths, rule, block, padding=()):
    """Runs of these lengths; those in ``padding`` belong to no document."""
    real = np.repeat([index not in padding for index in range(len(lengths))], lengths)
    return Ground(lengths=tuple(lengths), real=real, rule=rule, block=block)


def dense(lengths, rule):
    allowed = dense_mask(Boundaries.from_lengths(lengths), causal=rule.causal, window=rule.window, chunk=rule.chunk)
    return allowed.numpy()


def blocks_of(cells, edges):
    """The cells of a dense mask added up block by block, the slow way."""
    spans = list(pairwise(edges))
    return [[int(cells[a:b, c:d].sum()) for c, d in spans] for a, b in spans]


@given(LENGTHS, RULES, st.integers(1, 7), st.data())
@settings(max_examples=50, deadline=None)
def test_counts_of_blocks_equal_those_of_the_dense_mask(lengths, rule, block, data):
    total = sum(lengths)
    flags = st.lists(st.booleans(), min_size=total, max_size=total).map(np.array)
    queries, hidden = data.draw(flags), data.draw(flags)
    edges = ground_of(lengths, rule, block).edges
    pattern = pattern_of(lengths, causal=rule.causal, window=rule.window, chunk=rule.chunk, hidden=hidden)
    expected = dense(lengths, rule) & ~hidden[None, :] & queries[:, None]

    assert pattern.counts(edges, queries).tolist() == blocks_of(expected, edges)
    assert Cells(seen=pattern.dense()).counts(edges, queries).tolist() == blocks_of(expected, edges)


@given(LENGTHS, LENGTHS, RULES, st.integers(1, 7), st.data())
@settings(max_examples=50, deadline=None)
def test_the_kinds_of_a_reading_are_those_of_the_dense_masks(right, read, rule, block, data):
    total = min(sum(right), sum(read))
    cut = [tuple(np.diff(np.minimum(np.cumsum([0, *lengths]), total)).tolist()) for lengths in (right, read)]
    right, read = ([length for length in lengths if length] for lengths in cut)
    padding = data.draw(st.sets(st.integers(0, len(right) - 1), max_size=2))
    ground = ground_of(right, rule, block, padding)
    drawn = picture_of(ground, ReadAs(name="x", title="x", says="x", pattern=ground.cut(tuple(read))))

    should, does = dense(right, rule), dense(read, rule)
    square, real = dense(right, Rule(causal=False)), ground.real[:, None]
    expected = {
        "own": does & should & real,
        "leak": does & ~square & real,
        "lost": should & ~does & real,
        "beyond": does & square & ~should & real,
        "idle": does & ~real,
    }
    assert {kind: drawn.cells[kind].tolist() for kind in KINDS} == {
        kind: blocks_of(cells, ground.edges) for kind, cells in expected.items()
    }
    assert drawn.seen.tolist() == blocks_of(does, ground.edges)


def test_a_count_that_is_off_by_one_slot_is_seen():
    ground = ground_of([3, 4], Rule(), 2)
    pattern = ground.right
    wrong = Intervals(first=pattern.first, stop=np.append(pattern.stop[:-1], pattern.stop[-1] - 1))

    assert wrong.counts(ground.edges, ground.real).tolist() != blocks_of(dense([3, 4], Rule()), ground.edges)


@given(LENGTHS, st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_cells_are_sums_of_triangles_and_a_plain_causal_mask_is_one(lengths, block):
    ground, total = ground_of(lengths, Rule(), block), sum(lengths)
    right = picture_of(ground, ReadAs(name="x", title="x", says="x", pattern=ground.right))
    plain = picture_of(ground, ReadAs(name="x", title="x", says="x", pattern=ground.cut((total,))))
    triangles = sum(length * (length + 1) // 2 for length in lengths)

    assert right.total("own") == triangles
    assert plain.total("leak") == total * (total + 1) // 2 - triangles


@given(LENGTHS, RULES, st.integers(1, 7), st.data())
@settings(max_examples=30, deadline=None)
def test_flex_attention_told_the_documents_is_right_whatever_its_tiles(lengths, rule, block, data):
    padding = data.draw(st.sets(st.just(len(lengths) - 1), max_size=len(lengths) > 1))
    ground = ground_of(lengths, rule, block, padding)
    drawn = flex_picture(ground, title="x", says="x")
    right = picture_of(ground, ReadAs(name="x", title="x", says="x", pattern=ground.right))

    assert drawn.is_right
    assert {kind: drawn.cells[kind].tolist() for kind in KINDS} == {kind: right.cells[kind].tolist() for kind in KINDS}


@given(LENGTHS, RULES)
@settings(max_examples=30, deadline=None)
def test_tiles_are_skipped_where_nothing_is_seen_and_whole_where_all_is(lengths, rule):
    tiles = flex_picture(ground_of(lengths, rule, 1), title="x", says="x").tiles
    edges = ground_of(lengths, rule, tiles.size).edges
    counts = np.array(blocks_of(dense(lengths, rule), edges))

    assert (tiles.states == 0).tolist() == (counts == 0).tolist()
    assert (tiles.states == 2).tolist() == (counts == tiles.size**2).tolist()


def test_a_tile_that_is_whole_and_should_not_be_leaks(monkeypatch):
    ground = ground_of([3, 5], Rule(), 2)
    monkeypatch.setattr(importlib.import_module("hermetic.show.masks"), "_states", lambda _: np.full((4, 4), 2))
    drawn = flex_picture(ground, title="x", says="x")

    assert (drawn.total("leak"), drawn.total("beyond"), drawn.is_right) == (2 * 15, 64 - 30 - 21, False)


@pytest.mark.parametrize(
    ("num_slots", "block"), [(1, 1), (64, 1), (65, 2), (128, 2), (129, 4), (4096, 64), (32_768, 512), (32_769, 1024)]
)
def test_blocks_are_the_smallest_power_of_two_that_gives_64_a_side_at_most(num_slots, block):
    assert block_for(num_slots) == block
    assert -(-num_slots // block) <= MAX_CELLS


def test_32_thousand_tokens_of_500_documents_take_well_under_a_second_and_no_dense_mask():
    lengths = (np.random.default_rng(0).multinomial(32_768 - 500, [1 / 500] * 500) + 1).tolist()
    hermetic.show([2, 3])  # what is imported at first is not what is measured
    began = time.process_time()
    picture = hermetic.show(lengths)
    drawing = picture.to_svg()
    took = time.process_time() - began

    assert took < 1.0, f"{took:.2f} s"
    assert len(drawing) < 400_000
    assert picture.mask("boundaries").total("own") == sum(length * (length + 1) // 2 for length in lengths)
    assert all(cells.shape == (64, 64) for mask in picture.masks for cells in mask.cells.values())


@pytest.mark.parametrize("name", ["masks", "pattern", "picture", "show"])
def test_the_examples_of_the_documentation_strings_run(name):
    found = doctest.testmod(importlib.import_module(f"hermetic.show.{name}"))

    assert found.attempted > 0
    assert found.failed == 0
