"""Loss and gradients of a step are the same, however its documents are packed, accumulated and dealt to ranks."""

import json
import warnings
from functools import cache

import pytest
import ranks_cases
import torch
from rank_helpers import on_ranks
from ranks_cases import DEALS, MODELS, PARTINGS, REDUCTIONS, batches_of, expected, furthest, step_on
from test_loss_values import A, B, batch_of, bigram_table, unsupervised
from torch.nn.parallel import DistributedDataParallel

import hermetic
from hermetic.errors import LossError, TrainError
from hermetic.integrations.distributed import rank_step
from hermetic.loss import ZeroSupervisedTokensWarning, packed_loss

KINDS = ("DDP", "FSDP1", "FSDP2", "FSDP2 with checkpointing", "FSDP2 sealed afterwards")
BOUND = 1e-6
"""Relative. Llama keeps float64 throughout; Qwen3.5 computes its delta rule in float32."""

expected = cache(expected)


@cache
def sealed(model_type):
    return hermetic.seal(ranks_cases.plain(model_type))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("model_type", MODELS)
def test_padded_documents_give_the_loss_and_gradients_of_documents_alone(model_type, reduction):
    model = ranks_cases.plain(model_type)
    loss = ranks_cases.weighed(ranks_cases.padded(model), reduction)
    loss.backward()

    found = (loss.item(), ranks_cases.taken_gradients(model))

    assert furthest(found, expected(model_type, reduction)) < BOUND


@pytest.mark.parametrize("parting", PARTINGS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("model_type", MODELS)
def test_packed_and_accumulated_documents_give_the_loss_and_gradients_of_documents_alone(
    model_type, reduction, parting
):
    found = step_on(sealed(model_type), PARTINGS[parting], reduction)

    assert furthest(found, expected(model_type, reduction)) < BOUND


def test_token_and_document_level_are_different_losses_of_these_documents():
    assert furthest(expected("llama", "token"), expected("llama", "document")) > 1e-3


def document(tokens):
    return {"input_ids": tokens}


class Bigram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(bigram_table().detach())

    def forward(self, input_ids):
        return self.table[input_ids]


def exact_values():
    """Cases with known values, on rank 0 and rank 1, averaged by DDP."""
    rank = torch.distributed.get_rank()
    found = {}
    for name, mine in {
        "A and B": ([[document(A)]], [[document(B)]]),
        "masked A and B": ([[unsupervised(A)]], [[document(B)]]),
        "both masked": ([[unsupervised(A)]], [[unsupervised(B)]]),
        "A and B, nothing": ([[document(A)], [document(B)]], []),
    }.items():
        model = DistributedDataParallel(Bigram())
        step = rank_step([hermetic.collate(documents) for documents in mine[rank]])
        losses = []
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            for batch in step.micro_batches(model):
                loss = step.loss(model(batch.input_ids), batch)
                loss.backward()
                losses.append(loss.item())
        found[name] = {
            "losses": losses,
            "denominator": step.denominator,
            "gradient": model.module.table.grad.tolist(),
            "notices": [notice.category.__name__ for notice in notices],
        }
    return found


def on_one_rank(rank, folder, ranks, what):
    models, kinds, deals = what
    found = {"exact": exact_values()} if ranks == 2 else {}
    for model_type in models:
        right = {reduction: ranks_cases.expected(model_type, reduction) for reduction in REDUCTIONS}
        whole = sealed(model_type)
        for kind in kinds:
            model = ranks_cases.over_ranks(whole, kind)
            for deal in deals:
                for reduction in REDUCTIONS:
                    apart = furthest(step_on(model, DEALS[ranks][deal][rank], reduction), right[reduction])
                    found[f"{model_type}, {kind}, {deal}, {reduction}"] = apart
    found["means of ranks"] = means_of_ranks(rank, ranks)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


def means_of_ranks(rank, ranks):
    """How far each rank's own mean, averaged, is from the loss of the step."""
    model = DistributedDataParallel(ranks_cases.plain("llama"))
    hermetic.seal(model.module)
    (batch,) = batches_of(DEALS[ranks]["even"][rank])
    loss = packed_loss(model(**ranks_cases.inputs(batch)).logits, batch)
    loss.backward()
    return furthest((loss.item(), ranks_cases.taken_gradients(model)), ranks_cases.expected("llama", "token"))


def run_on(folder, ranks, *what):
    on_ranks(on_one_rank, folder, ranks, what, ranks=ranks)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    deals = ("uneven", "nothing supervised on one rank", "nothing at all on one rank")
    return run_on(tmp_path_factory.mktemp("ranks"), 2, MODELS, ("DDP", "FSDP2 with checkpointing"), deals)


def distances(results):
    return {name: value for result in results for name, value in result.items() if ", " in name}


def test_two_ranks_give_the_loss_and_gradients_of_documents_alone(two_ranks):
    found = distances(two_ranks)

    assert len(found) == len(MODELS) * 2 * 3 * len(REDUCTIONS)
    assert {name: value for name, value in found.items() if not value < BOUND} == {}


def test_each_ranks_own_mean_gives_another_loss(two_ranks):
    assert min(result["means of ranks"] for result in two_ranks) > 1e-2


def test_each_ranks_sum_times_two_over_six_averages_to_four_and_to_the_gradients_of_one_batch(two_ranks):
    found = [result["exact"]["A and B"] for result in two_ranks]
    table = bigram_table()
    batch = batch_of(A, B)
    packed_loss(table[batch.input_ids], batch).backward()

    assert [one["denominator"] for one in found] == [3.0, 3.0]
    assert [one["losses"] for one in found] == [[pytest.approx(4 * 2 / 6)], [pytest.approx(20 * 2 / 6)]]
    assert sum(one["losses"][0] for one in found) / 2 == pytest.approx(4.0, abs=1e-12)
    for one in found:
        gradient = torch.tensor(one["gradient"], dtype=torch.float64)
        torch.testing.assert_close(gradient, table.grad, rtol=0, atol=1e-15)


def test_a_rank_whose_only_batch_is_masked_gives_zero_with_a_notice_and_the_step_is_the_other_ranks(two_ranks):
    masked_rank, other = (result["exact"]["masked A and B"] for result in two_ranks)

    assert masked_rank["losses"] == [0.0]
    assert masked_rank["notices"] == ["ZeroSupervisedTokensWarning"]
    assert (masked_rank["losses"][0] + other["losses"][0]) / 2 == pytest.approx(5.0, abs=1e-12)
    assert masked_rank["gradient"] == other["gradient"]
    assert torch.tensor(other["gradient"]).isfinite().all()


def test_a_step_without_supervised_tokens_on_any_rank_is_zero_with_zero_gradients(two_ranks):
    for result in two_ranks:
        found = result["exact"]["both masked"]
        assert found["losses"] == [0.0]
        assert torch.tensor(found["gradient"]).abs().max() == 0.0


def test_a_rank_without_batches_runs_as_many_blank_ones_without_a_notice(two_ranks):
    busy, idle = (result["exact"]["A and B, nothing"] for result in two_ranks)

    assert idle["losses"] == [0.0, 0.0]
    assert idle["notices"] == []
    assert sum(busy["losses"]) / 2 == pytest.approx(4.0, abs=1e-12)
    assert idle["gradient"] == busy["gradient"]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "models"), [(2, MODELS), (4, ("llama",)), (4, ("qwen3_5",))])
def test_every_deal_over_two_and_four_ranks_gives_the_loss_and_gradients_of_documents_alone(tmp_path, ranks, models):
    found = distances(run_on(tmp_path, ranks, models, KINDS, tuple(DEALS[ranks])))

    assert len(found) == len(models) * len(KINDS) * len(DEALS[ranks]) * len(REDUCTIONS)
    assert {name: value for name, value in found.items() if not value < BOUND} == {}


def test_two_micro_batches_of_one_process_add_up_to_four_with_the_gradients_of_one_batch():
    both = batch_of(A, B)
    table, again = bigram_table(), bigram_table()
    packed_loss(table[both.input_ids], both).backward()
    step = rank_step([batch_of(A), batch_of(B)])
    losses = [step.loss(again[batch.input_ids], batch) for batch in step.batches]
    for loss in losses:
        loss.backward()

    assert [loss.item() for loss in losses] == [pytest.approx(4 / 6), pytest.approx(20 / 6)]
    torch.testing.assert_close(again.grad, table.grad, rtol=0, atol=1e-15)


def test_a_masked_micro_batch_beside_another_is_zero_with_a_notice():
    step = rank_step([hermetic.collate([unsupervised(A)]), batch_of(B)])
    table = bigram_table()
    with pytest.warns(ZeroSupervisedTokensWarning, match="0 targets"):
        nothing = step.loss(table[step.batches[0].input_ids], step.batches[0])

    assert nothing.item() == 0.0
    assert step.loss(table[step.batches[1].input_ids], step.batches[1]).item() == pytest.approx(5.0)


def test_a_blank_micro_batch_gives_zero_gradients_even_where_the_model_gives_no_numbers():
    step = rank_step([], at_least=2)
    weight = torch.nn.Parameter(torch.ones(3))
    (first, second) = step.batches
    step.loss(weight.expand(1, 2, 3) + float("nan"), second).backward()

    assert step.num_own == 0
    assert first.num_supervised_tokens == second.num_supervised_tokens == 0
    assert torch.equal(weight.grad, torch.zeros(3))


@pytest.mark.parametrize("reduction", ["token", "document", "sqrt"])
def test_gradients_that_are_added_over_ranks_are_divided_by_the_whole_weight(reduction):
    batches = [batch_of(A), batch_of(B)]
    step = rank_step(batches, reduction=reduction, averaged=False)

    assert step.denominator == {"token": 6.0, "document": 2.0, "sqrt": 2**0.5 + 2.0}[reduction]


def test_an_unknown_reduction_and_too_few_micro_batches_are_refused():
    with pytest.raises(LossError, match="reduction is 'mean'"):
        rank_step([batch_of(A)], reduction="mean")
    with pytest.raises(TrainError, match="at_least is 0, expected a whole number of micro-batches"):
        rank_step([batch_of(A)], at_least=0)
