"""The loss of known logits is the known number, whatever was packed, accumulated or left unsupervised."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermetic.batch import collate
from hermetic.loss import ZeroSupervisedTokensWarning, document_log_probs, packed_loss, token_loss

# A and B are two chains of tokens in which no token comes twice, so that each has its own row of the table.
A, B = [0, 1, 2], [3, 4, 5, 6, 7]
COSTS = {0: 1.0, 1: 3.0, 3: 5.0, 4: 5.0, 5: 5.0, 6: 5.0}
VOCABULARY = 8


def bigram_table():
    """[V, V] logits by current token, such that predicting the token after ``c`` costs ``COSTS[c]`` nats."""
    table = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for current, cost in COSTS.items():
        table[current] = math.log(math.expm1(cost) / (VOCABULARY - 1))
        table[current, current + 1] = 0.0
    return table.requires_grad_()


def batch_of(*token_lists, **padding):
    return collate([{"input_ids": tokens} for tokens in token_lists], **padding)


def unsupervised(tokens):
    return {"input_ids": tokens, "loss_mask": [0] * len(tokens)}


def loss_and_gradient(*batches, **options):
    """The summed loss of accumulation steps over one table, and its gradient."""
    table = bigram_table()
    total = sum(packed_loss(table[batch.input_ids], batch, **options) for batch in batches)
    total.backward()
    return total.item(), table.grad


def test_the_token_mean_of_a_and_b_is_4_and_the_document_mean_is_3_and_a_half():
    batch = batch_of(A, B)

    assert batch.num_supervised_tokens == 6
    assert loss_and_gradient(batch)[0] == pytest.approx(4.0, abs=1e-12)
    assert loss_and_gradient(batch, reduction="document")[0] == pytest.approx(3.5, abs=1e-12)


def test_two_accumulation_steps_with_the_global_count_add_up_to_one_batch():
    whole, whole_gradient = loss_and_gradient(batch_of(A, B))
    parts, parts_gradient = loss_and_gradient(batch_of(A), batch_of(B), denominator=6)

    assert parts == pytest.approx(4.0, abs=1e-12)
    assert whole == pytest.approx(parts, abs=1e-12)
    torch.testing.assert_close(parts_gradient, whole_gradient, rtol=0, atol=1e-15)


def test_averaging_the_steps_own_means_gives_another_loss_so_the_count_matters():
    separate = loss_and_gradient(batch_of(A))[0] + loss_and_gradient(batch_of(B))[0]

    assert separate / 2 == pytest.approx(3.5, abs=1e-12)


def test_document_means_accumulate_over_the_number_of_documents():
    whole, gradient = loss_and_gradient(batch_of(A, B), reduction="document")
    parts, parts_gradient = loss_and_gradient(batch_of(A), batch_of(B), reduction="document", denominator=2)

    assert parts == pytest.approx(whole, abs=1e-12)
    torch.testing.assert_close(parts_gradient, gradient, rtol=0, atol=1e-15)


def test_documents_without_supervised_tokens_do_not_dilute_the_document_mean():
    batch = collate([{"input_ids": A}, unsupervised([7, 6]), {"input_ids": []}, {"input_ids": B}])

    assert loss_and_gradient(batch, reduction="document")[0] == pytest.approx(3.5, abs=1e-12)


@pytest.mark.parametrize("denominator", [6, 6.0, torch.tensor(6), torch.tensor(6.0)])
def test_a_denominator_may_be_any_plain_number_or_scalar_tensor(denominator):
    assert loss_and_gradient(batch_of(B), denominator=denominator)[0] == pytest.approx(20 / 6, abs=1e-12)


@pytest.mark.parametrize("reduction", ["token", "document"])
@pytest.mark.parametrize("denominator", [None, 6])
def test_no_supervised_token_gives_zero_with_zero_gradients_and_a_notice(reduction, denominator):
    batch = collate([unsupervised(A), unsupervised(B)])
    with pytest.warns(ZeroSupervisedTokensWarning, match="0 targets: no token of this batch is supervised"):
        loss, gradient = loss_and_gradient(batch, reduction=reduction, denominator=denominator)

    assert loss == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_the_notice_points_at_the_line_that_asked_for_the_loss():
    with pytest.warns(ZeroSupervisedTokensWarning) as notices:
        packed_loss(torch.zeros(3, 8), collate([unsupervised(A)]))

    assert [notice.filename for notice in notices] == [__file__]


def test_an_unsupervised_micro_batch_beside_b_leaves_the_loss_of_b():
    with pytest.warns(ZeroSupervisedTokensWarning):
        apart = loss_and_gradient(collate([unsupervised(A)]), batch_of(B), denominator=4)[0]
    together = loss_and_gradient(collate([unsupervised(A), {"input_ids": B}]))[0]

    assert apart == pytest.approx(5.0, abs=1e-12)
    assert together == pytest.approx(5.0, abs=1e-12)


def test_a_supervised_batch_gives_no_notice():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss_and_gradient(batch_of(A, B))[0] > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_logits_are_summed_in_float32(dtype):
    logits = torch.zeros(5, 1000, dtype=dtype, requires_grad=True)
    loss = packed_loss(logits, batch_of([1, 2, 3, 4, 5]))
    loss.backward()

    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(1000), abs=1e-5)
    assert logits.grad.dtype == dtype


def test_logits_with_a_batch_dimension_and_a_padded_tail_give_the_same_loss():
    batch, padded = batch_of(A, B), batch_of(A, B, pad_to=12)
    table = bigram_table()
    expected = packed_loss(table[batch.input_ids], batch)

    assert torch.equal(packed_loss(table[batch.input_ids][None], batch), expected)
    assert torch.equal(packed_loss(table[padded.input_ids], padded), expected)


def test_nan_where_nothing_supervised_is_predicted_harms_neither_value_nor_gradient():
    batch = collate([{"input_ids": A, "loss_mask": [0, 0, 1]}, {"input_ids": B}], pad_to=10)
    table = bigram_table()
    clean = table.detach()[batch.input_ids]
    # 0 predicts an unsupervised token, 2 and 7 another document or the tail, 8 and 9 are the tail.
    unread = [0, 2, 7, 8, 9]
    spoiled = clean.clone()
    spoiled[unread] = torch.tensor([math.nan, math.inf, -math.inf, math.nan, math.nan]).double()[:, None]

    results = []
    for logits in (clean.requires_grad_(), spoiled.requires_grad_()):
        loss = packed_loss(logits, batch)
        loss.backward()
        results.append((loss.item(), logits.grad))
    assert results[0][0] == results[1][0] == pytest.approx((3 + 20) / 5)
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[1][1][unread], torch.zeros(5, VOCABULARY, dtype=torch.float64))


def test_a_vocabulary_entry_masked_with_minus_infinity_is_not_an_error():
    logits = torch.zeros(2, 4, requires_grad=True)
    masked = logits.masked_fill(torch.tensor([False, False, False, True]), -math.inf)
    loss = packed_loss(masked, batch_of([1, 2]))
    loss.backward()

    assert loss.item() == pytest.approx(math.log(3))
    assert logits.grad.isfinite().all()


def test_document_log_probs_are_the_negative_sums_of_each_documents_losses():
    batch = collate([{"input_ids": A}, {"input_ids": []}, unsupervised([7, 6]), {"input_ids": B}], pad_to=12)
    table = bigram_table()
    log_probs = document_log_probs(table[batch.input_ids], batch)
    log_probs[3].backward()

    assert log_probs.tolist() == pytest.approx([-4.0, 0.0, 0.0, -20.0], abs=1e-12)
    assert table.grad[3:7].abs().sum() > 0
    assert torch.equal(table.grad[:3], torch.zeros(3, VOCABULARY, dtype=torch.float64))


def test_rows_of_hugging_face_tensors_cost_what_the_packed_batch_costs():
    table = bigram_table()
    rows = torch.tensor([[*A, 0, 0], B])
    labels = torch.tensor([[-100, 1, 2, -100, -100], [-100, *B[1:]]])
    loss = token_loss(table[rows], labels)

    assert loss.item() == pytest.approx(4.0, abs=1e-12)
    assert token_loss(table[rows[:1]], labels[:1], denominator=6).item() == pytest.approx(4 / 6, abs=1e-12)
    with pytest.warns(ZeroSupervisedTokensWarning):
        assert token_loss(table[rows], torch.full_like(rows, -100)).item() == 0.0


token_lists = st.lists(st.lists(st.integers(0, 7), max_size=6), min_size=1, max_size=7)


def random_table():
    return torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@given(tokens=token_lists, data=st.data())
@settings(deadline=None, max_examples=100)
def test_the_loss_does_not_depend_on_order_packing_padding_or_accumulation(tokens, data):
    tokens = [*tokens, [1, 2]]  # at least one supervised token
    shuffled = data.draw(st.permutations(tokens))
    cut = data.draw(st.integers(0, len(tokens)))
    table = random_table().requires_grad_()

    def outcome(*groups, **options):
        table.grad = None
        batches = [batch_of(*group, pad_to_multiple=4) for group in groups if group]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZeroSupervisedTokensWarning)
            total = sum(packed_loss(table[batch.input_ids], batch, **options) for batch in batches)
        total.backward()
        return total.item(), table.grad

    counts = {
        "token": batch_of(*tokens).num_supervised_tokens,
        "document": sum(len(document) > 1 for document in tokens),
    }
    for reduction, count in counts.items():
        whole, gradient = outcome(tokens, reduction=reduction)
        parts, parts_gradient = outcome(shuffled[:cut], shuffled[cut:], reduction=reduction, denominator=count)
        assert parts == pytest.approx(whole, abs=1e-12)
        torch.testing.assert_close(parts_gradient, gradient, rtol=0, atol=1e-12)


@given(tokens=token_lists)
@settings(deadline=None, max_examples=100)
def test_a_documents_log_probability_is_bit_identical_alone_and_packed(tokens):
    table = random_table()
    packed = batch_of(*tokens)
    log_probs = document_log_probs(table[packed.input_ids], packed)

    for document, log_prob in zip(tokens, log_probs, strict=True):
        alone = batch_of(document)
        assert torch.equal(document_log_probs(table[alone.input_ids], alone), log_prob[None])
