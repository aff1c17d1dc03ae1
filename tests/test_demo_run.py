"""The demo shows the leak, the seal, and that sealed training is padded training."""

import io
import json
import math

import pytest
import transformers
from rich.console import Console

from hermetic.demo.render import render
from hermetic.demo.run import DemoSize, run_demo
from hermetic.train import TrainSettings

ARMS = ("padded", "naive", "positions_only", "sealed")
NUMBERS = {
    "train_loss",
    "heldout_loss",
    "utilization",
    "steps",
    "tokens_per_second",
    "logit_difference",
    "gradient_difference",
}


@pytest.fixture(scope="module")
def stages():
    return []


@pytest.fixture(scope="module")
def result(stages):
    before = noise_of_transformers()
    settings = TrainSettings(epochs=1.0, rows_per_batch=2, learning_rate=3e-3)
    found = run_demo(size=DemoSize(conversations=60, heldout=8, settings=settings), on_stage=stages.append)
    assert noise_of_transformers() == before
    return found


def noise_of_transformers():
    logging = transformers.utils.logging
    return logging.get_verbosity(), logging.is_progress_bar_enabled()


def assert_tells_the_truth(values):
    arms = values["arms"]
    assert set(values) == {"arms", "probe"}
    assert tuple(arms) == ARMS
    for arm in arms.values():
        assert set(arm) == NUMBERS
        assert all(math.isfinite(number) for number in arm.values())
    assert values["probe"] == {"naive": "leak", "sealed": "sealed"}
    for difference in ("logit_difference", "gradient_difference"):
        assert arms["padded"][difference] == 0.0
        assert arms["sealed"][difference] < 1e-5
        assert arms["naive"][difference] > 1e-2
        assert arms["positions_only"][difference] > 1e-2
    assert len({arm["steps"] for arm in arms.values()}) == 1
    assert arms["sealed"]["utilization"] == arms["naive"]["utilization"] > arms["padded"]["utilization"]


def test_a_small_demo_tells_the_truth_in_plain_json(result):
    values = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert_tells_the_truth(values)
    assert values["arms"]["sealed"]["steps"] > 3
    for loss in ("train_loss", "heldout_loss"):
        sealed, padded = (values["arms"][arm][loss] for arm in ("sealed", "padded"))
        assert sealed == pytest.approx(padded, rel=1e-4)


def test_every_stage_of_the_demo_is_told(result, stages):
    assert stages == [
        "packing generated conversations",
        "probing the naive and the sealed model",
        *(f"training the {arm} arm" for arm in result.arms),
    ]


def test_the_picture_of_the_demo_holds_all_that_it_measured(result):
    console = Console(width=140, record=True, file=io.StringIO(), color_system=None)
    console.print(render(result))
    text = console.export_text()
    assert "LlamaForCausalLM: sealed" in text
    assert "hermetic-demo-" not in text  # a folder that is gone
    assert "LlamaForCausalLM packed naively: leak" in text
    assert f"{result.summary.documents:,}" in text
    for name, arm in result.arms.items():
        row = next(line for line in text.splitlines() if f"│{name} " in line and f"{arm.heldout_loss:.4f}" in line)
        for shown in (
            f"{arm.utilization:.1%}",
            f"{arm.steps}",
            f"{arm.tokens_per_second:,.0f}",
            f"{arm.train_loss:.4f}",
            f"{arm.logit_difference:.1e}",
            f"{arm.gradient_difference:.1e}",
        ):
            assert f"{shown} │" in row


@pytest.mark.slow
def test_the_whole_demo_tells_the_truth():
    result = run_demo(on_stage=lambda _stage: None)
    values = result.to_dict()
    Console(width=140).print(render(result))
    assert_tells_the_truth(values)
    sealed, padded = values["arms"]["sealed"], values["arms"]["padded"]
    assert sealed["train_loss"] == pytest.approx(padded["train_loss"], rel=0.02)
    assert sealed["heldout_loss"] == pytest.approx(padded["heldout_loss"], rel=0.05)
