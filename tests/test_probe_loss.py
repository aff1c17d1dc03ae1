"""The targets and weights instruments: what the subject's own loss trains, and how it weighs it."""

from types import SimpleNamespace

import pytest
import torch
from models import calling, packed, tiny
from test_probe_instruments import Attending
from torch import nn

import hermetic
from hermetic.errors import ProbeError

LENGTHS = (5, 7, 4)


def codes(report):
    return [finding.code for finding in report.findings]


@pytest.fixture(scope="module")
def model():
    """Isolates documents by their positions, and takes labels as they come."""
    return tiny("llama")


def as_i_train(model, labels, loss=None):
    """A model called with labels that some collator made from the batch."""

    def forward(batch):
        inputs = {**batch.model_inputs(), "labels": labels(batch)[None]}
        output = model(**inputs)
        return (
            output if loss is None else SimpleNamespace(logits=None, last_hidden_state=output.logits, loss=loss(output))
        )

    return forward


def right(batch):
    return batch.labels


def of_all_tokens(batch):
    return batch.input_ids


def shifted_before(batch):
    return torch.cat([batch.labels[1:], torch.tensor([-100])])


def without_the_end(batch):
    labels = batch.labels.clone()
    labels[batch.boundaries.position_ids > 3] = -100
    return labels


def test_right_labels_are_silent_and_counted(model):
    report = hermetic.probe(as_i_train(model, right), lengths=LENGTHS)

    assert report.verdict == "sealed"
    assert report.targets.expected == report.targets.trained == (4, 6, 3)
    assert report.targets.across == ()
    assert hermetic.probe(model, lengths=LENGTHS, instruments="targets").targets == report.targets


def test_a_label_on_the_first_token_of_a_document_is_a_leak(model):
    report = hermetic.probe(as_i_train(model, of_all_tokens), lengths=LENGTHS)

    assert report.verdict == "leak"
    assert codes(report) == ["HM401"]
    assert report.findings[0].size == 2.0
    assert report.targets.across == (0, 1)
    assert report.targets.trained == (5, 7, 3)
    assert not report.influence.any()


def test_a_sealed_model_takes_the_label_off_the_first_token_by_itself():
    report = hermetic.probe(as_i_train(hermetic.seal(tiny("llama")), of_all_tokens), lengths=LENGTHS)

    assert report.verdict == "sealed"
    assert report.targets.trained == (4, 6, 3)


def test_a_supervised_token_without_loss_is_lost(model):
    report = hermetic.probe(as_i_train(model, without_the_end), lengths=LENGTHS, instruments="targets")

    assert report.verdict == "distortion"
    assert codes(report) == ["HM402"]
    assert report.findings[0].size == 1 + 3
    assert report.findings[0].where == "document 1"
    assert report.targets.trained == (3, 3, 3)


def test_labels_that_were_shifted_before_reach_beyond_the_seam_by_one_token(model):
    report = hermetic.probe(as_i_train(model, shifted_before), lengths=LENGTHS, instruments="targets")

    assert report.verdict == "leak"
    assert codes(report) == ["HM401", "HM403"]
    assert report.targets.across == (0, 1)
    assert report.findings[1].size == 2.0


def test_labels_that_nobody_shifts_train_each_token_to_predict_itself(model):
    def forward(batch):
        output = model(**{name: value for name, value in batch.model_inputs().items() if name != "labels"})
        return SimpleNamespace(logits=output.logits, loss=nn.functional.cross_entropy(output.logits[0], batch.labels))

    report = hermetic.probe(forward, lengths=LENGTHS, instruments="targets")
    assert codes(report) == ["HM403"]
    assert report.findings[0].size == 0.0


def fused(output):
    return output.loss * 1.0


@pytest.mark.parametrize(
    ("labels", "verdict"), [(right, "sealed"), (of_all_tokens, "leak"), (without_the_end, "sealed")]
)
def test_a_loss_without_logits_is_asked_at_the_last_tokens_and_what_is_lost_inside_is_not_seen(model, labels, verdict):
    forward = as_i_train(model, labels, fused)
    report = hermetic.probe(forward, lengths=LENGTHS, instruments="targets")

    assert report.verdict == verdict
    assert report.targets.trained is None
    assert report.targets.across == ((0, 1) if verdict == "leak" else ())


def test_documents_that_reach_each_other_are_not_seen_by_targets_and_are_by_swap():
    model = tiny("llama")

    def with_a_mask(batch):
        return model(**batch.model_inputs(), attention_mask=torch.ones_like(batch.input_ids)[None])

    assert hermetic.probe(with_a_mask, lengths=LENGTHS, instruments="targets").verdict == "sealed"
    assert hermetic.probe(with_a_mask, lengths=LENGTHS, instruments=("swap", "targets")).verdict == "leak"


def test_a_subject_without_a_loss_says_so(model):
    for name in ("targets", "weights"):
        with pytest.raises(ProbeError, match="returns no loss; expected a model whose forward takes labels"):
            hermetic.probe(calling(model, "document_ids"), instruments=name)
    unlabelled = [{"input_ids": [5, 6], "labels": [-100, -100]}, {"input_ids": [7, 8], "labels": [-100, -100]}]
    with pytest.raises(ProbeError, match="without a single label"):
        hermetic.probe(model, documents=unlabelled, instruments="targets")
    with pytest.raises(ProbeError, match="needs two documents with labels and got 0"):
        hermetic.probe(model, documents=unlabelled, instruments="weights")


def per_token(logits, batch):
    """``[T - 1]`` losses of the tokens that are predicted, 0 where none is."""
    return nn.functional.cross_entropy(logits[:-1], batch.labels[1:], reduction="none")


def summed(losses, _batch):
    return losses.sum()


def token_mean(losses, batch):
    return losses.sum() / batch.num_supervised_tokens


def document_mean(losses, batch):
    parts = torch.cat([losses.new_zeros(1), losses]).split(batch.boundaries.document_lengths)
    return torch.stack([part.sum() / max(1, len(part) - 1) for part in parts]).mean()


def row_mean(losses, batch):
    """The mean over rows of each row's mean: two rows where there are several documents."""
    parts = torch.cat([losses.new_zeros(1), losses]).split(batch.boundaries.document_lengths)
    rows = [parts] if len(parts) == 1 else [parts[:1], parts[1:]]
    return torch.stack([sum(p.sum() for p in row) / sum(len(p) - 1 for p in row) for row in rows]).mean()


def with_loss(reduce, attending=None):
    attending = attending or Attending()

    def forward(batch):
        logits = attending(batch)
        return SimpleNamespace(logits=logits, loss=reduce(per_token(logits, batch), batch))

    return forward


@pytest.mark.parametrize("reduce", [summed, token_mean, document_mean])
def test_a_sum_a_mean_over_tokens_and_a_mean_over_documents_do_not_depend_on_packing(reduce):
    report = hermetic.probe(with_loss(reduce), lengths=LENGTHS)

    assert report.verdict == "sealed"
    assert {"targets", "weights"} < set(report.instruments)
    assert dict(report.weights)["packed"] < 1e-5


def test_a_mean_over_rows_of_their_means_depends_on_packing_and_no_other_instrument_sees_it():
    report = hermetic.probe(with_loss(row_mean), lengths=(3, 9, 5, 20))

    assert report.verdict == "distortion"
    assert codes(report) == ["HM501"]
    assert report.findings[0].size == dict(report.weights)["packed"] > 1e-4
    blind = ("swap", "gradient", "solo", "length-change", "causality", "targets")
    assert hermetic.probe(with_loss(row_mean), lengths=(3, 9, 5, 20), instruments=blind).verdict == "sealed"


@pytest.mark.parametrize("honest", [True, False])
def test_micro_batches_that_are_told_the_count_of_the_step_add_up_to_it(honest):
    attending = Attending()

    def forward(batch, num_items_in_batch=None):
        logits = attending(batch)
        told = num_items_in_batch if honest and num_items_in_batch else batch.num_supervised_tokens
        return SimpleNamespace(logits=logits, loss=per_token(logits, batch).sum() / told)

    report = hermetic.probe(forward, lengths=LENGTHS)
    assert report.verdict == ("sealed" if honest else "distortion")
    assert codes(report) == ([] if honest else ["HM502"])
    assert dict(report.weights)["packed"] < 1e-5
    assert (dict(report.weights)["accumulated"] < 1e-5) is honest


def test_a_transformers_model_that_is_told_the_count_accumulates_rightly(model):
    report = hermetic.probe(model, lengths=LENGTHS, instruments="weights")

    assert report.verdict == "sealed"
    assert set(dict(report.weights)) == {"packed", "accumulated"}


@pytest.mark.parametrize("coefficient", [0.02, 0.0])
def test_a_router_s_loss_over_the_row_is_a_finding_of_its_own_and_no_leak(coefficient):
    model = hermetic.seal(tiny("mixtral", output_router_logits=True, router_aux_loss_coef=coefficient))
    report = hermetic.probe(model, instruments=("gradient", "weights"))

    assert report.verdict == ("distortion" if coefficient else "sealed")
    assert codes(report) == (["HM503"] if coefficient else [])
    assert "No document reaches another" in report.findings[0].way_out if coefficient else True


def test_a_wrong_backward_is_not_seen_by_weights_and_is_by_solo():
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, mixed, later):
            ctx.save_for_backward(later)
            return mixed.clone()

        @staticmethod
        def backward(ctx, upstream):
            (later,) = ctx.saved_tensors
            return torch.where(later, 0.5 * upstream, upstream), None

    model = Attending(lambda mixed, batch: Half.apply(mixed, (batch.boundaries.document_ids > 0)[:, None]))
    assert hermetic.probe(with_loss(token_mean, model), instruments="weights").verdict == "sealed"
    assert codes(hermetic.probe(with_loss(token_mean, model), instruments="solo")) == ["HM203"]


def test_a_loss_that_fails_or_is_not_finite_is_a_reason_not_to_run():
    class WithLoss(nn.Module):
        def __init__(self, loss):
            super().__init__()
            self.attending, self.loss = Attending(), loss

        def forward(self, input_ids, labels=None):
            logits = self.attending(packed((input_ids.shape[1],)))
            if labels is not None and self.loss is None:
                raise ValueError("no labels, please")
            return SimpleNamespace(logits=logits, loss=self.loss)

    with pytest.raises(ProbeError, match=r"failed when it was run with its loss \(ValueError: no labels, please\)"):
        hermetic.probe(WithLoss(None), instruments="weights")
    with pytest.raises(ProbeError, match="returned nan as its loss; expected a finite scalar"):
        hermetic.probe(WithLoss(torch.tensor(float("nan"))), instruments="weights")
