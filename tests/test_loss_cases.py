"""Field-report cases of targets and of the normalisation of losses, with their exact values, by every way to a loss."""

import pytest
import torch
from loss_helpers import documents, linear_log_probs, linear_loss, logits_costing

from hermetic.batch import collate
from hermetic.batch.dialects import shift_labels
from hermetic.constants import IGNORE_INDEX
from hermetic.loss import (
    ZeroSupervisedTokensWarning,
    document_log_probs,
    loss_denominator,
    packed_loss,
    weigh_documents,
)

WAYS = [packed_loss, linear_loss]
both_ways = pytest.mark.parametrize("loss_of", WAYS, ids=["logits", "hidden states"])

A, B = [0, 1, 2], [3, 4, 5, 6, 7]


def batch_of(*tokens, **options):
    return collate([{"input_ids": each} for each in tokens], **options)


def a_and_b(*, a=True, b=True):
    """The batch and logits of A, whose tokens cost 1 and 3, and of B, whose four tokens cost 5 each."""
    batch = batch_of(*[A] * a, *[B] * b)
    logits = logits_costing(batch, [3.0] * a + [5.0] * b)
    if a:
        logits[0] = logits_costing(batch_of(A), [1.0])[0]
    return batch, logits.requires_grad_()


def test_case_20_no_token_is_trained_to_predict_the_next_documents_first():
    batch = batch_of([5, 6, 7], [8, 9])

    assert batch.labels.tolist() == [-100, 6, 7, -100, 9]
    assert batch.num_supervised_tokens == 3


@both_ways
def test_case_20_what_would_predict_8_from_7_is_never_read(loss_of):
    batch = batch_of([5, 6, 7], [8, 9])
    logits = torch.zeros(5, 10, requires_grad=True)
    loss_of(logits, batch).backward()

    assert logits.grad.abs().sum(dim=1).bool().tolist() == [True, True, False, True, False]


def test_case_21_shifted_labels_end_in_an_ignored_one_in_every_document():
    batch = batch_of([10, 11, 12], [20, 21])

    assert shift_labels(batch.labels, batch.boundaries).tolist() == [11, 12, -100, 21, -100]


@pytest.mark.parametrize("second", [[0, 1, 1], [1, 1, 1]])
def test_case_22_a_loss_mask_on_a_first_token_changes_nothing(second):
    batch = collate([{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}, {"input_ids": [4, 5, 6], "loss_mask": second}])

    assert batch.labels.tolist() == [-100, -100, 3, -100, 5, 6]
    assert batch.num_supervised_tokens == 3


def test_case_23_ends_of_turns_stay_targets_though_padding_has_their_id():
    batch = batch_of([5, 2, 6, 2], [7, 2], pad_to=8, pad_token_id=2)

    assert batch.boundaries.document_lengths == (4, 2)
    assert batch.boundaries.cu_seqlens.tolist() == [0, 4, 6]
    assert batch.model_inputs()["cu_seq_lens_q"].tolist() == [0, 4, 6, 8]
    assert batch.labels.tolist() == [-100, 2, 6, 2, -100, 2, -100, -100]
    assert ((batch.labels == 2) & (batch.labels != IGNORE_INDEX)).sum() == 3


@both_ways
def test_case_24_the_token_mean_is_4_and_the_document_mean_three_and_a_half(loss_of):
    batch, logits = a_and_b()

    assert loss_of(logits, batch).item() == pytest.approx(4.0, abs=1e-12)
    assert loss_of(logits, batch, reduction="document").item() == pytest.approx(3.5, abs=1e-12)
    roots = 2**0.5 + 2.0
    assert loss_of(logits, batch, reduction="sqrt").item() == pytest.approx((4 / 2**0.5 + 10) / roots, abs=1e-12)


@both_ways
def test_case_24_the_wrong_counts_would_give_the_wrong_losses(loss_of):
    batch, logits = a_and_b()

    assert loss_of(logits, batch, denominator=8).item() == pytest.approx(3.0, abs=1e-12)
    assert loss_of(logits, batch, denominator=7).item() == pytest.approx(24 / 7, abs=1e-12)


@both_ways
@pytest.mark.parametrize(("reduction", "expected"), [("token", 4.0), ("document", 3.5)])
def test_case_25_two_accumulation_steps_are_one_batch_in_loss_and_gradients(loss_of, reduction, expected):
    whole, logits = a_and_b()
    parts, leaves = zip(*(a_and_b(a=a, b=not a) for a in (True, False)), strict=True)
    denominator = loss_denominator(parts, reduction=reduction)
    losses = [
        loss_of(leaf, part, reduction=reduction, denominator=denominator)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    sum(losses).backward()
    loss_of(logits, whole, reduction=reduction).backward()

    assert sum(losses).item() == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(torch.cat([leaf.grad for leaf in leaves]), logits.grad, rtol=0, atol=1e-15)


@both_ways
def test_case_26_each_ranks_sum_times_two_over_the_global_count_averages_to_4(loss_of):
    ranks = [a_and_b(b=False), a_and_b(a=False)]
    denominator = loss_denominator([batch for batch, _ in ranks]) / len(ranks)
    losses = [loss_of(logits, batch, denominator=denominator).item() for batch, logits in ranks]
    own = [loss_of(logits, batch).item() for batch, logits in ranks]

    assert losses == pytest.approx([4 * 2 / 6, 20 * 2 / 6], abs=1e-12)
    assert sum(losses) / 2 == pytest.approx(4.0, abs=1e-12)
    assert sum(own) / 2 == pytest.approx(3.5, abs=1e-12)


@both_ways
@pytest.mark.parametrize("reduction", ["token", "document", "sqrt"])
def test_case_27_a_batch_without_targets_costs_0_with_zero_gradients_and_a_notice(loss_of, reduction):
    batch = collate([{"input_ids": A, "loss_mask": [0, 0, 0]}])
    logits = torch.full((3, 8), torch.nan, dtype=torch.float64, requires_grad=True)
    with pytest.warns(ZeroSupervisedTokensWarning, match="0 targets"):
        loss = loss_of(logits, batch, reduction=reduction)
    loss.backward()

    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros(3, 8, dtype=torch.float64))


@both_ways
@pytest.mark.parametrize("reduction", ["token", "document", "sqrt"])
def test_case_27_beside_b_it_leaves_the_loss_of_b(loss_of, reduction):
    masked = collate([{"input_ids": A, "loss_mask": [0, 0, 0]}])
    batch, logits = a_and_b(a=False)
    denominator = loss_denominator([masked, batch], reduction=reduction)
    with pytest.warns(ZeroSupervisedTokensWarning):
        nothing = loss_of(torch.zeros(3, 8, dtype=torch.float64), masked, reduction=reduction, denominator=denominator)

    total = nothing + loss_of(logits, batch, reduction=reduction, denominator=denominator)
    assert total.item() == pytest.approx(5.0, abs=1e-12)


COUNTS, SUMS = (10, 20, 90), (20.0, 30.0, 90.0)
"""Supervised tokens and summed losses of three documents; the first two are one pack, the third another."""


def packs():
    batches = [documents(10, 20), documents(90)]
    return [(batch, logits_costing(batch, costs)) for batch, costs in zip(batches, ([2.0, 1.5], [1.0]), strict=True)]


@both_ways
@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("token", 140 / 120),
        ("document", 1.5),
        ("sqrt", (20 / 10**0.5 + 30 / 20**0.5 + 90 / 90**0.5) / (10**0.5 + 20**0.5 + 90**0.5)),
    ],
)
def test_two_packs_of_three_documents_give_the_mean_over_tokens_or_documents_never_that_over_rows(
    loss_of, reduction, expected
):
    denominator = loss_denominator([batch for batch, _ in packs()], reduction=reduction)
    apart = sum(loss_of(each, batch, reduction=reduction, denominator=denominator) for batch, each in packs())
    batch = documents(*COUNTS)
    together = loss_of(logits_costing(batch, [2.0, 1.5, 1.0]), batch, reduction=reduction)

    assert apart.item() == pytest.approx(expected, abs=1e-12)
    assert together.item() == pytest.approx(expected, abs=1e-12)
    assert abs(apart.item() - 4 / 3) > 0.01


@both_ways
def test_the_mean_over_rows_of_their_own_means_is_one_and_a_third(loss_of):
    own = [loss_of(logits, batch).item() for batch, logits in packs()]

    assert sum(own) / 2 == pytest.approx(4 / 3, abs=1e-12)


@pytest.mark.parametrize("log_probs_of", [document_log_probs, linear_log_probs], ids=["logits", "hidden states"])
def test_the_sums_of_documents_are_weighed_as_their_tokens_are(log_probs_of):
    batch = documents(*COUNTS)
    logits = logits_costing(batch, [2.0, 1.5, 1.0])
    sums = -log_probs_of(logits, batch)

    assert sums.tolist() == pytest.approx(SUMS, abs=1e-11)
    for reduction in ("token", "document", "sqrt"):
        direct = packed_loss(logits, batch, reduction=reduction)
        assert weigh_documents(sums, batch, reduction=reduction).item() == pytest.approx(direct.item(), abs=1e-12)
