"""What a loss trains is told from what it only touches: penalties, routers, and predictions that are certain."""

from types import SimpleNamespace

import pytest
import torch
from models import packed, tiny
from torch import nn

import hermetic
from hermetic.probe import probe_call

COUNTING = [{"input_ids": list(range(first, first + length))} for first, length in ((3, 11), (5, 13), (7, 3))]


def codes(report):
    return [finding.code for finding in report.findings]


class Counting(nn.Module):
    """Predicts the next number, by a logit that is ``gap`` above all others."""

    def __init__(self, gap, dtype):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 32), nn.Linear(32, 32, bias=False)
        self.embedding.weight.data = torch.eye(32)
        self.head.weight.data = gap * torch.eye(32).roll(1, 0)
        self.to(dtype)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids))
        loss = None if labels is None else cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


def cross_entropy(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("gap", [20, 200])
def test_predictions_so_certain_that_their_gradients_are_0_carry_loss_for_all_that(gap, dtype):
    report = hermetic.probe(Counting(gap, dtype), documents=COUNTING)
    assert report.verdict == "sealed"
    assert report.targets.trained == report.targets.expected == (10, 12, 2)


def test_certain_predictions_hide_no_label_that_is_masked_and_none_across_a_seam():
    class Masking(Counting):
        def forward(self, input_ids, labels=None):
            return super().forward(input_ids, None if labels is None else labels.where(input_ids != 9, -100))

    def across(batch):
        return model(batch.input_ids[None], batch.input_ids[None])

    assert codes(hermetic.probe(Masking(10, torch.float32), documents=COUNTING))[0] == "HM402"
    model = Counting(200, torch.float32)
    assert codes(hermetic.probe(across, documents=COUNTING)) == ["HM401"]


@pytest.mark.parametrize("labelled_firsts", [False, True])
def test_a_penalty_on_the_size_of_all_logits_predicts_nothing_and_hides_nothing(labelled_firsts):
    model = tiny("llama")

    def penalized(batch):
        inputs = batch.model_inputs()
        inputs["labels"] = inputs["input_ids"] if labelled_firsts else inputs["labels"]
        output = model(**inputs)
        output.loss = output.loss + 1e-2 * output.logits.logsumexp(-1).pow(2).mean()
        return output

    assert codes(hermetic.probe(penalized, instruments=("swap", "targets"))) == (["HM401"] if labelled_firsts else [])


def test_a_router_that_is_balanced_over_all_tokens_trains_none_to_predict_another():
    model = tiny("mixtral", output_router_logits=True)

    def fused(batch):
        output = model(**batch.model_inputs())
        return SimpleNamespace(logits=output.logits.detach(), loss=output.loss, aux_loss=output.aux_loss)

    assert codes(hermetic.probe(fused, instruments=("swap", "targets"))) == []

    def across(batch):
        inputs = batch.model_inputs() | {"labels": batch.input_ids[None]}
        output = model(**inputs)
        return SimpleNamespace(logits=output.logits.detach(), loss=output.loss, aux_loss=output.aux_loss)

    assert codes(hermetic.probe(across, instruments=("swap", "targets"))) == ["HM401"]


def test_a_router_is_known_in_a_real_call_as_in_a_probe_of_the_model():
    model, batch = tiny("mixtral", output_router_logits=True).train(), packed((9, 8, 5, 7))
    inputs = {name: value for name, value in batch.model_inputs().items() if value is not None}
    assert codes(probe_call(model, (), inputs)) == codes(hermetic.probe(model)) == ["HM503"]
