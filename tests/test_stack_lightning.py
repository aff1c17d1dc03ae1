"""Lightning's own Trainer on packed rows: the loss of documents, each row once, evaluation that adds up, resuming."""

import itertools

import pytest
import torch
from stack_helpers import documents_of, losses_alone, network, reduced, rows_of, sealed, weights_of

from hermetic.errors import TrainError

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is an optional extra")
from hermetic.integrations.lightning import (  # noqa: E402 - Lightning comes first, for it may be missing
    LeakGuard,
    PackedDataModule,
    packed_batch_loss,
    packed_step_loss,
)

# Lightning calls what torch deprecates, and gives advice
pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]

DOCUMENTS = documents_of([5, 9, 3, 12, 7, 4, 11, 2, 8, 6, 10, 3, 7])
ROWS = rows_of(DOCUMENTS, [3, 1, 4, 2, 3])
REDUCTIONS = ("token", "document", "sqrt")


class Tuner(lightning.LightningModule):
    """A language model that is trained as the documentation shows it."""

    def __init__(self, model, reduction="token"):
        super().__init__()
        self.model, self.reduction, self.seen, self.losses = model, reduction, [], []

    def training_step(self, batch, _index):
        self.seen.append((self.current_epoch, batch["input_ids"][0].tolist()))
        loss = packed_step_loss(self.model, batch, reduction=self.reduction)
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, _index):
        loss, weight = packed_batch_loss(self.model, batch, reduction=self.reduction)
        self.log("val_loss", loss, batch_size=weight, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_of(folder, **changes):
    options = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(default_root_dir=folder, **{**options, **changes})


def fitted(
    folder, *, module=None, seed=None, reduction="token", evaluation=None, rows_per_batch=1, resume=None, **changes
):
    module = module or Tuner(sealed(), reduction)
    trainer = trainer_of(folder, **changes)
    data = PackedDataModule(ROWS, rows_per_batch=rows_per_batch, evaluation=evaluation, seed=seed, reduction=reduction)
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    return trainer, module


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_step_of_accumulated_rows_has_the_loss_of_its_documents_alone(reduction, tmp_path):
    trainer, module = fitted(tmp_path, reduction=reduction, accumulate_grad_batches=5)
    expected = reduced(losses_alone(network(), DOCUMENTS), reduction)

    assert trainer.global_step == 1
    assert sum(module.losses) / len(module.losses) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rows_per_batch", [1, 2, 5])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_evaluation_is_the_loss_of_all_documents_in_any_batches(reduction, rows_per_batch, tmp_path):
    module = Tuner(sealed().double(), reduction)
    data = PackedDataModule(ROWS, rows_per_batch=rows_per_batch, evaluation=ROWS)
    found = trainer_of(tmp_path).validate(module, datamodule=data, verbose=False)[0]["val_loss"]
    expected = reduced(losses_alone(network().double(), DOCUMENTS), reduction)

    assert found == pytest.approx(expected, rel=1e-6)  # Lightning adds up in float32


def test_every_epoch_has_each_row_once_in_an_order_of_its_own(tmp_path):
    trainer, module = fitted(tmp_path, seed=3, max_epochs=2, accumulate_grad_batches=2, rows_per_batch=2)
    epochs = [[ids for epoch, ids in module.seen if epoch == wanted] for wanted in (0, 1)]
    tokens = sorted(token for document in DOCUMENTS for token in document["input_ids"])

    assert trainer.global_step == 2 * 2  # of 5 rows: 2 x 2 + 1
    assert [sorted(itertools.chain(*ids)) for ids in epochs] == [tokens, tokens]
    assert epochs[0] != epochs[1]


# the run that resumes saves nothing, which Lightning warns of
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning")
def test_a_run_resumed_in_the_middle_of_an_epoch_takes_the_steps_of_one_that_did_not_stop(tmp_path):
    options = {"seed": 3, "accumulate_grad_batches": 2, "max_epochs": 2}
    saving = lightning.callbacks.ModelCheckpoint(
        tmp_path / "saved", filename="{step}", every_n_train_steps=4, save_top_k=-1
    )
    _, whole = fitted(tmp_path, **options, enable_checkpointing=True, callbacks=[saving])
    resumed, rest = fitted(
        tmp_path, **options, resume=tmp_path / "saved" / "step=4.ckpt"
    )  # the first step of the second epoch

    assert rest.seen == whole.seen[7:]
    assert resumed.global_step == 6
    assert torch.equal(weights_of(rest.model), weights_of(whole.model))


@pytest.mark.parametrize("limit", [3, 0.6])
def test_where_lightning_stops_inside_of_a_step_that_step_weighs_what_was_in_it(limit, tmp_path):
    _, module = fitted(tmp_path, accumulate_grad_batches=2, limit_train_batches=limit)
    _, whole = fitted(tmp_path, module=Tuner(sealed()), accumulate_grad_batches=2, max_steps=1)
    last = reduced(losses_alone(whole.model, ROWS[2]), "token")

    assert len(module.losses) == 3
    assert module.losses[2] / 2 == pytest.approx(last, rel=1e-5)  # Lightning divides by two


def test_a_number_of_micro_batches_that_changes_while_training_is_refused(tmp_path):
    scheduler = lightning.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})
    with pytest.raises(TrainError, match="the Trainer has a GradientAccumulationScheduler"):
        fitted(tmp_path, callbacks=[scheduler], max_epochs=2)


def test_lightnings_trainer_is_probed_as_it_is(tmp_path):
    guarded = LeakGuard()
    fitted(tmp_path, callbacks=[guarded])

    assert [report.verdict for report in guarded.reports] == ["sealed"]


def test_lightning_finds_no_loader_that_it_would_deal_out_to_ranks_once_more(tmp_path):
    data = PackedDataModule(ROWS, rows_per_batch=1, evaluation=ROWS)
    data.trainer = trainer_of(tmp_path)
    loaders = [data.train_dataloader(), data.val_dataloader()]

    assert not any(isinstance(loader, torch.utils.data.DataLoader) for loader in loaders)
    assert [len(loader) for loader in loaders] == [len(ROWS), len(ROWS)]
