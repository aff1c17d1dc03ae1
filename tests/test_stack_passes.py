"""transformers' Trainer over several passes of a stream: each in its own order, and resumed in any of them."""

import pytest
import torch
from feed_helpers import documents
from stack_helpers import documents_of, rows_of, weights_of
from torch.utils.data import IterableDataset
from train_helpers import tiny_network
from transformers import TrainingArguments

from hermetic.data import DocumentList, PackedStream
from hermetic.data.feed.stream import StreamPosition
from hermetic.errors import FeedError, TrainError
from hermetic.integrations.transformers import PackedCollator, SealedTrainer
from hermetic.integrations.transformers.passes import Passes
from hermetic.seal import seal

LENGTHS = [3, 9, 1, 7, 4, 12, 6, 2, 2, 5, 8, 1, 3, 3, 7, 6, 4, 16]
ROWS = rows_of(documents_of([5, 9, 3, 12, 7, 4, 11]), [3, 1, 2, 1])


def stream(**changes):
    """Seven batches a pass, which do not fill four steps of two."""
    options = {"capacity": 16, "rows_per_batch": 1, "ragged_end": "short", "seed": 5, "shuffle_rows": 4}
    source = DocumentList([{"input_ids": [1 + t % 60 for t in one["input_ids"]]} for one in documents(LENGTHS)])
    return PackedStream(source, **{**options, **changes})


def batches_of(data):
    """The tokens of each batch of a pass."""
    return [[token for row in batch for token in row["input_ids"].tolist()] for batch in data]


class Seeing(SealedTrainer):
    """Remembers what it trains on; a micro-batch without a target is ``None``."""

    def training_step(self, model, inputs, *args, **kwargs):
        supervised = bool((inputs["labels"] != -100).any())
        self.seen.append(inputs["input_ids"][0].tolist() if supervised else None)
        return super().training_step(model, inputs, *args, **kwargs)


def trainer_of(data, folder, *, kind=Seeing, **changes):
    """Of a model with dropout, so that weights tell random states apart, too."""
    torch.manual_seed(3)
    options = {
        "per_device_train_batch_size": 1,
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    trainer = kind(
        model=seal(tiny_network("gpt2", resid_pdrop=0.3)),
        args=TrainingArguments(output_dir=str(folder), **{**options, **changes}),
        train_dataset=data,
        eval_dataset=data,
        data_collator=PackedCollator(),
        probe_first_batch=False,
    )
    trainer.seen = []
    return trainer


def trained(data, folder, *, steps, resume=None, accumulation=2, **changes):
    """What was seen, and the weights."""
    trainer = trainer_of(data, folder, max_steps=steps, gradient_accumulation_steps=accumulation, **changes)
    trainer.train(resume_from_checkpoint=resume)
    return trainer.seen, weights_of(trainer.model)


def of_passes(data, count, accumulation=2):
    """What the Trainer is to see: pass after pass, each filled up to whole steps."""
    found = []
    for number in range(count):
        found += batches_of(data.pass_after(number))
        found += [None] * (-len(found) % accumulation)
    return found


@pytest.mark.parametrize("epochs", [1, 2])
def test_pass_n_begins_with_the_epoch_that_follows_those_before_it_and_leaves_the_stream_as_it_was(epochs):
    data = stream(epochs=epochs)
    data.set_epoch(3)
    for number in range(3):
        other = stream(epochs=epochs)
        other.set_epoch(3 + number * epochs)
        assert batches_of(data.pass_after(number)) == batches_of(other)
    assert batches_of(data) == batches_of(data.pass_after(0)) != batches_of(data.pass_after(1))
    assert data.last_ledger == stream_ledger(epochs)


def stream_ledger(epochs):
    data = stream(epochs=epochs)
    batches_of(data)
    return data.last_ledger


def test_a_stream_without_end_has_no_second_pass():
    data = stream(epochs=None)
    assert data.pass_after(0).settings.epochs is None
    with pytest.raises(FeedError, match="pass 1 after the first was asked of a stream with epochs=None"):
        data.pass_after(1)
    with pytest.raises(FeedError, match="passes is -1"):
        data.pass_after(-1)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_each_pass_of_a_stream_has_its_own_order_and_a_resume_in_any_of_them_is_exact(workers, tmp_path):
    data = stream()
    expected = of_passes(data, 3)
    per_pass = len(expected) // 6
    whole, weights = trained(data, tmp_path, steps=3 * per_pass, dataloader_num_workers=workers)

    assert len(batches_of(data)) % 2, "the end of a pass is ragged"
    assert whole == expected
    assert len({str(whole[2 * per_pass * number :][: 2 * per_pass]) for number in range(3)}) == 3
    assert batches_of(data) == expected[: len(batches_of(data))], "the stream is left where it stood"
    for stop in (per_pass - 1, 2 * per_pass, 2 * per_pass + 1):
        resumed, again = trained(
            stream(),
            tmp_path / "again",
            steps=3 * per_pass,
            resume=str(tmp_path / f"checkpoint-{stop}"),
            dataloader_num_workers=workers,
        )
        assert resumed == expected[2 * stop :]
        assert torch.equal(weights, again), stop


def test_training_starts_at_the_position_of_the_stream_and_goes_on_with_the_pass_after_it(tmp_path):
    first = iter(stream())
    next(first), next(first)
    data = stream()
    data.start_at(StreamPosition(maker=first.state_dict()["maker"]))
    seen, _ = trained(data, tmp_path, steps=8, accumulation=1)

    rest = batches_of(stream())[2:]
    assert seen == [*rest, *batches_of(stream().pass_after(1))][:8]
    assert len(rest) < 8


class Told(IterableDataset):
    """Rows without a length, in the order of the epoch that it is told."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(ROWS[self.epoch :] + ROWS[: self.epoch])


def test_another_data_set_without_a_length_is_told_the_number_of_each_pass_also_after_a_resume(tmp_path):
    per_pass = -(-len(ROWS) // 2)
    whole, weights = trained(Told(), tmp_path, steps=3 * per_pass)
    firsts = [[token for document in row for token in document["input_ids"]] for row in ROWS[:3]]
    data = Told()
    data.epoch = 9
    resumed, again = trained(data, tmp_path / "again", steps=3 * per_pass, resume=str(tmp_path / "checkpoint-4"))

    assert [whole[2 * per_pass * number] for number in range(3)] == firsts
    assert resumed == whole[8:]
    assert torch.equal(weights, again)


def test_a_run_that_does_not_skip_begins_with_the_first_pass(tmp_path):
    whole, _ = trained(stream(), tmp_path, steps=5)
    options = {"resume": str(tmp_path / "checkpoint-4"), "ignore_data_skip": True}
    assert trained(stream(), tmp_path / "again", steps=5, **options)[0] == whole[:2]


def test_a_pass_without_a_batch_is_refused_and_does_not_go_on_for_ever(tmp_path):
    with pytest.raises(TrainError, match="pass 0 of the data set holds no batch"):
        trained(stream(rows_per_batch=99, ragged_end="drop"), tmp_path, steps=1)
    with pytest.raises(TrainError, match="pass 1 of the data set holds no batch"):
        list(Passes(lambda number: [{"labels": torch.zeros(1)}] * (1 - number), per_step=1, behind=lambda: 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"is that of rank 0 of 1, and this process is rank 0 of 2; expected PackedStream\(rank=0, num_ranks=2\)"),
        ({"num_ranks": 2, "rank": 1}, "is that of rank 1 of 2, and this process is rank 0 of 2"),
        ({"num_ranks": 2}, "ragged_end='short', by which some of 2 ranks get one batch less"),
    ],
)
def test_a_stream_of_other_ranks_or_of_unequal_ones_is_refused(changes, message, tmp_path, monkeypatch):
    trainer = trainer_of(stream(**changes), tmp_path, max_steps=1)
    monkeypatch.setattr(SealedTrainer, "num_data_ranks", 2)
    for loader in (trainer.get_train_dataloader, trainer.get_eval_dataloader):
        with pytest.raises(TrainError, match=message):
            loader()
    for ok in ({"ragged_end": "drop"}, {"epochs": None}):
        trainer.train_dataset = stream(num_ranks=2, **ok)
        assert next(iter(trainer.get_train_dataloader()))["labels"].ndim == 2


class LoaderOfItsOwn(Seeing):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None, collate_fn=self.data_collator)


def test_the_last_step_of_a_loader_of_ones_own_is_filled_up_too(tmp_path):
    trainer = trainer_of(stream(), tmp_path, kind=LoaderOfItsOwn, max_steps=4, gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.seen == of_passes(stream(), 1)
