"""What a comparison came to: plain data, and what is counted over its seeds."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hermetic.train import TrainSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A number over several seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; ``None`` for a single seed, of which nobody knows the spread."""

    @classmethod
    def over(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value.

        Example:
            >>> Spread.over([1.0, 3.0])
            Spread(mean=2.0, deviation=1.4142135623730951)
        """
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(mean=statistics.fmean(values), deviation=deviation)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRun:
    """What one arm came to with one seed. Losses are token-level, in nats per supervised token."""

    seed: int
    losses: tuple[float, ...]
    """Of each optimizer step, as the arm lays out its rows."""
    train_loss: float
    """Mean of the last tenth of the steps."""
    heldout_loss: float
    """Of held-out documents, each run alone."""
    train_illusion: float
    """Loss of trained rows with each document alone, minus their loss in the arm's layout, after training."""
    heldout_illusion: float
    """The same of held-out rows."""
    logit_difference: float
    """Largest difference to the padded logits on the first batch, before training."""
    gradient_difference: float
    """Relative difference to the padded parameter gradients on the first batch, before training."""
    tokens_per_second: float
    """Real tokens trained on, per second of training."""
    memory: int
    """Bytes at the peak of a forward and backward of the first batch, beyond the weights."""


MEASURES = (
    *("train_loss", "heldout_loss", "train_illusion", "heldout_illusion"),
    *("logit_difference", "gradient_difference", "tokens_per_second", "memory"),
)
"""The numbers of an :class:`ArmRun` that have a spread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why an arm did not run, or did not run on."""

    code: str
    """Of the error."""
    seed: int
    """With which it failed; earlier ones have their runs."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """One arm over all seeds."""

    name: str
    about: str
    utilization: float
    """Real tokens per slot."""
    verdict: str | None
    """The probe's, of a few documents of the first batch; ``None`` where no row of them has neighbours."""
    runs: tuple[ArmRun, ...]
    """One for each seed, in order; fewer when the arm was refused."""
    refusal: Refusal | None

    def spread(self, measure: str) -> Spread | None:
        """One of ``MEASURES`` over the seeds; ``None`` when none was run."""
        return Spread.over([getattr(run, measure) for run in self.runs]) if self.runs else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All that was measured."""

    model: str
    data: str
    documents: int
    """That were trained on."""
    rows: int
    heldout_documents: int
    heldout_rows: int
    capacity: int
    steps: int
    """Of each arm with each seed."""
    seeds: tuple[int, ...]
    settings: TrainSettings
    device: str
    gradient_floor: float
    """Relative difference of the padded gradients to those of each document alone: what rounding does, at the worst."""
    arms: tuple[ArmResult, ...]

    def arm(self, name: str) -> ArmResult | None:
        """The arm of this name, if it was compared."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def heldout_change(self, arm: ArmResult) -> Spread | None:
        """Held-out loss minus that of padded with the same seed; ``None`` without a seed that both have run."""
        padded = self.arm("padded")
        pairs = zip(arm.runs, () if padded is None else padded.runs, strict=False)
        changes = [run.heldout_loss - base.heldout_loss for run, base in pairs]
        return Spread.over(changes) if changes and arm is not padded else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, with the spreads worked out."""
        values = asdict(self)
        for arm, entry in zip(self.arms, values["arms"], strict=True):
            spreads = {measure: arm.spread(measure) for measure in MEASURES}
            spreads["heldout_minus_padded"] = self.heldout_change(arm)
            entry["spread"] = {name: None if spread is None else asdict(spread) for name, spread in spreads.items()}
        return values
