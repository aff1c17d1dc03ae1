"""A dense mask is read as documents only if it is their mask, cell for cell."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import Boundaries
from hermetic.batch.dialects import MAX_DENSE_SLOTS, additive_mask, boundaries_from_mask, dense_mask
from hermetic.errors import BatchError

LOWEST = torch.finfo(torch.float32).min
some_lengths = st.lists(st.integers(0, 6), max_size=6)


def bounds(*lengths):
    return Boundaries.from_lengths(lengths)


def changed(mask, query, key, value):
    mask = mask.clone()
    mask[..., query, key] = value
    return mask


@given(
    lengths=some_lengths,
    tail=st.integers(0, 3),
    causal=st.booleans(),
    dtype=st.sampled_from([torch.bool, torch.float32, torch.bfloat16, torch.float16]),
)
@settings(deadline=None, max_examples=100)
def test_a_mask_leads_back_to_the_documents_that_have_tokens(lengths, tail, causal, dtype):
    boundaries = bounds(*lengths)
    options = {"causal": causal, "num_slots": boundaries.num_tokens + tail}
    if dtype == torch.bool:
        mask = dense_mask(boundaries, **options)
    else:
        mask = additive_mask(boundaries, dtype=dtype, **options)
    read = boundaries_from_mask(mask, dtype=dtype, causal=causal, num_tokens=boundaries.num_tokens)

    assert read == bounds(*(length for length in lengths if length))
    assert torch.equal(dense_mask(read, **options), dense_mask(boundaries, **options))


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4), causal=st.booleans(), data=st.data())
@settings(deadline=None, max_examples=100)
def test_no_mask_with_one_cell_flipped_is_read_as_the_same_documents(lengths, causal, data):
    mask = dense_mask(bounds(*lengths), causal=causal)
    cells = st.integers(0, len(mask) - 1)
    query, key = data.draw(cells), data.draw(cells)
    flipped = changed(mask, query, key, not mask[query, key])

    try:
        read = boundaries_from_mask(flipped, dtype=torch.bool, causal=causal)
    except BatchError:
        return
    assert read != bounds(*lengths)
    assert torch.equal(dense_mask(read, causal=causal), flipped)


def test_the_mask_of_3_and_5_is_read_with_infinity_and_with_the_lowest_number():
    mask = additive_mask(bounds(3, 5), dtype=torch.float32, num_slots=12)
    infinite = mask.masked_fill(mask != 0, -torch.inf)

    for read in (mask, infinite, mask[0, 0]):
        assert boundaries_from_mask(read, dtype=torch.float32, num_tokens=8) == bounds(3, 5)
        assert boundaries_from_mask(read, dtype=torch.float32) == bounds(3, 5, 4)


def test_a_mask_of_no_tokens_and_a_mask_of_one():
    assert boundaries_from_mask(torch.zeros(0, 0), dtype=torch.float32) == bounds()
    assert boundaries_from_mask(torch.zeros(1, 1), dtype=torch.float32) == bounds(1)


def test_a_boolean_mask_is_read_only_by_those_who_ask_for_one():
    mask = dense_mask(bounds(3, 5))[None, None]

    assert boundaries_from_mask(mask, dtype=torch.bool) == bounds(3, 5)
    with pytest.raises(BatchError, match=r"mask has dtype torch.bool, expected torch.float32; eager attention adds"):
        boundaries_from_mask(mask, dtype=torch.float32)
    with pytest.raises(BatchError, match=r"mask has dtype torch.float32, expected torch.bool"):
        boundaries_from_mask(additive_mask(bounds(3), dtype=torch.float32), dtype=torch.bool)


@pytest.mark.parametrize(
    ("mask", "options", "message"),
    [
        (
            dense_mask(bounds(7), window=4),
            {"dtype": torch.bool},
            r"mask\[4, 0\]: token 4 may not see token 0, though .* the same document; expected .* neither window",
        ),
        (
            dense_mask(bounds(3, 5), causal=False),
            {"dtype": torch.bool},
            r"mask\[0, 1\]: token 0 may see token 1, though .* causal=True",
        ),
        (
            dense_mask(bounds(3, 5)),
            {"dtype": torch.bool, "causal": False},
            r"mask\[0, 1\]: token 0 may not see token 1, though .* causal=False",
        ),
        (
            changed(dense_mask(bounds(3, 5)), 6, 1, True),
            {"dtype": torch.bool},
            r"mask\[6, 1\]: token 6 may see token 1, though .* different documents",
        ),
        (
            additive_mask(bounds(3, 5), dtype=torch.float32).masked_fill(torch.arange(8)[:, None] > 6, LOWEST),
            {"dtype": torch.float32},
            r"mask\[7, 7\]: token 7 may not see token 7",
        ),
        (
            dense_mask(bounds(3, 5)).float(),
            {"dtype": torch.float32},
            r"mask\[0, 0\] is 1.0, expected 0 \(may see\) or -3.4\d*e\+38 or -inf",
        ),
        (
            changed(additive_mask(bounds(3, 5), dtype=torch.float32), 4, 2, -1e4),
            {"dtype": torch.float32},
            r"mask\[4, 2\] is -10000.0, .* any other value only nudges",
        ),
        (changed(torch.zeros(2, 2), 0, 1, torch.nan), {"dtype": torch.float32}, r"mask\[0, 1\] is nan, expected 0"),
        (torch.zeros(2, 1, 3, 3), {"dtype": torch.float32}, r"mask has shape \[2, 1, 3, 3\], expected \[T, T\] or"),
        (torch.zeros(3, 4), {"dtype": torch.float32}, r"mask has shape \[3, 4\], expected"),
        (
            torch.zeros(3, 3).int(),
            {"dtype": torch.int32},
            r"dtype is torch.int32, expected a floating one or torch.bool",
        ),
        (
            torch.zeros(1).expand(MAX_DENSE_SLOTS + 1, MAX_DENSE_SLOTS + 1),
            {"dtype": torch.float32},
            r"4097 slots has 16785409 cells",
        ),
        (
            dense_mask(bounds(3, 5)),
            {"dtype": torch.bool, "num_tokens": 4},
            r"num_tokens is 4, where no segment of mask ends",
        ),
    ],
)
def test_a_mask_that_is_not_exactly_that_of_documents_is_refused_by_its_first_wrong_cell(mask, options, message):
    with pytest.raises(BatchError, match=message):
        boundaries_from_mask(mask, **options)
