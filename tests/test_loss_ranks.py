"""Two ranks that average gradients train on the same loss as one process with both documents."""

import json

import pytest
import torch
from rank_helpers import on_ranks
from test_loss_values import A, B, batch_of, bigram_table
from torch.nn.parallel import DistributedDataParallel

from hermetic.integrations import distributed
from hermetic.loss import packed_loss

RANKS = 2


class Bigram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(bigram_table().detach())

    def forward(self, input_ids):
        return self.table[input_ids]


def train_one_step(rank, folder, denominator):
    """What each rank does: its own document, its own loss, gradients averaged by DDP."""
    model = DistributedDataParallel(Bigram())
    batch = batch_of((A, B)[rank])
    loss = packed_loss(model(batch.input_ids), batch, denominator=denominator)
    loss.backward()
    result = {"loss": loss.item(), "gradient": model.module.table.grad.tolist()}
    (folder / f"rank{rank}.json").write_text(json.dumps(result))


def run_ranks(folder, denominator):
    on_ranks(train_one_step, folder, denominator, ranks=RANKS)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def single_process_gradient():
    table = bigram_table()
    batch = batch_of(A, B)
    packed_loss(table[batch.input_ids], batch).backward()
    return table.grad


def test_each_ranks_sum_times_ranks_over_the_global_count_averages_to_the_global_mean(tmp_path):
    results = run_ranks(tmp_path, denominator=6 / RANKS)

    assert [result["loss"] for result in results] == pytest.approx([4 * 2 / 6, 20 * 2 / 6], abs=1e-12)
    assert sum(result["loss"] for result in results) / RANKS == pytest.approx(4.0, abs=1e-12)
    for result in results:
        gradient = torch.tensor(result["gradient"], dtype=torch.float64)
        torch.testing.assert_close(gradient, single_process_gradient(), rtol=0, atol=1e-15)


def test_each_ranks_own_mean_averages_to_another_loss_and_another_gradient(tmp_path):
    results = run_ranks(tmp_path, denominator=None)

    assert sum(result["loss"] for result in results) / RANKS == pytest.approx(3.5, abs=1e-12)
    gradient = torch.tensor(results[0]["gradient"], dtype=torch.float64)
    assert (gradient - single_process_gradient()).abs().max() > 0.05


@pytest.mark.parametrize(("averaged", "expected"), [(True, 6 / RANKS), (False, 6.0)])
def test_gradients_that_are_added_over_ranks_are_divided_by_the_whole_step_and_averaged_ones_by_less(
    averaged, expected, monkeypatch
):
    monkeypatch.setattr(distributed, "_place", lambda _group: (RANKS, 0))
    monkeypatch.setattr(distributed, "_gathered", lambda weight, count, *_: (weight + 4.0, [count, 1]))
    step = distributed.rank_step([batch_of(A)], averaged=averaged)

    assert step.weight == 6.0
    assert step.denominator == expected


def fail_on_rank_one(rank, _folder):
    if rank == 1:
        raise ArithmeticError("seven")


def test_what_one_rank_raises_is_raised_here(tmp_path):
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="ArithmeticError: seven"):
        on_ranks(fail_on_rank_one, tmp_path)
