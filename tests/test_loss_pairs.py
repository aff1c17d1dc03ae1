"""Losses over pairs of documents: their formulas, what equal policies cost, and that padding makes no document."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import random_documents

from hermetic.batch import Boundaries, PackedBatch, collate
from hermetic.errors import LossError, NonFiniteError
from hermetic.loss import (
    ZeroSupervisedTokensWarning,
    document_log_probs,
    dpo_loss,
    join_pairs,
    kto_loss,
    kto_reference_point,
    odds_ratio_loss,
    pairs_from_roles,
    supervised_tokens,
)
from hermetic.loss.preference import _log_one_minus_exp

POLICY = torch.tensor([-3.0, -8.0, -5.0, -2.0], dtype=torch.float64)
REFERENCE = torch.tensor([-4.0, -7.0, -5.5, -4.0], dtype=torch.float64)
PAIRS = [(0, 1), (3, 2)]
MARGINS = (1.0 - -1.0, 2.0 - 0.5)
COUNTS = torch.tensor([2, 4, 5, 8])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("kind", "cost"),
    [
        ("sigmoid", lambda m: -math.log(sigmoid(0.5 * m))),
        ("hinge", lambda m: max(0.0, 1 - 0.5 * m)),
        ("ipo", lambda m: (m - 1 / (2 * 0.5)) ** 2),
    ],
)
def test_a_pair_costs_what_the_formula_says(kind, cost):
    expected = sum(map(cost, MARGINS)) / 2

    assert dpo_loss(POLICY, REFERENCE, PAIRS, beta=0.5, kind=kind).item() == pytest.approx(expected, abs=1e-14)


def test_ipo_with_token_counts_takes_the_mean_log_ratio_of_each_document():
    margins = (1 / 2 - -1 / 4, 2 / 8 - 0.5 / 5)
    expected = sum((m - 1.0) ** 2 for m in margins) / 2
    found = dpo_loss(POLICY, REFERENCE, PAIRS, beta=0.5, kind="ipo", token_counts=COUNTS)

    assert found.item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(value=st.floats(-1e6, 0), other=st.floats(-1e6, 0), beta=st.floats(1e-3, 10))
@settings(deadline=None)
def test_equal_policies_cost_exactly_ln_2_a_pair(dtype, value, other, beta):
    log_probs = torch.tensor([value, other], dtype=dtype)

    assert torch.equal(
        dpo_loss(log_probs, log_probs.clone(), [(0, 1)], beta=beta), torch.tensor(2.0, dtype=dtype).log()
    )


def test_policies_that_differ_do_not_cost_ln_2():
    assert abs(dpo_loss(POLICY, REFERENCE, PAIRS).item() - math.log(2)) > 0.01


@given(order=st.permutations(range(6)), cut=st.integers(0, 3), seed=st.integers(0, 999))
@settings(deadline=None, max_examples=40)
def test_the_loss_of_pairs_does_not_depend_on_how_documents_are_packed(order, cut, seed):
    generator = torch.Generator().manual_seed(seed)
    docs = random_documents((5, 3, 8, 2, 6, 4), 6, generator, kept=0.8)
    policy, reference = torch.randn(2, 6, 6, dtype=torch.float64, generator=generator)
    pairs = [(0, 1), (2, 3), (4, 5)]

    def loss_of(numbers, chosen_pairs):
        batch = collate([docs[number] for number in numbers], pad_to_multiple=8)
        places = [[numbers.index(number) for number in pair] for pair in chosen_pairs]
        found = [document_log_probs(table[batch.input_ids], batch) for table in (policy, reference)]
        return dpo_loss(*found, places, denominator=3).item()

    whole = loss_of(list(range(6)), pairs)
    assert loss_of(list(order), pairs) == pytest.approx(whole, abs=1e-12)
    halves = [[number for pair in part for number in pair] for part in (pairs[:cut], pairs[cut:])]
    parts = [loss_of(half, part) for half, part in zip(halves, (pairs[:cut], pairs[cut:]), strict=True) if half]
    assert sum(parts) == pytest.approx(whole, abs=1e-12)


def test_the_reference_gets_no_gradient_and_documents_outside_pairs_none_either():
    policy, reference = POLICY.clone().requires_grad_(), REFERENCE.clone().requires_grad_()
    dpo_loss(policy, reference, PAIRS[:1]).backward()

    assert reference.grad is None
    assert policy.grad[0] < 0 < policy.grad[1]
    assert torch.equal(policy.grad[2:], torch.zeros(2, dtype=torch.float64))


def test_kto_costs_what_the_formula_says_with_weights_and_a_reference_point():
    z, beta = 0.25, 0.5
    costs = [
        2.0 * (1 - sigmoid(beta * (1.0 - z))),
        3.0 * (1 - sigmoid(beta * (z - -1.0))),
        3.0 * (1 - sigmoid(beta * (z - 2.0))),
    ]
    found = kto_loss(
        POLICY, REFERENCE, [1, 2, 0, 2], beta=beta, reference_point=z, chosen_weight=2.0, rejected_weight=3.0
    )

    assert found.item() == pytest.approx(sum(costs) / 3, abs=1e-14)


def test_the_reference_point_is_the_mean_log_ratio_and_never_below_0():
    policy = POLICY.clone().requires_grad_()

    assert kto_reference_point(policy, REFERENCE).item() == pytest.approx((1 - 1 + 0.5 + 2) / 4)
    assert not kto_reference_point(policy, REFERENCE).requires_grad
    assert kto_reference_point(REFERENCE, POLICY).item() == 0.0


def test_the_odds_ratio_costs_what_the_formula_says():
    a = [float(p / n) for p, n in zip(POLICY, COUNTS, strict=True)]
    odds = [math.exp(x) / (1 - math.exp(x)) for x in a]
    expected = -sum(math.log(sigmoid(math.log(odds[c] / odds[r]))) for c, r in PAIRS) / 2

    assert odds_ratio_loss(POLICY, COUNTS, PAIRS, beta=0.3).item() == pytest.approx(0.3 * expected, abs=1e-14)


@pytest.mark.parametrize("log_prob", [-1e-9, -0.5, -0.6931471805599453, -0.7, -40.0, -800.0])
def test_the_odds_ratio_and_its_gradient_are_finite_wherever_probabilities_are_below_1(log_prob):
    log_probs = torch.tensor([log_prob, -1.0], dtype=torch.float64, requires_grad=True)
    loss = odds_ratio_loss(log_probs, torch.tensor([1, 1]), [(0, 1)])
    loss.backward()

    assert loss.isfinite()
    assert log_probs.grad.isfinite().all()
    assert log_probs.grad[0] <= 0 <= log_probs.grad[1]


@pytest.mark.parametrize(
    "log_prob", [-1e-300, -1e-20, -1e-12, -1e-3, -0.6931471805599453, -0.7, -3.0, -36.0, -40.0, -700.0]
)
def test_the_logarithm_of_what_is_left_keeps_its_digits_and_so_does_its_gradient(log_prob):
    x = torch.tensor([log_prob], dtype=torch.float64, requires_grad=True)
    found = _log_one_minus_exp(x)
    found.backward()
    near = log_prob > -0.5
    expected = math.log(-math.expm1(log_prob)) if near else math.log1p(-math.exp(log_prob))
    rounding = 16 * torch.finfo(torch.float64).eps

    assert found.item() == pytest.approx(expected, rel=rounding, abs=0)
    assert x.grad.item() == pytest.approx(math.exp(log_prob) / math.expm1(log_prob), rel=rounding, abs=0)


def test_a_certain_document_has_no_odds():
    with pytest.raises(NonFiniteError, match=r"document 1 has the log-probability 0\.0, expected one below 0"):
        odds_ratio_loss(torch.tensor([-1.0, 0.0]), torch.tensor([1, 1]), [(0, 1)])


@pytest.mark.parametrize(
    ("loss_of", "notice"),
    [
        (lambda x: dpo_loss(x, x.detach(), []), "0 pairs"),
        (lambda x: odds_ratio_loss(x, torch.ones(2, dtype=torch.int64), []), "0 pairs"),
        (lambda x: kto_loss(x, x.detach(), [0, 0]), "0 documents with a role"),
    ],
)
def test_a_batch_without_pairs_costs_0_with_zero_gradients_and_a_notice(loss_of, notice):
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    with pytest.warns(ZeroSupervisedTokensWarning, match=notice) as notices:
        loss = loss_of(log_probs)
    loss.backward()

    assert loss.item() == 0.0
    assert log_probs.grad.tolist() == [0.0, 0.0]
    assert [each.filename for each in notices] == [__file__]


def padded_row():
    return collate([{"input_ids": [index % 7 for index in range(50)]}] * 2, pad_to=500)


def test_joined_rows_of_pairs_have_no_document_made_of_padding():
    """Field report R073: edges 0, 50, 100, a row padded to 500, and the same again."""
    batch, pairs = join_pairs(padded_row(), padded_row())

    assert batch.boundaries.cu_seqlens.tolist() == [0, 50, 100, 150, 200]
    assert pairs.tolist() == [[0, 2], [1, 3]]
    assert batch.num_slots == 200
    assert batch.num_supervised_tokens == 4 * 49


def test_a_joined_batch_starts_at_ln_2_and_one_with_a_spurious_document_does_not():
    table = torch.randn(7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch, pairs = join_pairs(padded_row(), padded_row())
    reference = document_log_probs(table[batch.input_ids], batch)
    assert dpo_loss(reference, reference, pairs).item() == math.log(2)

    spurious = Boundaries.from_cu_seqlens([0, 50, 100, 500, 550, 600])
    ids = torch.cat([padded_row().input_ids, padded_row().input_ids[:100]])
    labels = ids.clone()
    labels[[0, 50, 100, 500, 550]] = -100
    wrong = PackedBatch(input_ids=ids, labels=labels, boundaries=spurious)
    policy = document_log_probs(table[wrong.input_ids], wrong)
    assert abs(dpo_loss(policy[:4], reference, pairs).item() - math.log(2)) > 0.3


def test_join_pairs_keeps_tokens_labels_and_empty_documents():
    chosen = collate([{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]}, {"input_ids": []}], pad_to=5)
    rejected = collate([{"input_ids": [1, 4]}, {"input_ids": [5, 6]}], pad_to=8)
    batch, pairs = join_pairs(chosen, rejected)

    assert batch.input_ids.tolist() == [1, 2, 3, 1, 4, 5, 6]
    assert batch.labels.tolist() == [-100, -100, 3, -100, 4, -100, 6]
    assert batch.boundaries.document_lengths == (3, 0, 2, 2)
    assert supervised_tokens(batch)[pairs].tolist() == [[1, 1], [0, 1]]


def test_join_pairs_refuses_batches_of_different_numbers_of_documents():
    with pytest.raises(LossError, match="chosen has 2 documents and rejected 1, expected as many"):
        join_pairs(padded_row(), collate([{"input_ids": [1]}]))


@given(st.lists(st.sampled_from([(0,), (1, 2)]), max_size=8))
def test_roles_of_packed_folders_give_each_pair_by_its_two_numbers(parts):
    roles = [role for part in parts for role in part]
    expected = [[index, index + 1] for index, role in enumerate(roles) if role == 1]

    assert pairs_from_roles(roles).tolist() == expected
    assert pairs_from_roles(torch.tensor(roles, dtype=torch.int8)).shape == (len(expected), 2)


@pytest.mark.parametrize("roles", [[1], [2], [2, 1], [1, 1, 2], [1, 2, 2], [1, 0, 2]])
def test_torn_pairs_are_refused(roles):
    with pytest.raises(LossError, match=r"document \d has the role \d, expected each chosen document \(1\) to stand"):
        pairs_from_roles(roles)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dpo_loss(POLICY, REFERENCE, [(0, 4)]), r"pairs\[0\] is \[0, 4\], expected two different documents"),
        (lambda: dpo_loss(POLICY, REFERENCE, [(0, 1), (2, 2)]), r"pairs\[1\] is \[2, 2\]"),
        (lambda: dpo_loss(POLICY, REFERENCE, [(0, -1)]), r"pairs\[0\] is \[0, -1\]"),
        (lambda: dpo_loss(POLICY, REFERENCE, [0, 1]), r"pairs have shape \[2\], expected \[P, 2\]"),
        (lambda: dpo_loss(POLICY, REFERENCE, torch.ones(1, 2)), r"pairs have dtype torch.float32"),
        (lambda: dpo_loss(POLICY, REFERENCE[:3], PAIRS), r"reference_log_probs have shape \[3\].*expected \[4\]"),
        (lambda: dpo_loss(POLICY[None], REFERENCE, PAIRS), r"policy_log_probs have shape \[1, 4\]"),
        (lambda: dpo_loss(POLICY, REFERENCE, PAIRS, kind="kto"), "kind is 'kto', expected 'sigmoid', 'hinge' or 'ipo'"),
        (lambda: dpo_loss(POLICY, REFERENCE, PAIRS, beta=0.0), "beta is 0.0, expected a finite number above 0"),
        (lambda: dpo_loss(POLICY, REFERENCE, PAIRS, denominator=0), "denominator is 0, expected a finite number"),
        (lambda: dpo_loss(POLICY, REFERENCE, PAIRS, token_counts=COUNTS), "token_counts came with kind='sigmoid'"),
        (lambda: kto_loss(POLICY, REFERENCE, [1, 2, 3, 0]), r"roles\[2\] is 3, expected 1 for chosen"),
        (lambda: kto_loss(POLICY, REFERENCE, [1, 2]), r"roles have shape \[2\], expected \[4\]"),
        (lambda: kto_loss(POLICY, REFERENCE, [[1], [2]]), r"roles have shape \[2, 1\], expected \[D\]"),
        (lambda: kto_loss(POLICY, REFERENCE, [1, 2, 0, 0], reference_point=-1.0), "reference_point is -1.0"),
        (lambda: kto_loss(POLICY, REFERENCE, [1, 2, 0, 0], rejected_weight=-1.0), "rejected_weight is -1.0"),
        (lambda: dpo_loss(POLICY, REFERENCE, [(0, 1), (2,)]), "pairs cannot be read as a table of numbers"),
        (lambda: dpo_loss(POLICY, REFERENCE, None), "pairs cannot be read as a table of numbers"),
        (lambda: dpo_loss(POLICY, None, PAIRS), "reference_log_probs is of type NoneType, expected a tensor"),
        (lambda: pairs_from_roles(["chosen", "rejected"]), "roles cannot be read as a table of numbers"),
        (lambda: kto_loss(POLICY, REFERENCE, [1, 2, 0, 0], reference_point=POLICY), "reference_point is tensor"),
        (lambda: kto_loss(POLICY, REFERENCE, [1, 2, 0, 0], reference_point=None), "reference_point is None"),
        (lambda: kto_reference_point(POLICY[:0], REFERENCE[:0]), "there are no documents"),
        (lambda: odds_ratio_loss(POLICY, COUNTS[:2], PAIRS), r"token_counts have shape \[2\].*expected \[4\]"),
        (lambda: odds_ratio_loss(POLICY, COUNTS * 0, PAIRS), r"token_counts\[0\] is 0, expected a supervised token"),
    ],
)
def test_what_makes_no_preference_loss_is_refused_with_the_reason(call, message):
    with pytest.raises(LossError, match=message):
        call()


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_log_probability_that_is_no_number_is_refused_with_its_document(value):
    broken = POLICY.clone()
    broken[2] = value
    with pytest.raises(NonFiniteError, match=r"policy_log_probs\[2\] is (nan|-inf), expected finite"):
        dpo_loss(broken, REFERENCE, PAIRS)
