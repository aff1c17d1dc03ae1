"""What a training run is told and what it says of itself: plain data."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermetic.data import PackedData
from hermetic.errors import TrainError

if TYPE_CHECKING:
    from hermetic.probe import LeakReport

_LARGEST_SEED = 2**32 - 1
"""NumPy, which the Trainer seeds along with torch, takes no larger one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """How to train; the defaults suit full fine-tuning of a pretrained model."""

    epochs: float = 1.0
    max_steps: int | None = None
    """Stop after so many optimizer steps, whatever ``epochs`` says."""
    rows_per_batch: int = 1
    """Rows per device and micro-batch."""
    accumulation_steps: int = 1
    """Micro-batches per optimizer step."""
    learning_rate: float = 2e-5
    lora: bool = False
    """Train low-rank adapters on all linear layers instead of the weights."""
    gradient_checkpointing: bool = False
    bf16: bool = False
    """Mixed precision: arithmetic in bfloat16 through autocast, weights and optimizer in float32."""
    seed: int = 0
    """Of the order of rows and of dropout."""

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise TrainError(f"{name} is {value}; expected a finite number above 0")
        for name in ("rows_per_batch", "accumulation_steps", "max_steps"):
            value = getattr(self, name)
            if not (name == "max_steps" and value is None) and (type(value) is not int or value < 1):
                raise TrainError(f"{name} is {value!r}; expected a whole number of at least 1")
        if type(self.seed) is not int or not 0 <= self.seed <= _LARGEST_SEED:
            raise TrainError(f"seed is {self.seed!r}; expected a whole number from 0 to {_LARGEST_SEED}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainMetrics:
    """What a training run did."""

    packed: bool
    rows: int
    documents: int
    tokens: int
    """Real tokens of one epoch."""
    supervised_tokens: int
    utilization: float
    """Real tokens per slot of the rows that were run: of the capacity when packed, of the padded rows else."""
    steps: int
    losses: tuple[float, ...]
    """Token-level loss of each optimizer step, in nats."""
    train_loss: float
    """Mean of the last tenth of the steps."""
    seconds: float
    tokens_per_second: float
    """Real tokens trained on, per second of training."""
    verdict: str | None
    """The probe's verdict on the first batch; ``None`` for padded rows, which have no neighbours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """Losses and time of a Trainer run."""

    losses: tuple[float, ...]
    seconds: float
    epochs: float
    report: "LeakReport | None"


def metrics_of(result: FitResult, packed: PackedData, *, pack: bool, settings: TrainSettings) -> TrainMetrics:
    """Count what a run did."""
    manifest = packed.manifest
    last = result.losses[-max(1, len(result.losses) // 10) :]
    return TrainMetrics(
        packed=pack,
        rows=len(packed),
        documents=len(packed.document_lengths),
        tokens=manifest.tokens_placed,
        supervised_tokens=manifest.supervised_tokens,
        utilization=manifest.utilization if pack else padded_utilization(packed, settings.rows_per_batch),
        steps=len(result.losses),
        losses=result.losses,
        train_loss=sum(last) / len(last),
        seconds=result.seconds,
        tokens_per_second=manifest.tokens_placed * result.epochs / result.seconds,
        verdict=None if result.report is None else result.report.verdict,
    )


def padded_utilization(packed: PackedData, rows_per_batch: int) -> float:
    """Real tokens per slot when each batch of rows is padded to its longest document instead."""
    documents = 0
    slots = 0
    counts = packed.documents_per_row
    for first in range(0, len(counts), rows_per_batch):
        count = int(counts[first : first + rows_per_batch].sum())
        slots += count * int(packed.document_lengths[documents : documents + count].max())
        documents += count
    return float(packed.document_lengths.sum()) / slots
