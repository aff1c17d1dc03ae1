"""Show a leak, seal it, and train the same documents in four ways.

Algorithm: conversations are generated, packed and inspected; a tiny Llama is probed on them, packed naively
and sealed; then four arms of ``hermetic.compare`` start from the same weights, take the same documents in
the same steps, and are measured on held-out conversations, one at a time.
Guarantee: what is printed was measured in this run, whatever came out.
Price: about three minutes on two cores.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermetic.compare import (
    Arm,
    ComparedRows,
    Subject,
    arms_by_name,
    probe_arm,
    quiet_transformers,
    rows_of,
    run_arm,
    start_of,
    utilization,
)
from hermetic.compare.run import Start
from hermetic.data import PackedSummary, inspect_packed, load_tokenizer
from hermetic.demo.presets import PRESETS, TOKENIZER, tiny_llama, write_documents
from hermetic.probe import LeakReport
from hermetic.train import TrainSettings

ARMS = ("padded", "naive", "positions_only", "sealed")
PRESET = PRESETS["conversations"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSize:
    """How much the demo does; the default takes about three minutes on two cores."""

    conversations: int = PRESET.conversations
    heldout: int = PRESET.heldout
    settings: TrainSettings = field(default_factory=lambda: PRESET.settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """What one arm came to."""

    train_loss: float
    """Mean token-level loss of the last tenth of the steps, in nats."""
    heldout_loss: float
    """Token-level loss of held-out conversations, each run alone, in nats."""
    utilization: float
    steps: int
    tokens_per_second: float
    logit_difference: float
    """Largest difference to the padded logits on the first batch, before training."""
    gradient_difference: float
    """Relative difference to the padded parameter gradients on the first batch, before training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """All that the demo measured."""

    summary: PackedSummary
    naive: LeakReport
    sealed: LeakReport
    arms: dict[str, ArmResult]

    def to_dict(self) -> dict[str, Any]:
        """``arms`` and ``probe``, plain numbers and verdicts."""
        names = ArmResult.__dataclass_fields__
        return {
            "arms": {arm: {name: getattr(result, name) for name in names} for arm, result in self.arms.items()},
            "probe": {"naive": self.naive.verdict, "sealed": self.sealed.verdict},
        }


def run_demo(*, size: DemoSize | None = None, on_stage: Callable[[str], None] = print) -> DemoResult:
    """Run the whole demo in a temporary folder; ``on_stage`` is told what is being done."""
    size = size or DemoSize()
    with tempfile.TemporaryDirectory(prefix="hermetic-demo-") as name, quiet_transformers():
        on_stage("packing generated conversations")
        rows = _rows(Path(name), size)
        subject = Subject(name="LlamaForCausalLM", data="conversations", make=tiny_llama, rows=rows)
        on_stage("probing the naive and the sealed model")
        start = start_of(subject, size.settings)
        arms = arms_by_name(ARMS)
        reports = [probe_arm(subject, arm, start) for arm in arms if arm.name in {"naive", "sealed"}]
        naive, sealed = (report for report in reports if report is not None)  # rows of the demo have neighbours
        results = {}
        for arm in arms:
            on_stage(f"training the {arm.name} arm")
            results[arm.name] = _trained(subject, arm, start)
        packed = inspect_packed(rows.trained.path)
        summary = replace(packed, path=Path(packed.path).name)  # the folder is gone when anyone reads it
        return DemoResult(summary=summary, naive=naive, sealed=sealed, arms=results)


def _rows(folder: Path, size: DemoSize) -> ComparedRows:
    preset = replace(PRESET, conversations=size.conversations, heldout=size.heldout)
    train, heldout = write_documents(preset, folder)
    return rows_of(
        train,
        heldout,
        load_tokenizer(TOKENIZER),
        capacity=preset.capacity,
        folder=folder,
        pack_options={"tokenizer": TOKENIZER},
    )


def _trained(subject: Subject, arm: Arm, start: Start) -> ArmResult:
    run, _ = run_arm(subject, arm, start, on_stage=lambda _stage: None)
    return ArmResult(
        train_loss=run.train_loss,
        heldout_loss=run.heldout_loss,
        utilization=utilization(subject, arm, start.settings),
        steps=len(run.losses),
        tokens_per_second=run.tokens_per_second,
        logit_difference=run.logit_difference,
        gradient_difference=run.gradient_difference,
    )
