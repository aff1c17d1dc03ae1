"""A step's loss is a property of its documents: not of their packing, order, micro-batches or ranks."""

import itertools
import json
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import documents, linear_loss, logits_costing
from rank_helpers import on_ranks

from hermetic.batch import collate
from hermetic.errors import LossError, NonFiniteError
from hermetic.loss import (
    REDUCTIONS,
    ZeroSupervisedTokensWarning,
    loss_denominator,
    packed_loss,
    supervised_tokens,
    weigh_documents,
)

VOCABULARY = 6

masked_documents = st.lists(
    st.lists(st.tuples(st.integers(0, VOCABULARY - 1), st.booleans()), max_size=6), min_size=1, max_size=7
)


def batch_of(pairs, **padding):
    return collate(
        [{"input_ids": [t for t, _ in each], "loss_mask": [int(kept) for _, kept in each]} for each in pairs], **padding
    )


def of_a_step(loss_of, groups, reduction, **options):
    """Loss and gradient of a step of micro-batches over one table of bigram logits."""
    table = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    table.requires_grad_()
    batches = [batch_of(group, pad_to_multiple=4) for group in groups if group]
    denominator = loss_denominator(batches, reduction=reduction)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroSupervisedTokensWarning)
        losses = [
            loss_of(table[batch.input_ids], batch, reduction=reduction, denominator=denominator, **options)
            for batch in batches
        ]
    sum(losses).backward()
    return sum(losses).item(), table.grad


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss_of", [packed_loss, linear_loss], ids=["logits", "hidden states"])
@given(drawn=masked_documents, data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_loss_of_a_step_does_not_depend_on_packing_order_or_micro_batches(loss_of, reduction, drawn, data):
    options = data.draw(st.sampled_from([{}, {"label_smoothing": 0.1, "z_loss": 0.01}]))
    shuffled = data.draw(st.permutations(drawn))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(drawn)), max_size=3)))
    edges = [0, *cuts, len(drawn)]
    groups = [shuffled[start:stop] for start, stop in itertools.pairwise(edges)]
    whole, gradient = of_a_step(loss_of, [drawn], reduction, **options)
    parts, parts_gradient = of_a_step(loss_of, groups, reduction, **options)

    assert parts == pytest.approx(whole, abs=1e-12)
    torch.testing.assert_close(parts_gradient, gradient, rtol=0, atol=1e-12)


def test_the_mean_of_the_micro_batches_own_losses_does_depend_on_them_so_the_law_can_fail():
    docs = [[(0, True), (1, True)], [(0, True), (1, True), (2, True), (3, True)], [(2, True), (5, True)]]

    def mean_of_means(*groups):
        table = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        batches = [batch_of(group) for group in groups]
        losses = [packed_loss(table[batch.input_ids], batch).item() for batch in batches]
        return sum(losses) / len(losses)

    assert abs(mean_of_means(docs[:1], docs[1:]) - mean_of_means(docs[:2], docs[2:])) > 0.01


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss_of", [packed_loss, linear_loss])
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), cost=st.floats(0.1, 9.0))
@settings(deadline=None, max_examples=30)
def test_where_every_token_costs_c_so_does_the_batch(loss_of, reduction, counts, cost):
    batch = documents(*counts)
    logits = logits_costing(batch, [cost] * len(counts))

    assert loss_of(logits, batch, reduction=reduction).item() == pytest.approx(cost, rel=1e-12)


@pytest.mark.parametrize(("reduction", "weights"), [("token", [1, 4]), ("document", [1, 1]), ("sqrt", [1, 2])])
def test_a_document_of_four_tokens_weighs_4_1_or_2_times_one_of_one_token(reduction, weights):
    batch = documents(1, 4)
    loss = packed_loss(logits_costing(batch, [1.0, 6.0]), batch, reduction=reduction)

    assert loss.item() == pytest.approx((weights[0] * 1.0 + weights[1] * 6.0) / sum(weights), abs=1e-12)


@pytest.mark.parametrize(("reduction", "expected"), [("token", 9.0), ("document", 3.0), ("sqrt", 5.0)])
def test_the_denominator_of_a_step_is_that_of_all_its_micro_batches(reduction, expected):
    step = [documents(4), documents(0, 4), documents(1, 0)]

    assert loss_denominator(step, reduction=reduction) == expected
    assert loss_denominator(reversed(step), reduction=reduction) == expected


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_step_without_targets_or_batches_is_divided_by_1(reduction):
    assert loss_denominator([], reduction=reduction) == 1.0
    assert loss_denominator([documents(0, 0)], reduction=reduction) == 1.0


def test_supervised_tokens_are_counted_for_each_document_the_empty_and_the_masked_included():
    batch = collate(
        [
            {"input_ids": [1, 2, 3]},
            {"input_ids": []},
            {"input_ids": [1, 2], "loss_mask": [1, 0]},
            {"input_ids": [4, 5]},
        ],
        pad_to=12,
    )

    assert supervised_tokens(batch).tolist() == [2, 0, 0, 1]


RANKS = 2


def denominators_of_a_rank(rank, folder):
    """A rank with documents of 1 and 4 tokens, and one that has nothing in this step."""
    step = [[documents(1), documents(4)], []][rank]
    found = [
        loss_denominator(step, reduction=reduction, group=torch.distributed.group.WORLD) for reduction in REDUCTIONS
    ]
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def test_every_rank_gets_the_denominator_of_all_ranks_also_one_without_batches(tmp_path):
    on_ranks(denominators_of_a_rank, tmp_path, ranks=RANKS)
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(RANKS)]

    assert found == [[5.0, 2.0, 3.0]] * RANKS
    assert [loss_denominator([], reduction=reduction) for reduction in REDUCTIONS] != found[1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_label_smoothing_is_that_of_cross_entropy(smoothing):
    batch = documents(3, 5)
    logits = torch.randn(batch.num_slots, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = torch.cat([batch.labels[1:], torch.tensor([-100])])
    expected = torch.nn.functional.cross_entropy(logits, shifted, label_smoothing=smoothing)

    assert packed_loss(logits, batch, label_smoothing=smoothing).item() == pytest.approx(expected.item(), abs=1e-14)


def test_the_z_loss_is_the_mean_square_of_the_logarithm_of_the_partition_function():
    batch = documents(3, 5)
    logits = torch.full((batch.num_slots, 8), 2.0, dtype=torch.float64)
    extra = packed_loss(logits, batch, z_loss=0.5) - packed_loss(logits, batch)

    assert extra.item() == pytest.approx(0.5 * (2.0 + math.log(8)) ** 2, abs=1e-12)


@pytest.mark.parametrize("loss_of", [packed_loss, linear_loss])
@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("label_smoothing", -0.1, "of 0 or more and at most 1"),
        ("label_smoothing", 1.5, "of 0 or more and at most 1"),
        ("label_smoothing", True, "of 0 or more and at most 1"),
        ("z_loss", math.nan, "of 0 or more"),
        ("z_loss", "1e-4", "of 0 or more"),
    ],
)
def test_a_number_out_of_its_range_is_refused(loss_of, option, value, expected):
    batch = documents(2)

    with pytest.raises(LossError, match=f"{option} is .*, expected a finite number {expected}"):
        loss_of(torch.zeros(batch.num_slots, 8), batch, **{option: value})


def test_an_unknown_reduction_is_refused_by_everyone_who_takes_one():
    batch = documents(2)
    for asked in (
        lambda: loss_denominator([batch], reduction="mean"),
        lambda: weigh_documents(torch.zeros(1), batch, reduction="mean"),
        lambda: linear_loss(torch.zeros(3, 8), batch, reduction="mean"),
    ):
        with pytest.raises(LossError, match="reduction is 'mean', expected one of 'token', 'document', 'sqrt'"):
            asked()


def test_sums_of_other_documents_are_refused():
    with pytest.raises(LossError, match=r"sums have shape \[2\], expected \[1\]"):
        weigh_documents(torch.zeros(2), documents(2))


def test_sums_that_are_no_losses_are_refused():
    with pytest.raises(LossError, match=r"sums have dtype torch.int64, expected a floating one"):
        weigh_documents(torch.tensor([4]), documents(2))
    with pytest.raises(NonFiniteError, match=r"sums\[1\] is nan, expected a finite loss of a document with 2"):
        weigh_documents(torch.tensor([1.0, math.nan]), documents(0, 2))


def test_a_sum_of_a_document_without_targets_is_not_read():
    sums = torch.tensor([math.nan, 4.0], requires_grad=True)
    loss = weigh_documents(sums, documents(0, 2))
    loss.backward()

    assert loss.item() == 2.0
    assert sums.grad.tolist() == [0.0, 0.5]
