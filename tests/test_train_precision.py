"""Precision of training: float32 weights whatever the checkpoint holds, bfloat16 arithmetic on request."""

import pytest
import torch
import transformers
from train_helpers import model_folder, save_quietly, tiny_network, token_file

from hermetic.train import TrainSettings, train

LENGTHS = [5, 9, 12, 3, 7, 8, 11, 2, 6, 4]
SMALL_STEPS = TrainSettings(learning_rate=2e-5)


@pytest.fixture
def data(tmp_path):
    return token_file(tmp_path / "documents.jsonl", LENGTHS)


@pytest.fixture
def half_model(tmp_path):
    folder = model_folder(tmp_path / "half")
    save_quietly(tiny_network().to(torch.bfloat16), folder)
    return folder


def trained(out):
    return transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")


def test_a_bfloat16_checkpoint_is_trained_in_float32_where_small_steps_count(tmp_path, data, half_model):
    train(model=half_model, data=data, out=tmp_path / "tuned", capacity=16, settings=SMALL_STEPS)
    before, after = trained(half_model), trained(tmp_path / "tuned")

    with torch.no_grad():
        pairs = zip(before.parameters(), after.parameters(), strict=True)
        moved = [float((new - old.float()).abs().max()) for old, new in pairs]

    assert after.dtype == torch.float32
    assert all(0 < step < 1e-3 for step in moved)
    assert float(torch.finfo(torch.bfloat16).eps) * 0.2 > max(moved), "in bfloat16 these steps would be rounded away"


def test_mixed_precision_trains_sealed_and_nearly_as_float32_does(tmp_path, data, half_model):
    settings = {"learning_rate": 1e-3, "epochs": 2.0}
    exact, mixed = (
        train(
            model=half_model,
            data=data,
            out=tmp_path / str(bf16),
            capacity=16,
            settings=TrainSettings(bf16=bf16, **settings),
        )
        for bf16 in (False, True)
    )

    assert mixed.verdict == exact.verdict == "sealed"
    assert trained(tmp_path / "True").dtype == torch.float32
    assert mixed.losses != exact.losses
    assert mixed.losses == pytest.approx(exact.losses, rel=8 * torch.finfo(torch.bfloat16).eps)
