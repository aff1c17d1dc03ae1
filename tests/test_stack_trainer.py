"""transformers' Trainer on packed rows: the loss of documents, each row once, evaluation that adds up, and resuming."""

import itertools
import math

import pytest
import torch
from stack_helpers import documents_of, losses_alone, network, reduced, rows_of, sealed, weights_of
from transformers import Trainer, TrainingArguments

from hermetic.errors import LossError, TrainError
from hermetic.integrations.transformers import (
    LeakGuard,
    PackedCollator,
    PackedLoss,
    PackedRows,
    PaddedCollator,
    SealedTrainer,
    SealModel,
    packed_token_loss,
)
from hermetic.seal import is_sealed

LENGTHS = [5, 9, 3, 12, 7, 4, 11, 2, 8, 6, 10, 3, 7]
SIZES = [3, 1, 4, 2, 3]
DOCUMENTS = documents_of(LENGTHS)
ROWS = rows_of(DOCUMENTS, SIZES)
REDUCTIONS = ("token", "document", "sqrt")


def arguments(folder, **changes):
    options = {
        "per_device_train_batch_size": 1,
        "learning_rate": 0.1,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "num_train_epochs": 1,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",
    }
    return TrainingArguments(output_dir=str(folder), **{**options, **changes})


def trainer_of(model, folder, *, rows=ROWS, kind=SealedTrainer, collator=None, options=None, **changes):
    extra = {"probe_first_batch": False} if issubclass(kind, SealedTrainer) else {}
    return kind(
        model=model,
        args=arguments(folder, **changes),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collator or PackedCollator(),
        **extra,
        **(options or {}),
    )


def losses_of(trainer):
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def step_alone(model, documents, reduction, learning_rate=0.1):
    """The weights after one step of SGD on the documents, each in a row of its own, by the definition of the loss."""
    exponent = {"token": 0.0, "document": 1.0, "sqrt": 0.5}[reduction]
    counts = [sum(label != -100 for label in document["labels"]) for document in documents]
    for document, count in zip(documents, counts, strict=True):
        ids, labels = (torch.tensor(document[name]) for name in ("input_ids", "labels"))
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
        total = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum")
        (total / count**exponent / sum(n ** (1 - exponent) for n in counts)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(learning_rate * parameter.grad)
    return weights_of(model)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_step_of_packed_micro_batches_is_the_step_of_its_documents_alone(reduction, tmp_path):
    expected = step_alone(network().double(), DOCUMENTS, reduction)
    model = sealed().double()
    before = weights_of(model)
    trainer = trainer_of(model, tmp_path, gradient_accumulation_steps=5, options={"loss_reduction": reduction})
    trainer.train()

    assert trainer.state.global_step == 1
    assert float((before - expected).abs().max()) > 1e-2
    assert float((weights_of(model) - expected).abs().max()) < 1e-12  # in float64: rounding of sums in another order


def test_the_three_losses_are_three_and_the_trainers_own_mean_of_means_is_none_of_them(tmp_path):
    trainer = trainer_of(sealed(), tmp_path)
    losses = losses_alone(network(), DOCUMENTS)
    expected = {reduced(losses, reduction) for reduction in REDUCTIONS}
    plain = trainer_of(sealed(), tmp_path, kind=Trainer, per_device_eval_batch_size=1).evaluate()["eval_loss"]

    assert min(abs(a - b) for a, b in itertools.combinations([*expected, plain], 2)) > 1e-3
    assert trainer.evaluate()["eval_loss"] == pytest.approx(reduced(losses, "token"), rel=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_evaluation_is_the_loss_of_all_documents_packed_or_not_in_any_batches(reduction, batch_size, tmp_path):
    expected = reduced(losses_alone(network().double(), DOCUMENTS), reduction)
    options = {"options": {"loss_reduction": reduction}, "per_device_eval_batch_size": batch_size}
    packed = trainer_of(sealed().double(), tmp_path, **options)
    padded = trainer_of(network().double(), tmp_path, collator=PaddedCollator(), **options)

    for trainer in (packed, padded):
        assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-12)


class Means(torch.nn.Module):
    """Has, for the k-th row, the same loss at every token: the k-th of ``MEANS``."""

    MEANS = (2.0, 5.0)

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, labels=None, **_):  # noqa: ARG002 - the Trainer looks for the name
        loss = torch.tensor(self.MEANS, dtype=torch.float64)[input_ids]
        scores = torch.stack([torch.zeros_like(loss), loss.expm1().log()], dim=-1)  # -log p(0) is the loss
        return type("Output", (dict,), {"logits": scores})(logits=scores)


def test_batches_of_two_and_four_tokens_with_means_two_and_five_have_the_loss_four(tmp_path):
    rows = [
        [{"input_ids": [which] * (1 + count), "labels": [-100] + [0] * count}] for which, count in enumerate((2, 4))
    ]
    arguments_of_both = {"rows": rows, "per_device_eval_batch_size": 1}
    plain = trainer_of(
        Means(), tmp_path, kind=Trainer, options={"compute_loss_func": packed_token_loss}, **arguments_of_both
    )

    assert trainer_of(Means(), tmp_path, **arguments_of_both).evaluate()["eval_loss"] == pytest.approx(4.0, rel=1e-12)
    assert plain.evaluate()["eval_loss"] == pytest.approx(3.5, rel=1e-6)


def test_an_evaluation_without_a_target_has_no_loss(tmp_path):
    rows = [[{"input_ids": [1, 2], "labels": [-100, -100]}]]
    with (
        pytest.warns(UserWarning, match="0 targets"),
        pytest.raises(TrainError, match="no token of the evaluation set is supervised"),
    ):
        trainer_of(sealed(), tmp_path, rows=rows).evaluate()


@pytest.mark.parametrize(("batch", "accumulation", "epochs"), [(1, 1, 2), (2, 1, 1), (1, 2, 3), (2, 2, 2), (4, 3, 1)])
def test_steps_epochs_and_the_learning_rate_are_counted_in_rows(batch, accumulation, epochs, tmp_path):
    trainer = trainer_of(
        sealed(),
        tmp_path,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=epochs,
        lr_scheduler_type="linear",
        train_sampling_strategy="random",
    )
    seen = []
    inner = trainer.training_step
    trainer.training_step = lambda model, inputs, *rest: seen.append(inputs) or inner(model, inputs, *rest)
    trainer.train()
    steps = epochs * math.ceil(len(ROWS) / (batch * accumulation))
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]

    assert trainer.state.global_step == steps
    assert trainer.state.epoch == epochs
    assert rates == pytest.approx([0.1 * (steps - step) / steps for step in range(steps)])
    tokens = sorted(token for inputs in seen for token in inputs["input_ids"][0].tolist())
    assert tokens == sorted(token for document in DOCUMENTS for token in document["input_ids"] * epochs)


@pytest.mark.parametrize("stop", [2, 4])
def test_a_resumed_run_takes_the_steps_of_one_that_did_not_stop(stop, tmp_path):
    options = {
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "train_sampling_strategy": "random",
        "save_strategy": "steps",
        "save_steps": 1,
        "optim": "adamw_torch",
    }
    whole = trainer_of(sealed(), tmp_path, **options)
    whole.train()
    resumed = trainer_of(sealed(), tmp_path / "again", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stop}"))

    assert whole.state.global_step == resumed.state.global_step == 6
    assert torch.equal(weights_of(whole.model), weights_of(resumed.model))


def test_a_loss_by_documents_wants_a_trainer_that_tells_it_where_they_are(tmp_path):
    plain = trainer_of(sealed(), tmp_path, kind=Trainer, options={"compute_loss_func": PackedLoss("document")})
    with pytest.raises(TrainError, match="does not know where documents start"):
        plain.train()
    with pytest.raises(LossError, match="reduction is 'mean'"):
        PackedLoss("mean")


def test_the_mixin_leaves_the_loss_to_a_trainer_that_has_its_own(tmp_path):
    trainer = trainer_of(sealed(), tmp_path, kind=Mixed, gradient_accumulation_steps=5)
    expected = reduced(losses_alone(network(), DOCUMENTS), "token")

    assert trainer.compute_loss_func is None
    assert losses_of(trainer)[0] == pytest.approx(expected, rel=1e-5)


class WithoutArguments(torch.nn.Module):
    """A model that is not told what a step weighs."""

    accepts_loss_kwargs = False

    def __init__(self):
        super().__init__()
        self.model = sealed()

    def forward(self, **inputs):
        return self.model(**inputs)


class Mixed(PackedRows, Trainer):
    """Leaves the loss to the model."""


def test_a_loss_of_the_model_that_is_not_told_what_a_step_weighs_is_refused_where_a_step_has_several_parts(
    tmp_path, monkeypatch
):
    options = {"kind": Mixed, "gradient_accumulation_steps": 5, "save_strategy": "no"}
    expected = reduced(losses_alone(network(), DOCUMENTS), "token")
    message = (
        r"the loss is left to WithoutArguments, which takes no num_items_in_batch, and a step has 5 micro-batches: .*"
        r"expected loss_reduction='token'"
    )
    with pytest.raises(TrainError, match=message):
        trainer_of(WithoutArguments(), tmp_path, **options).train()
    weighed = trainer_of(WithoutArguments(), tmp_path, options={"loss_reduction": "token"}, **options)
    assert losses_of(weighed)[0] == pytest.approx(expected, rel=1e-5)

    one = trainer_of(WithoutArguments(), tmp_path, kind=Mixed, per_device_train_batch_size=5)
    assert losses_of(one)[0] == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(Mixed, "num_data_ranks", 2)
    with pytest.raises(TrainError, match="a step has 2 micro-batches"):
        one.get_train_dataloader()


def test_a_trainer_that_says_that_its_own_loss_divides_by_the_whole_step_is_believed(tmp_path):
    trainer = trainer_of(WithoutArguments(), tmp_path, kind=Mixed, gradient_accumulation_steps=5)
    trainer.loss_is_scaled_for_ga = True
    assert len(trainer.get_train_dataloader()) == len(ROWS)
    trainer.loss_is_scaled_for_ga = False
    with pytest.raises(TrainError, match="which takes no num_items_in_batch"):
        trainer.get_train_dataloader()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy is 'group_by_length', expected one"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last is True, which leaves rows out"),
    ],
)
def test_arguments_that_would_lose_or_reorder_rows_are_refused(changes, message, tmp_path):
    with pytest.raises(TrainError, match=message):
        trainer_of(sealed(), tmp_path, **changes)


def test_ranks_that_would_each_divide_by_their_own_count_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(SealedTrainer, "num_data_ranks", 2)
    trainer_of(sealed(), tmp_path)
    with pytest.raises(TrainError, match="average_tokens_across_devices is False on 2 ranks"):
        trainer_of(sealed(), tmp_path, average_tokens_across_devices=False)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_label_smoothing_that_is_asked_for_is_in_the_loss_of_training_and_evaluation(reduction, tmp_path):
    options = {"options": {"loss_reduction": reduction}, "gradient_accumulation_steps": 5}
    smoothed = trainer_of(sealed(), tmp_path, label_smoothing_factor=0.3, **options)
    expected = reduced(losses_alone(network(), DOCUMENTS, label_smoothing=0.3), reduction)

    assert abs(expected - reduced(losses_alone(network(), DOCUMENTS), reduction)) > 1e-2
    assert smoothed.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
    assert losses_of(smoothed)[0] == pytest.approx(expected, rel=1e-5)


class Endless(torch.utils.data.IterableDataset):
    """The rows without a length; a pass of five does not fill three steps of two."""

    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_data_set_without_a_length_takes_the_steps_of_one_with_it_also_at_the_end_of_a_pass(reduction, tmp_path):
    shape = {"gradient_accumulation_steps": 2, "max_steps": 6, "options": {"loss_reduction": reduction}}
    sized, endless = (trainer_of(sealed().double(), tmp_path, rows=rows, **shape) for rows in (ROWS, Endless()))
    assert losses_of(endless) == losses_of(sized)
    assert torch.equal(weights_of(endless.model), weights_of(sized.model))
    assert endless.evaluate()["eval_loss"] == pytest.approx(sized.evaluate()["eval_loss"], rel=1e-12)


def test_a_data_set_without_a_length_is_not_dealt_out_to_ranks(tmp_path, monkeypatch):
    trainer = trainer_of(sealed(), tmp_path, rows=Endless(), max_steps=1)
    monkeypatch.setattr(SealedTrainer, "num_data_ranks", 2)
    for loader_of in (trainer.get_train_dataloader, trainer.get_eval_dataloader):
        with pytest.raises(TrainError, match="the data set is a Endless, which has no length"):
            loader_of()


def test_without_rows_there_is_nothing_to_train_or_evaluate_on(tmp_path):
    trainer = trainer_of(sealed(), tmp_path)
    trainer.train_dataset = trainer.eval_dataset = None
    with pytest.raises(TrainError, match="there is no train_dataset"):
        trainer.get_train_dataloader()
    with pytest.raises(TrainError, match="there is no eval_dataset"):
        trainer.get_eval_dataloader()


def test_a_model_that_a_program_makes_itself_is_sealed_by_a_callback(tmp_path):
    model, guarded = network(), LeakGuard()
    options = {"callbacks": [SealModel(), guarded], "compute_loss_func": packed_token_loss}
    trainer_of(model, tmp_path, kind=Trainer, options=options, max_steps=1).train()

    assert is_sealed(model)
    assert [report.verdict for report in guarded.reports] == ["sealed"]
