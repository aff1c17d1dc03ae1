"""What a sealed model reads from its caller, and what it refuses to guess."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from models import calling, packed, tiny

import hermetic
from hermetic.errors import BoundariesError, SealError
from hermetic.seal.inputs import Numbering, packed_rows_from_call, positions_for

T = torch.tensor


@pytest.fixture(scope="module")
def sealed():
    return hermetic.seal(tiny("llama"))


@pytest.fixture(scope="module")
def sealed_gpt2():
    return hermetic.seal(tiny("gpt2"))


def lengths_read(shape, **call):
    rows = packed_rows_from_call(call, shape)
    return None if rows is None else rows.lengths


@pytest.mark.parametrize(
    ("shape", "call", "lengths"),
    [
        ((1, 8), {"position_ids": T([[0, 1, 2, 0, 1, 2, 3, 4]])}, (3, 5)),
        ((1, 6), {"position_ids": T([[0, 1, 2, 0, 1, 0]])}, (3, 2, 1)),
        ((1, 3), {"position_ids": T([[0, 0, 0]])}, (1, 1, 1)),
        ((1, 6), {"position_ids": T([[0, 1, 2, 0, 0, 1]])}, (3, 1, 2)),
        ((1, 6), {"position_ids": T([[3, 4, 5, 0, 1, 2]])}, (3, 3)),
        ((1, 7), {"position_ids": T([[2, 3, 4, 2, 3, 1, 1]]), "attention_mask": T([[1] * 5 + [0] * 2])}, (3, 2, 2)),
        ((2, 6), {"position_ids": T([[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]])}, (3, 3, 2, 2, 2)),
        ((2, 3), {"position_ids": T([[0, 1, 0]])}, (2, 1, 2, 1)),
        ((2, 2), {"position_ids": T([[0, 0]] * 2), "attention_mask": T([[1, 1], [0, 0]])}, (1, 1, 2)),
        ((1, 5), {"position_ids": T([0, 1, 2, 0, 1])}, (3, 2)),
        ((1, 5), {"position_ids": T([[[0, 1, 2, 0, 1]]] * 3)}, (3, 2)),
        ((1, 5), {"position_ids": T([[[0, 1, 1, 1, 2]], [[0, 1, 1, 2, 3]]])}, None),
        ((2, 4), {"position_ids": T([[[0, 1, 2, 3]] * 2] * 3)}, None),
        ((1, 5), {"position_ids": T([[0, 1, 2, 3, 4]])}, None),
        ((1, 5), {"attention_mask": T([[1, 1, 1, 1, 1]])}, None),
        ((2, 4), {"position_ids": T([[1, 1, 0, 1], [0, 1, 2, 3]]), "attention_mask": T([[0, 0, 1, 1], [1] * 4])}, None),
        ((1, 5), {"cu_seq_lens_q": T([0, 3, 5], dtype=torch.int32)}, (3, 2)),
        ((1, 5), {"cu_seq_lens_q": T([0, 3, 3, 5])}, (3, 2)),
        ((1, 5), {"cu_seq_lens_q": T([0, 5])}, (5,)),
        ((2, 4), {"cu_seq_lens_q": T([0, 1, 4, 8])}, (1, 3, 4)),
        ((1, 6), {"document_ids": T([0, 0, 2, 2, 2, -1])}, (2, 3, 1)),
        ((2, 3), {"document_ids": T([[0, 0, 1], [0, 1, 1]])}, (2, 1, 1, 2)),
        ((2, 3), {"document_ids": T([0, 0, 1, 2, 3, 3])}, (2, 1, 1, 2)),
        ((1, 5), {"document_ids": T([0, 0, 0, 1, 1]), "cu_seq_lens_q": T([0, 3, 5])}, (3, 2)),
        ((1, 5), {"seq_idx": T([[0, 0, 0, 1, 1]], dtype=torch.int32)}, (3, 2)),
        ((1, 5), {"cu_seq_lens_k": T([0, 3, 5])}, (3, 2)),
        ((1, 6), {"position_ids": T([[[3, 4, 5, 0, 1, 2]]] * 3)}, (3, 3)),
        ((1, 6), {"document_ids": T([0, 0, 0, 1, 1, 1]), "attention_mask": T([[1, 1, 1, 1, 1, 0]])}, (3, 2, 1)),
        ((1, 6), {"document_ids": T([0, 0, 0, 1, 1, 1]), "attention_mask": T([[0, 1, 1, 1, 1, 1]])}, (1, 2, 3)),
    ],
    ids=str,
)
def test_a_call_says_where_documents_start(shape, call, lengths):
    assert lengths_read(shape, **call) == lengths


@settings(max_examples=150)
@given(rows=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3))
def test_ids_edges_and_positions_of_the_same_rows_say_the_same(rows):
    slots = max(map(sum, rows))
    rows = [[*row, slots - sum(row)] if sum(row) < slots else row for row in rows]
    lengths = tuple(length for row in rows for length in row)
    boundaries = hermetic.Boundaries.from_lengths(lengths)
    shape = (len(rows), slots)

    assert lengths_read(shape, document_ids=boundaries.document_ids) == lengths
    assert lengths_read(shape, cu_seq_lens_q=boundaries.cu_seqlens) == lengths
    if any(len(row) > 1 for row in rows):
        assert lengths_read(shape, position_ids=boundaries.position_ids.view(shape)) == lengths


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            {"attention_mask": T([[1, 1, 1, 2, 2]])},
            BoundariesError,
            "attention_mask is 2 at slot 3 of row 0; .* numbers of documents in it are lost: pass them as document_ids",
        ),
        (
            {"attention_mask": torch.ones(1, 4)},
            BoundariesError,
            r"attention_mask has shape \(1, 4\); expected \(1, 5\)",
        ),
        (
            {"attention_mask": torch.zeros(1, 1, 5, 5)},
            SealError,
            r"ready-made mask \(shape \(1, 1, 5, 5\)\) .* pass document_ids, cu_seq_lens_q or position_ids instead",
        ),
        ({"attention_mask": {"full_attention": None}}, SealError, r"ready-made mask \(dict\)"),
        (
            {"document_ids": T([0, 0, 1, 0, 0])},
            BoundariesError,
            "document_ids comes back to document 0 in row 0 after another document; expected .* side by side",
        ),
        (
            {"document_ids": T([0, 0, 1, 1])},
            BoundariesError,
            r"document_ids has shape \(4,\); expected one id for each",
        ),
        ({"document_ids": T([[[0, 0, 1, 1, 1]]])}, BoundariesError, r"document_ids has shape \(1, 1, 5\)"),
        ({"cu_seq_lens_q": T([1, 3, 5])}, BoundariesError, r"cu_seqlens\[0\] is 1, expected 0"),
        ({"cu_seq_lens_q": T([0, 3, 2, 5])}, BoundariesError, r"cu_seqlens\[2\] is 2, below the edge 3 before it"),
        ({"cu_seq_lens_q": T([0, 3, 6])}, BoundariesError, r"cu_seqlens\[2\] is 6, beyond the 5 tokens"),
        (
            {"cu_seq_lens_q": T([0, 3])},
            BoundariesError,
            "cu_seq_lens_q ends at 3 and the rows have 5 slots; expected the last edge at their end",
        ),
        (
            {"cu_seq_lens_q": T([0, 3, 5]), "cu_seq_lens_k": T([0, 2, 5])},
            BoundariesError,
            "cu_seq_lens_q and cu_seq_lens_k disagree on whether a document starts at slot 2 of row 0",
        ),
        (
            {"cu_seq_lens_q": T([0, 3, 5]), "document_ids": T([0, 0, 1, 1, 1])},
            BoundariesError,
            "document_ids and cu_seq_lens_q disagree on whether a document starts at slot 2 of row 0; .* Pass one of",
        ),
        (
            {"document_ids": T([0, 0, 1, 1, 1]), "position_ids": T([[0, 1, 2, 3, 4]]) + 1},
            BoundariesError,
            "position_ids start a document at 1 and another, at slot 2 of row 0, at 3; expected all documents to start",
        ),
        (
            {"document_ids": T([0, 0, 0, 1, 1]), "position_ids": T([[0, 1, 2, 40, 41]])},
            BoundariesError,
            "position_ids start a document at 0 and another, at slot 3 of row 0, at 40",
        ),
        (
            {"cu_seq_lens_q": T([0, 3, 5]), "position_ids": T([[0, 1, 0, 1, 2]])},
            BoundariesError,
            "position_ids go from 1 to 0 at slot 2 of row 0, inside one document .* Leave position_ids out",
        ),
        (
            {"document_ids": T([0, 0, 0, 1, 1]), "attention_mask": T([[1, 0, 1, 1, 1]])},
            BoundariesError,
            "attention_mask is 0 before slot 2 of row 0, in the middle of a document",
        ),
        (
            {"position_ids": T([[0, 1, 2, 0]])},
            BoundariesError,
            r"position_ids has shape \(1, 4\); expected one position",
        ),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused_before_the_model_runs(sealed, call, error, message):
    with pytest.raises(error, match=message):
        sealed(input_ids=T([[5, 6, 7, 8, 9]]), **call)


def test_an_edge_is_due_where_the_second_row_starts(sealed):
    with pytest.raises(BoundariesError, match=r"cu_seq_lens_q has no edge at 5, where row 1 starts; .* in one stream"):
        sealed(input_ids=torch.full((2, 5), 7), cu_seq_lens_q=T([0, 3, 7, 10]))


@pytest.mark.parametrize(
    "call", [{"position_ids": T([[0, 1, 2, 0, 1]])}, {"document_ids": T([0, 0, 0, 1, 1])}], ids=str
)
@pytest.mark.parametrize("argument", ["cache", "past_key_values"])  # transformers renamed it
def test_packed_rows_and_a_cache_are_refused(sealed, call, argument):
    row = T([[5, 6, 7, 8, 9]])
    cache = transformers.DynamicCache(config=sealed.config)

    with pytest.raises(SealError, match=r"packed rows came with a cache \(past_key_values\), which has no boundaries"):
        sealed(input_ids=row, **{argument: cache}, **call)


def test_after_a_refusal_the_next_call_is_right(sealed):
    batch = packed((3, 2))
    expected = calling(sealed, "document_ids")(batch)
    with pytest.raises(BoundariesError):
        sealed(input_ids=batch.input_ids[None], document_ids=T([0]))

    assert torch.equal(calling(sealed, "document_ids")(batch), expected)


def test_running_positions_are_replaced_where_boundaries_are_explicit(sealed_gpt2):
    batch = packed((3, 5))
    row = batch.input_ids[None]
    ids = batch.boundaries.document_ids

    derived = sealed_gpt2(input_ids=row, document_ids=ids).logits
    assert torch.equal(sealed_gpt2(input_ids=row, document_ids=ids, position_ids=torch.arange(8)[None]).logits, derived)


def test_an_offset_of_positions_is_kept(sealed_gpt2):
    batch = packed((3, 2))
    row = batch.input_ids[None]
    offset = T([[2, 3, 4, 2, 3]])
    found = sealed_gpt2(input_ids=row, cu_seq_lens_q=batch.boundaries.cu_seqlens, position_ids=offset).logits[0]
    unsealed = tiny("gpt2")

    for begin, end in ((0, 3), (3, 5)):
        positions = torch.arange(2, 2 + end - begin)[None]
        expected = unsealed(input_ids=row[:, begin:end], position_ids=positions, use_cache=False).logits[0]
        assert float((found[begin:end] - expected).detach().abs().max()) <= 1e-5
    assert float((found - calling(sealed_gpt2, "only_cu_seq_lens")(batch)).detach().abs().max()) > 0.1


def test_planes_of_multi_axis_positions_are_the_callers():
    rows = packed_rows_from_call({"document_ids": T([0, 0, 0, 1, 1])}, (1, 5))

    assert positions_for(rows, torch.zeros(3, 1, 5), explicit=True, numbering=Numbering()) is None


def test_labels_at_seams_are_masked_so_that_the_models_own_loss_is_the_packed_loss(sealed):
    batch = packed((3, 5, 1, 2))
    careless = batch.input_ids[None].clone()  # labels at the first token of every document
    output = sealed(input_ids=batch.input_ids[None], document_ids=batch.boundaries.document_ids, labels=careless)

    assert output.loss.item() == pytest.approx(hermetic.packed_loss(output.logits, batch).item(), rel=1e-6)
    assert int(careless[0, 3]) == int(batch.input_ids[3])  # the caller's labels are left alone


def test_the_padded_tail_and_left_padding_reach_nobody(sealed):
    batch = packed((3, 5), pad_to=12)
    inputs = batch.model_inputs()
    expected = calling(sealed, "document_ids")(packed((3, 5)))
    tail = sealed(**inputs).logits[0, :8]
    noise = sealed(**{**inputs, "input_ids": inputs["input_ids"].masked_fill(torch.arange(12) >= 8, 33)}).logits[0, :8]
    left = {
        "input_ids": torch.cat([T([[9, 9]]), batch.input_ids[None, :8]], dim=1),
        "position_ids": T([[1, 1, 0, 1, 2, 0, 1, 2, 3, 4]]),
        "attention_mask": T([[0, 0, *[1] * 8]]),
    }

    assert torch.equal(tail, noise)
    assert (tail - expected).abs().max().item() <= 1e-5
    assert (sealed(**left).logits[0, 2:] - expected).abs().max().item() <= 1e-5


def test_positions_of_padding_may_be_anything(sealed):
    ids, padded = T([0, 0, 0, 1, 1, -1, -1]), T([[0, 1, 2, 0, 1, 0, 0]])
    row = T([[5, 6, 7, 8, 9, 3, 3]])
    expected = sealed(input_ids=row, document_ids=ids).logits[:, :5]

    assert torch.equal(sealed(input_ids=row, document_ids=ids, position_ids=padded).logits[:, :5], expected)


@pytest.mark.parametrize("earlier", [0, 6])
def test_packed_rows_and_a_cache_are_refused_under_a_mask_that_covers_the_cache_too(sealed, earlier):
    cache = transformers.DynamicCache()
    if earlier:
        sealed(input_ids=torch.arange(3, 3 + earlier)[None], cache=cache)
    packed_positions = T([[0, 1, 2, 0, 1]])
    call = {"cache": cache, "attention_mask": torch.ones(1, 5 + earlier, dtype=torch.long)}

    with pytest.raises(SealError, match="packed rows came with a cache"):
        sealed(input_ids=T([[5, 6, 7, 8, 9]]), position_ids=packed_positions, **call)
