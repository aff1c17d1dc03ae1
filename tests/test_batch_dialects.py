"""Every dialect says what the boundaries say, and refuses what it cannot say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from hermetic.batch import Boundaries, collate
from hermetic.batch.dialects import (
    MAX_DENSE_SLOTS,
    additive_mask,
    dense_mask,
    flash_kwargs,
    shift_labels,
    stacked_cu_seqlens,
)
from hermetic.errors import BatchError

some_lengths = st.lists(st.integers(0, 6), min_size=1, max_size=6)


def bounds(*lengths):
    return Boundaries.from_lengths(lengths)


def sees(lengths, query, key, *, causal=True, window=None, chunk=None):
    """May ``query`` see ``key``? Written as a sentence about one pair of tokens."""
    tokens = [(document, position) for document, n in enumerate(lengths) for position in range(n)]
    (query_document, q), (key_document, k) = tokens[query], tokens[key]
    return (
        query_document == key_document
        and (not causal or k <= q)
        and (window is None or q - k < window)
        and (chunk is None or q // chunk == k // chunk)
    )


def test_flash_kwargs_name_every_segment_and_the_longest_one():
    kwargs = flash_kwargs(bounds(3, 0, 5), num_slots=12)

    assert kwargs["cu_seq_lens_q"].tolist() == kwargs["cu_seq_lens_k"].tolist() == [0, 3, 8, 12]
    assert (kwargs["max_length_q"], kwargs["max_length_k"]) == (5, 5)


def test_shifted_labels_never_reach_into_the_next_document():
    labels = torch.tensor([10, 11, 12, 20, 21])
    boundaries = Boundaries.from_cu_seqlens([0, 3, 5])

    assert shift_labels(labels, boundaries).tolist() == [11, 12, -100, 21, -100]
    assert labels.tolist() == [10, 11, 12, 20, 21]


def test_shifted_labels_of_a_padded_batch_have_no_target_on_the_tail():
    batch = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}], pad_to=7)

    assert shift_labels(batch.labels, batch.boundaries).tolist() == [6, 7, -100, 9, -100, -100, -100]


@given(lengths=some_lengths, tail=st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_shifting_keeps_every_target_of_the_batch_and_adds_none(lengths, tail):
    documents = [{"input_ids": list(range(1, length + 1))} for length in lengths]
    batch = collate(documents, pad_to=max(1, sum(lengths) + tail))
    targets = shift_labels(batch.labels, batch.boundaries)

    assert targets.tolist() == [*batch.labels[1:].tolist(), -100]
    for part, length in zip(batch.unpack(targets), lengths, strict=True):
        assert part.tolist() == ([*range(2, length + 1), -100] if length else [])


def test_no_tokens_have_no_targets():
    assert shift_labels(torch.zeros(0, dtype=torch.int64), bounds(0)).shape == (0,)


def test_two_rows_of_six_have_these_edges_flat_and_stacked():
    boundaries = bounds(3, 3, 2, 2, 2)

    assert boundaries.cu_seqlens.tolist() == [0, 3, 6, 8, 10, 12]
    assert stacked_cu_seqlens(boundaries, 6).tolist() == [[0, 3, 6, 6], [0, 2, 4, 6]]
    assert stacked_cu_seqlens(boundaries, 6).dtype == torch.int32


def test_empty_documents_have_no_edge_in_any_row_and_no_documents_are_no_rows():
    assert stacked_cu_seqlens(bounds(0, 3, 0, 3, 0, 6), 6).tolist() == [[0, 3, 6], [0, 6, 6]]
    assert stacked_cu_seqlens(bounds(0), 6).shape == (0, 0)


def test_the_dense_mask_of_3_and_5_has_21_cells_and_none_across():
    mask = dense_mask(bounds(3, 5))

    assert mask.dtype == torch.bool
    assert int(mask.sum()) == 21
    assert not mask[3:8, 0:3].any()
    assert mask.diagonal().all()
    plain_causal = torch.ones(8, 8).tril().bool()
    assert (int(plain_causal.sum()), int(plain_causal[3:8, 0:3].sum())) == (36, 15)


def test_a_window_of_four_counts_the_current_token():
    mask = dense_mask(bounds(7), window=4)

    assert mask[6].nonzero().flatten().tolist() == [3, 4, 5, 6]
    assert mask[5].nonzero().flatten().tolist() == [2, 3, 4, 5]
    assert int(dense_mask(bounds(3, 3, 3), window=4).sum()) == 18
    assert torch.equal(dense_mask(bounds(3, 3, 3), window=4), dense_mask(bounds(3, 3, 3)))


def test_chunks_count_from_the_documents_own_start():
    mask = dense_mask(bounds(3, 5), chunk=4)

    assert mask[6].nonzero().flatten().tolist() == [3, 4, 5, 6]
    assert mask[7].nonzero().flatten().tolist() == [7]


def test_the_tail_is_one_more_segment_that_sees_only_itself_and_is_seen_by_none():
    mask = dense_mask(bounds(3, 5), num_slots=12)

    assert int(mask.sum()) == 21 + 10
    assert not mask[8:, :8].any()
    assert not mask[:8, 8:].any()
    assert mask[8:, 8:].equal(torch.ones(4, 4).tril().bool())


@given(
    lengths=some_lengths,
    causal=st.booleans(),
    window=st.none() | st.integers(1, 5),
    chunk=st.none() | st.integers(1, 5),
)
@settings(deadline=None, max_examples=200)
def test_every_cell_of_the_dense_mask_equals_the_sentence_that_defines_it(lengths, causal, window, chunk):
    options = {"causal": causal, "window": window if causal else None, "chunk": chunk}
    mask = dense_mask(bounds(*lengths), **options)

    tokens = range(sum(lengths))
    assert mask.tolist() == [[sees(lengths, q, k, **options) for k in tokens] for q in tokens]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_additive_mask_is_zero_where_allowed_and_the_lowest_finite_value_elsewhere(dtype):
    mask = additive_mask(bounds(3, 5), dtype=dtype, num_slots=9)

    assert mask.shape == (1, 1, 9, 9)
    assert mask.dtype == dtype
    allowed = dense_mask(bounds(3, 5), num_slots=9)
    assert (mask[0, 0][allowed] == 0).all()
    assert (mask[0, 0][~allowed] == torch.finfo(dtype).min).all()


def eager(q, k, v, mask):
    """Attention as eager models write it: whatever the mask is, it is added to the scores."""
    return ((q @ k.T) / q.shape[-1] ** 0.5 + mask).softmax(-1) @ v


def test_eager_attention_with_the_additive_mask_equals_each_document_alone_and_a_boolean_one_does_not():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(8, 32, generator=generator) for _ in range(3))
    packed = eager(q, k, v, additive_mask(bounds(3, 5), dtype=torch.float32)[0, 0])
    wrong = eager(q, k, v, dense_mask(bounds(3, 5)))

    for part in (slice(0, 3), slice(3, 8)):
        document = (x[None, part] for x in (q, k, v))
        alone = scaled_dot_product_attention(*document, is_causal=True)[0]
        assert (packed[part] - alone).abs().max() < 1e-5
        assert (wrong[part] - alone).abs().max() > 0.1


def test_an_eager_llama_with_the_additive_mask_gives_each_documents_own_logits():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    batch = collate([{"input_ids": [7, 8, 9]}, {"input_ids": [1, 2, 3, 4, 5]}])
    inputs = {"input_ids": batch.input_ids[None], "position_ids": batch.boundaries.position_ids[None]}

    def differences(mask):
        with torch.no_grad():
            logits = model(**inputs, attention_mask=mask, use_cache=False).logits
            alone = [model(input_ids=ids[None]).logits[0] for ids in batch.unpack(batch.input_ids)]
        return [float((p - a).abs().max()) for p, a in zip(batch.unpack(logits), alone, strict=True)]

    assert max(differences(additive_mask(batch.boundaries, dtype=torch.float32))) < 1e-5
    assert min(differences(dense_mask(batch.boundaries)[None, None])) > 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flash_kwargs(bounds(3, 5), num_slots=7), r"num_slots is 7, expected 8 .* to 2147483647"),
        (lambda: flash_kwargs(bounds(3), num_slots=2**31), r"num_slots is 2147483648, expected 3"),
        (lambda: shift_labels(torch.zeros(4).long(), bounds(3, 2)), r"num_slots is 4, expected 5"),
        (
            lambda: shift_labels(torch.zeros(1, 5).long(), bounds(5)),
            r"labels have shape \[1, 5\], expected \[T\]",
        ),
        (lambda: stacked_cu_seqlens(bounds(3, 4), 6), r"7 tokens do not fill rows of row_length 6"),
        (lambda: stacked_cu_seqlens(bounds(3, 3), 0), r"6 tokens do not fill rows of row_length 0"),
        (
            lambda: stacked_cu_seqlens(bounds(4, 4, 4), 6),
            r"document 1 of 4 tokens crosses the end of row 0 at token 4",
        ),
        (
            lambda: dense_mask(bounds(MAX_DENSE_SLOTS + 1)),
            r"4097 slots has 16785409 cells, expected at most 4096",
        ),
        (lambda: dense_mask(bounds(3), num_slots=2), r"num_slots is 2, expected 3"),
        (lambda: dense_mask(bounds(3), window=0), r"window is 0, expected 1 or more"),
        (lambda: dense_mask(bounds(3), chunk=0), r"chunk is 0, expected 1 or more"),
        (lambda: dense_mask(bounds(3), window=2, causal=False), r"window is 2 with causal=False"),
        (lambda: additive_mask(bounds(3), dtype=torch.bool), r"dtype is torch.bool, expected a floating one"),
    ],
)
def test_what_a_dialect_cannot_say_is_refused_with_the_reason(call, message):
    with pytest.raises(BatchError, match=message):
        call()
