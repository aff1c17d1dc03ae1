"""transformers' Trainer trains on the same rows after a resume as if it had not stopped."""

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from feed_helpers import packed_folder, stream_of
from feed_rows import known
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from train_helpers import tiny_network
from transformers import TrainingArguments

from hermetic.data import PackedDataset, RowBatchSampler
from hermetic.data.feed import RowOrder
from hermetic.integrations.transformers import PackedCollator, SealedTrainer
from hermetic.seal import seal


class Recording(PackedCollator):
    """A collator that remembers which rows it was given."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __call__(self, rows):
        self.rows.append([known(row) for row in rows])
        return super().__call__(rows)


class RowTrainer(SealedTrainer):
    """As docs/feed.md shows it."""

    def get_train_dataloader(self):
        sampler = RowBatchSampler(
            self.train_dataset,
            rows_per_batch=self.args.per_device_train_batch_size,
            seed=self.args.seed,
            rank=None,
            num_ranks=self.args.world_size,
            ragged_end="short" if self.args.world_size == 1 else "drop",
        )
        loader = DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return packed_folder(tmp_path_factory.mktemp("packed"), [length % 8 + 1 for length in range(25)], capacity=16)


def trained(kind, data, out, *, steps, resume=None, accumulation=1):
    """Rows in the order of training, without those that were read and not trained on, and the weights."""
    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=None,
        report_to=[],
        seed=3,
        learning_rate=0.01,
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        logging_strategy="no",
        max_grad_norm=0.0,
    )
    collator = Recording()
    seen = []

    class Seeing(kind):
        def training_step(self, model, inputs, *args, **kwargs):
            seen.append(inputs["input_ids"].tolist())
            return super().training_step(model, inputs, *args, **kwargs)

    network = seal(tiny_network())
    trainer = Seeing(model=network, args=arguments, train_dataset=data, data_collator=collator, probe_first_batch=False)
    trainer.train(resume_from_checkpoint=resume)
    return seen, torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def rows_of(dataset, epochs):
    """The batches of epochs, each with a short end."""
    for epoch in range(epochs):
        order = RowOrder(len(dataset), 3).epoch(epoch).tolist()
        for start in range(0, len(order), 2):
            yield [[token for row in order[start : start + 2] for token in dataset[row]["input_ids"].tolist()]]


@pytest.fixture(scope="module")
def whole_run(folder, tmp_path_factory):
    """A folder of checkpoints, one a step, and what was seen and learned over two epochs and a bit."""
    dataset = PackedDataset(folder)
    out = tmp_path_factory.mktemp("whole")
    assert len(dataset) % 2 == 1, "the end is ragged"
    steps = len(dataset) + 2
    return out, *trained(RowTrainer, dataset, out, steps=steps)


def test_a_trainer_sees_the_rows_of_each_epoch_in_their_order(folder, whole_run):
    _, whole, _ = whole_run

    assert whole == list(rows_of(PackedDataset(folder), 3))[: len(whole)]


@pytest.mark.parametrize(("epochs", "further"), [(0, 2), (1, 0), (1, 1)])
def test_a_resumed_trainer_sees_the_rows_and_gets_the_weights_of_one_that_did_not_stop(
    folder, tmp_path, whole_run, epochs, further
):
    out, whole, weights = whole_run
    dataset = PackedDataset(folder)
    stop = epochs * -(-len(dataset) // 2) + further
    checkpoint = str(out / f"checkpoint-{stop}")
    resumed, again = trained(RowTrainer, dataset, tmp_path / "again", steps=len(whole), resume=checkpoint)

    assert resumed == whole[stop:]
    assert torch.equal(weights, again)


class ForgetfulSampler(RowBatchSampler):
    """Does not hear which epoch the Trainer is in."""

    def set_epoch(self, epoch):
        pass


class ForgetfulTrainer(SealedTrainer):
    def get_train_dataloader(self):
        sampler = ForgetfulSampler(self.train_dataset, rows_per_batch=2, seed=3, ragged_end="short")
        return self.accelerator.prepare(
            DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)
        )


def test_the_check_of_resuming_fails_for_a_sampler_that_forgets_its_epoch(folder, tmp_path):
    dataset = PackedDataset(folder)
    stop = -(-len(dataset) // 2) + 1
    whole, weights = trained(ForgetfulTrainer, dataset, tmp_path / "whole", steps=stop + 2)
    resumed, again = trained(
        ForgetfulTrainer,
        dataset,
        tmp_path / "again",
        steps=stop + 2,
        resume=str(tmp_path / "whole" / f"checkpoint-{stop}"),
    )

    assert len(resumed) == 2
    assert resumed != whole[stop:]
    assert not torch.equal(weights, again)


def test_a_trainer_on_a_stream_resumes_with_the_rest_of_the_stream(tmp_path):
    options = {"capacity": 16, "epochs": None}
    whole, weights = trained(SealedTrainer, stream_of(**options), tmp_path / "whole", steps=7, accumulation=2)
    resumed, again = trained(
        SealedTrainer,
        stream_of(**options),
        tmp_path / "again",
        steps=7,
        accumulation=2,
        resume=str(tmp_path / "whole" / "checkpoint-3"),
    )

    assert resumed == whole[6:]
    assert torch.equal(weights, again)


@given(st.integers(24, 80), st.integers(1, 3), st.sampled_from([1, 2, 3, 8]), st.sampled_from(["drop", "short"]))
def test_accelerate_deals_the_batches_of_all_ranks_as_the_sampler_would(rows, size, ranks, ragged_end):
    if ragged_end == "short" and 0 < rows % (size * ranks) < ranks:
        return
    options = {"rows_per_batch": size, "num_ranks": ranks, "ragged_end": ragged_end}
    for rank in range(ranks):
        shard = BatchSamplerShard(RowBatchSampler(rows, rank=None, **options), ranks, rank)
        mine = RowBatchSampler(rows, rank=rank, **options)
        assert len(shard) == len(mine)
        assert list(shard) == list(mine)
