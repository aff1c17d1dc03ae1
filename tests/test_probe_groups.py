"""Of many documents, groups are asked: what they clear, and that nothing hides in them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import calling, packed, tiny
from test_probe_instruments import Attending, as_function

import hermetic
from hermetic.probe import instruments as measuring
from hermetic.probe.sample import few_of
from hermetic.probe.subject import subject_from
from hermetic.seal.measure import by_pairs, covering_groups

MANY = (3, 4, 2, 5, 3, 1, 4, 2, 3)


@given(st.integers(min_value=1, max_value=300))
def test_for_any_two_documents_some_group_holds_the_first_and_not_the_second(count):
    groups = covering_groups(count)
    member = torch.zeros(len(groups), count, dtype=torch.int64)
    for group, documents in enumerate(groups):
        member[group, documents] = 1
    apart = member.T @ (1 - member)

    assert bool((apart + torch.eye(count, dtype=torch.int64) > 0).all())
    assert len(groups) <= count
    assert math.comb(len(groups), len(groups) // 2) >= count or len(groups) == count


@pytest.mark.parametrize(("count", "groups"), [(1, 1), (4, 4), (6, 4), (20, 6), (70, 8), (400, 11)])
def test_the_number_of_groups_grows_with_the_logarithm(count, groups):
    assert len(covering_groups(count)) == groups
    assert covering_groups(3) == [[0], [1], [2]]


def test_a_group_that_reaches_nobody_clears_all_of_its_pairs_and_one_that_does_accuses_those_it_shares():
    groups = [[0, 1], [0, 2], [1, 2]]
    readings = [torch.tensor([1.0, 1.0, 0.0]), torch.tensor([1.0, 5.0, 1.0]), torch.tensor([0.0, 1.0, 1.0])]

    assert by_pairs(groups, readings).tolist() == [[1.0, 5.0, 0.0], [0.0, 1.0, 0.0], [0.0, 5.0, 1.0]]
    unsplit = by_pairs([[0, 1], [2]], readings[:2])
    assert unsplit[0, 1] == unsplit[1, 0] == math.inf


def alternating(mixed, batch):
    """Segment ids that alternate between two numbers: every document reaches the next but one."""
    ids = batch.boundaries.document_ids
    return mixed + sum(
        (ids == document)[:, None] * mixed[ids == document - 2].mean(dim=0)
        for document in range(2, batch.boundaries.num_documents)
    )


@pytest.mark.parametrize("instrument", ["swap", "gradient"])
def test_many_documents_that_are_apart_are_cleared_and_every_entry_is_exactly_0(instrument):
    report = hermetic.probe(as_function(Attending()), lengths=MANY, instruments=instrument)
    reach = report.influence if instrument == "swap" else report.gradients.fill_diagonal_(0.0)

    assert report.verdict == "sealed"
    assert not reach.any()


def test_a_leak_that_skips_a_document_is_seen_by_swap_and_the_pairs_that_gradient_left_out_are_marked():
    model = as_function(Attending(alternating))
    found = hermetic.probe(model, lengths=MANY, instruments=("swap", "gradient"))
    expected = torch.zeros(len(MANY), len(MANY), dtype=torch.bool)
    for document in range(2, len(MANY)):
        expected[document, document - 2] = True
    assert found.verdict == "leak"
    assert torch.equal(found.influence > 0, expected)
    assert torch.equal(found.gradients.fill_diagonal_(0.0) > 0, expected)
    assert bool(found.gradients_measured.all())

    assert hermetic.probe(model, lengths=MANY, instruments="gradient").verdict == "leak"
    sealed = hermetic.probe(as_function(Attending()), lengths=MANY, instruments="gradient")
    parity = torch.arange(len(MANY)) % 2
    assert torch.equal(sealed.gradients_measured, (parity[:, None] != parity[None]) | torch.eye(9, dtype=torch.bool))


def only_first_tokens(mixed, batch):
    """Every document hands its first token to the next but one: a gradient that no later token has."""
    starts = torch.tensor([0, *batch.boundaries.document_lengths]).cumsum(0)[:-1]
    ids = batch.boundaries.document_ids
    return mixed + (ids > 1)[:, None] * mixed[starts[(ids - 2).clamp(min=0)]]


def test_a_pair_that_gradient_left_out_is_not_seen_by_it_alone_and_is_by_swap():
    model = as_function(Attending(only_first_tokens))

    assert hermetic.probe(model, lengths=MANY, instruments="gradient").verdict == "sealed"
    assert hermetic.probe(model, lengths=MANY, instruments="swap").verdict == "leak"
    assert hermetic.probe(model, lengths=MANY[:4], instruments="gradient").verdict == "leak"


def test_a_leak_among_many_documents_is_reported_for_each_pair_by_itself():
    report = hermetic.probe(calling(tiny("llama"), "all_ones_mask"), lengths=MANY, instruments=("swap", "gradient"))
    causal = torch.ones(len(MANY), len(MANY), dtype=torch.bool).tril(-1)

    assert report.verdict == "leak"
    assert torch.equal(report.influence > 0, causal)
    assert torch.equal(report.gradients.fill_diagonal_(0.0) > 0, causal)


def tokens_run(model, batch, **options):
    """Tokens that go through a sealed model in a probe, in batches."""
    count = [0]

    def hook(_module, _args, kwargs):
        count[0] += kwargs["input_ids"].numel()

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    documents = [{"input_ids": ids} for ids in batch.unpack(batch.input_ids)]
    assert hermetic.probe(model, documents=documents, **options).verdict == "sealed"
    handle.remove()
    return count[0] / batch.num_slots


def test_a_probe_of_many_documents_costs_about_twenty_passes_over_them():
    model, batch = hermetic.seal(tiny("llama")), packed((13, 7, 9, 11) * 10)

    assert tokens_run(model, batch, instruments="swap") < 3 + len(covering_groups(40)) + 0.1
    assert tokens_run(model, batch, instruments="gradient") < 4.1
    assert tokens_run(model, batch) < 22


def test_few_documents_stand_for_many_where_noise_and_parameter_gradients_are_measured():
    batch = packed((3, 4, 2, 9, 3, 0))

    assert few_of(batch) == [0, 2, 3, 4]
    assert few_of(packed((3, 0, 5))) == [0, 2]
    subject = subject_from(as_function(Attending()), seed=0)
    assert 0.0 < measuring.floor_of(subject, batch) < 1e-4
