"""How many steps are taken, over which rows, and what the collators and the loss make of them."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from train_helpers import packed_folder, tiny_network

from hermetic.batch import collate
from hermetic.data import open_packed
from hermetic.integrations.transformers import (
    PackedCollator,
    PaddedCollator,
    RowDataset,
    StepMessages,
    packed_token_loss,
    without_progress_bars,
)
from hermetic.loss import ZeroSupervisedTokensWarning
from hermetic.seal import seal
from hermetic.train import TrainSettings, fit, make_trainer, padded_utilization

ROWS = (
    [{"input_ids": [10, 11, 12], "labels": [-100, 11, 12]}, {"input_ids": [20, 21, 22]}],
    [{"input_ids": [30, 31]}, {"input_ids": [40, 41]}, {"input_ids": [50, 51], "labels": [-100, -100]}],
)


def test_ten_documents_of_two_tokens_are_two_rows_of_ten_and_two_steps(tmp_path):
    packed = packed_folder(tmp_path, [2] * 10, capacity=10, supervised=1.0)
    network = seal(tiny_network())
    trainer = make_trainer(network, packed, TrainSettings())
    loader = trainer.get_train_dataloader()
    batches = list(loader)
    assert len(packed) == len(RowDataset(packed)) == len(loader) == len(batches) == 2
    assert [batch["cu_seq_lens_q"].tolist() for batch in batches] == [[0, 2, 4, 6, 8, 10]] * 2
    assert len(fit(network, packed, TrainSettings()).losses) == 2


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (TrainSettings(), 5),
        (TrainSettings(epochs=2.0), 10),
        (TrainSettings(rows_per_batch=2), 3),
        (TrainSettings(accumulation_steps=2, epochs=2.0), 6),
        (TrainSettings(rows_per_batch=2, accumulation_steps=3), 1),
        (TrainSettings(max_steps=7), 7),
    ],
)
def test_steps_are_counted_in_rows_and_not_in_documents(tmp_path, settings, steps):
    packed = packed_folder(tmp_path, [4] * 10, capacity=8)
    assert len(packed) == 5
    assert len(fit(tiny_network(), packed, settings, pack=False).losses) == steps


def test_every_row_is_trained_once_in_an_epoch(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 12, 3, 7, 8, 11, 2, 6, 4], capacity=16)
    trainer = make_trainer(tiny_network(), packed, TrainSettings(rows_per_batch=2))
    seen = sorted(tuple(ids.tolist()) for batch in trainer.get_train_dataloader() for ids in documents_in(batch))
    assert seen == sorted(tuple(document["input_ids"].tolist()) for row in packed.rows() for document in row)
    assert len(seen) == 10


def documents_in(inputs):
    edges = inputs["cu_seq_lens_q"]
    return inputs["input_ids"][0].split((edges[1:] - edges[:-1]).tolist())


def test_several_rows_of_a_batch_are_one_stream_of_documents():
    inputs = PackedCollator()(ROWS)
    assert inputs["cu_seq_lens_q"].tolist() == [0, 3, 6, 8, 10, 12]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 0, 1]]
    assert inputs["input_ids"].tolist() == [[10, 11, 12, 20, 21, 22, 30, 31, 40, 41, 50, 51]]
    assert inputs["labels"].tolist() == [[-100, 11, 12, -100, 21, 22, -100, 31, -100, 41, -100, -100]]
    assert inputs["max_length_q"] == 3
    assert "attention_mask" not in inputs


def test_a_packed_batch_can_be_padded_to_a_multiple_with_a_tail_of_its_own():
    inputs = PackedCollator(pad_to_multiple=8, pad_token_id=7)(ROWS)
    assert inputs["cu_seq_lens_q"].tolist() == [0, 3, 6, 8, 10, 12, 16]
    assert inputs["input_ids"][0, 12:].tolist() == [7] * 4
    assert inputs["labels"][0, 12:].tolist() == [-100] * 4


def test_padded_rows_hold_one_document_each_with_padding_on_the_right():
    inputs = PaddedCollator(pad_token_id=7)(ROWS)
    assert sorted(inputs) == ["attention_mask", "input_ids", "labels"]
    assert inputs["input_ids"].tolist() == [[10, 11, 12], [20, 21, 22], [30, 31, 7], [40, 41, 7], [50, 51, 7]]
    assert inputs["labels"].tolist() == [
        [-100, 11, 12],
        [-100, 21, 22],
        [-100, 31, -100],
        [-100, 41, -100],
        [-100, -100, -100],
    ]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]]


def test_two_accumulated_micro_batches_lose_what_their_tokens_lose_together():
    # per-token losses A [1, 3] and B [5, 5, 5, 5]: the step is 24 / 6 = 4, and not the mean 3.5 of 2 and 5
    a, b = outputs_with_losses([1.0, 3.0]), outputs_with_losses([5.0, 5.0, 5.0, 5.0])
    count = torch.tensor(6)
    assert float(packed_token_loss(*a, num_items_in_batch=count)) == pytest.approx(4 / 6)
    assert float(packed_token_loss(*b, num_items_in_batch=count)) == pytest.approx(20 / 6)
    assert float(packed_token_loss(*a)) == pytest.approx(2.0)


def outputs_with_losses(losses):
    """Logits over two tokens in which predicting token 0 costs each of ``losses``, and labels that ask for it."""
    odds = torch.tensor([*losses, 0.0]).exp() - 1  # of token 1 against token 0, so that -log p(0) is the loss
    logits = torch.stack([torch.zeros(len(odds)), odds.clamp(min=1e-9).log()], dim=1)[None]
    return SimpleNamespace(logits=logits), torch.tensor([[-100, *[0] * len(losses)]])


def test_a_step_without_supervised_tokens_loses_nothing():
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    labels = torch.full((1, 3), -100)
    with pytest.warns(ZeroSupervisedTokensWarning, match="0 targets"):
        loss = packed_token_loss(SimpleNamespace(logits=logits), labels, num_items_in_batch=torch.tensor(0))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_the_trainer_counts_the_supervised_tokens_that_the_collators_leave(tmp_path):
    packed = packed_folder(tmp_path, [5, 9, 12, 3, 7, 8], capacity=16)
    trainer = make_trainer(tiny_network(), packed, TrainSettings())
    batches = list(trainer.get_train_dataloader())
    counted = trainer._get_num_items_in_batch(batches, torch.device("cpu"))
    assert int(counted) == open_packed(packed.path).manifest.supervised_tokens > 0


def test_padded_utilization_counts_the_slots_of_each_padded_batch(tmp_path):
    packed = packed_folder(tmp_path, [6, 2, 5, 3], capacity=8)
    rows = [[len(document["input_ids"]) for document in row] for row in packed.rows()]
    assert sorted(map(sorted, rows)) == [[2, 6], [3, 5]]
    assert padded_utilization(packed, 1) == 16 / (2 * 6 + 2 * 5)
    assert padded_utilization(packed, 2) == 16 / (4 * 6)


def test_each_step_is_told_with_its_loss_and_what_is_left():
    said = []
    messages, state = StepMessages(said.append), SimpleNamespace(max_steps=1200, global_step=1000)
    messages.on_train_begin(None, state, None)
    messages.on_log(None, state, None, logs={"loss": 1.23456})
    messages.on_log(None, state, None, logs={"train_runtime": 3.0})
    assert said == ["step 1 of 1,200", "step 1,000 of 1,200, loss 1.2346, about 0:00:00 left"]


def test_a_row_of_the_dataset_is_what_collate_takes(tmp_path):
    packed = packed_folder(tmp_path, [5, 3, 8], capacity=8)
    lengths = sorted(collate(row).boundaries.document_lengths for row in RowDataset(packed))
    assert lengths in ([(3, 5), (8,)], [(5, 3), (8,)])


def test_progress_bars_of_transformers_come_back_unless_they_were_off_before():
    logging = transformers.utils.logging
    was_on = logging.is_progress_bar_enabled()
    for switch, after in ((logging.enable_progress_bar, True), (logging.disable_progress_bar, False)):
        switch()
        with without_progress_bars():
            assert not logging.is_progress_bar_enabled()
        assert logging.is_progress_bar_enabled() is after
    if was_on:
        logging.enable_progress_bar()
