"""Train the same documents in several layouts, over several seeds, and measure what differs.

Algorithm: a seed gives the weights (where they are drawn at all), the order of rows and dropout. With each seed, each
arm starts from the same weights and takes the same documents in the same optimizer steps; arms take turns, so that a
machine that slows down slows all of them. Before training, the first batch is held against the padded one and the
call is probed; after it, held-out documents are run alone, and rows both packed and alone.
Guarantee: what an arm cannot do is an entry of the result that says why, never an arm that is missing. An arm that is
meant to keep documents apart trains nothing if the probe says that it does not.
Price: arms times seeds runs of the Trainer, one probe for each packed arm, and for each run two forwards of up to 128
rows; for each seed two gradients of the model are held on the CPU.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import nn

from hermetic.compare.arms import Arm, all_arms, forward_of
from hermetic.compare.measure import (
    FirstBatch,
    first_batch,
    first_batch_alone,
    layout_loss,
    solo_loss,
    supervised_tokens,
)
from hermetic.compare.memory import peak_memory
from hermetic.compare.progress import OnStep, Progress
from hermetic.compare.records import ArmResult, ArmRun, Comparison, Refusal
from hermetic.compare.rows import MEASURED_ROWS, ComparedRows, Documents
from hermetic.errors import ArmError, HermeticError, LeakError, TrainError
from hermetic.probe import LeakReport, probe
from hermetic.seal import seal
from hermetic.seal.measure import FORWARD_FAILURES
from hermetic.train import FitResult, TrainSettings, fit, make_trainer, padded_utilization

_R = TypeVar("_R")

_PROBED = 4
"""Documents of a row that the probe gets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is compared: a model for each seed, and rows."""

    name: str
    """Of the model."""
    data: str
    make: Callable[[int], nn.Module]
    """The untrained model of a seed, another object at each call."""
    rows: ComparedRows
    pad_token_id: int = 0
    backend: str = "sdpa"

    def network(self, seed: int, *, sealed: bool = False) -> nn.Module:
        """The model of a seed, on the device that the Trainer takes."""
        network = self.make(seed).to(_device())
        return seal(network, backend=self.backend) if sealed else network


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Start:
    """What the arms of one seed are held against."""

    settings: TrainSettings
    """With the seed."""
    batches: list[list[Documents]]
    """Rows in the order in which every arm trains them, up to ``MEASURED_ROWS``."""
    padded: FirstBatch
    gradient_floor: float
    """Difference of ``padded`` to each document alone."""


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What one arm has come to so far."""

    arm: Arm
    verdict: str | None = None
    runs: list[ArmRun] = field(default_factory=list)
    refusal: Refusal | None = None


def run_comparison(
    subject: Subject, *, arms: Sequence[Arm], seeds: Sequence[int], settings: TrainSettings, on_step: OnStep
) -> Comparison:
    """Compare the arms over the seeds; ``settings`` hold for all, with the seed put in.

    Raises:
        TrainError: the rows have no supervised tokens, or no seed was given.
        HermeticError: the model fails on padded documents, so that there is nothing to compare with.
    """
    if not seeds:
        raise TrainError("there are no seeds; expected at least one")
    steps = steps_of(len(subject.rows.trained), settings)
    progress = Progress(on_step, runs=len(seeds) * len(arms), steps=steps)
    tallies = [_Tally(arm=arm) for arm in arms]
    floor = 0.0
    for turn, seed in enumerate(seeds):
        progress.say(f"seed {turn + 1} of {len(seeds)}, the padded gradient")
        start = start_of(subject, replace(settings, seed=seed))
        floor = max(floor, start.gradient_floor)
        for tally in (tally for tally in tallies if tally.refusal is None):
            _take_turn(subject, tally, start, progress, said=f"seed {turn + 1} of {len(seeds)}, {tally.arm.name}")
            progress.finish(skipped=0 if tally.refusal is None else len(seeds) - turn - 1)
    return Comparison(
        model=subject.name,
        data=subject.data,
        documents=len(subject.rows.trained.document_lengths),
        rows=len(subject.rows.trained),
        heldout_documents=sum(len(row) for row in subject.rows.heldout),
        heldout_rows=len(subject.rows.heldout),
        capacity=subject.rows.capacity,
        steps=steps,
        seeds=tuple(seeds),
        settings=settings,
        device=str(_device()),
        gradient_floor=floor,
        arms=tuple(_result(subject, tally, settings) for tally in tallies),
    )


def start_of(subject: Subject, settings: TrainSettings) -> Start:
    """The first rows of a seed, and what the padded layout makes of the first batch of them.

    Raises:
        TrainError: no token of the first batch is supervised.
        ArmError: the model fails on padded documents.
    """
    network = subject.network(settings.seed)
    batches = _first_batches(network, subject.rows, settings)
    if not supervised_tokens(batches[0]):
        raise TrainError("no token of the first batch is supervised; expected some, for it has no loss else")
    padded = next(iter(all_arms(pad_token_id=subject.pad_token_id)))
    first = _attempt(padded, network, lambda: first_batch(network, padded, batches[0]))
    alone = _attempt(padded, network, lambda: first_batch_alone(network, batches[0]))
    return Start(settings=settings, batches=batches, padded=first, gradient_floor=first.gradient_distance(alone))


def steps_of(rows: int, settings: TrainSettings) -> int:
    """Optimizer steps that the Trainer makes of so many rows.

    Example:
        Ten rows, two at a time and two times two in a step, are 3 steps in an epoch.

        >>> steps_of(10, TrainSettings(rows_per_batch=2, accumulation_steps=2, epochs=2.0))
        6
    """
    if settings.max_steps is not None:
        return settings.max_steps
    batches = math.ceil(rows / settings.rows_per_batch)
    return math.ceil(settings.epochs * math.ceil(batches / settings.accumulation_steps))


def probe_arm(subject: Subject, arm: Arm, start: Start) -> LeakReport | None:
    """Probe the call that a packed arm trains with, on the first row that has several documents.

    Returns:
        The report; ``None`` for the padded arm, and where no row has several documents.
    """
    row = next((row for batch in start.batches for row in batch if len(row) > 1), None)
    if not arm.packed or row is None:
        return None
    network = subject.network(start.settings.seed, sealed=arm.sealed).eval()
    return probe(network if arm.sealed else forward_of(arm, network), documents=row[:_PROBED])


def require_apart(arm: Arm, report: LeakReport | None) -> None:
    """Raise if an arm that is meant to keep documents apart does not.

    Raises:
        LeakError: the sealed model's verdict is not ``sealed``.
        ArmError: documents reach each other through the mask.
    """
    if report is None or not arm.apart or report.verdict == "sealed":
        return
    if arm.sealed:
        raise LeakError(f"training did not start. {report.summary()}")
    if report.verdict not in {"distortion", "row_length_dependent"}:
        raise ArmError(
            f"{report.subject}: the probe's verdict is {report.verdict} under a 4-D mask that keeps documents apart; "
            "expected a model that takes such a mask in every layer. Train it with the other arms"
        )


def run_arm(subject: Subject, arm: Arm, start: Start, *, on_stage: Callable[[str], None]) -> tuple[ArmRun, nn.Module]:
    """Train one arm with one seed and measure it; also the trained model.

    Raises:
        ArmError: the model fails on the rows of this arm.
        SealError: the model cannot be sealed.
        NonFiniteError: the loss of a supervised token became NaN or infinite.
    """
    network = subject.network(start.settings.seed, sealed=arm.sealed)
    first, memory = _attempt(
        arm, network, lambda: peak_memory(lambda: first_batch(network, arm, start.batches[0]), _device())
    )

    def train() -> FitResult:  # packed or not: the probe has run already, and would count as training time
        return fit(network, subject.rows.trained, start.settings, pack=False, collator=arm.collator, on_stage=on_stage)

    fitted = _attempt(arm, network, train)
    heldout = subject.rows.batches(start.settings.rows_per_batch)
    alone = solo_loss(network, heldout)
    run = ArmRun(
        seed=start.settings.seed,
        losses=fitted.losses,
        train_loss=_last_tenth(fitted),
        heldout_loss=alone,
        train_illusion=solo_loss(network, start.batches) - layout_loss(network, arm, start.batches),
        heldout_illusion=alone - layout_loss(network, arm, heldout),
        logit_difference=first.logit_distance(start.padded),
        gradient_difference=first.gradient_distance(start.padded),
        tokens_per_second=subject.rows.tokens * fitted.epochs / fitted.seconds,
        memory=memory,
    )
    return run, network


def utilization(subject: Subject, arm: Arm, settings: TrainSettings) -> float:
    """Real tokens per slot of the rows that are trained on, as the arm lays them out."""
    rows = subject.rows
    if not arm.packed:
        return padded_utilization(rows.trained, settings.rows_per_batch)
    return rows.tokens / (len(rows.trained) * rows.capacity)


def _take_turn(subject: Subject, tally: _Tally, start: Start, progress: Progress, *, said: str) -> None:
    """Run an arm with one seed, or note why it did not run."""
    seed = start.settings.seed
    try:
        if not tally.runs:
            progress.say(f"{said}, probing")
            report = probe_arm(subject, tally.arm, start)
            tally.verdict = None if report is None else report.verdict
            require_apart(tally.arm, report)
        tally.runs.append(run_arm(subject, tally.arm, start, on_stage=progress.run(said))[0])
    except HermeticError as error:
        tally.refusal = Refusal(code=error.code, seed=seed, reason=" ".join(str(error).split()))


def _result(subject: Subject, tally: _Tally, settings: TrainSettings) -> ArmResult:
    return ArmResult(
        name=tally.arm.name,
        about=tally.arm.about,
        utilization=utilization(subject, tally.arm, settings),
        verdict=tally.verdict,
        runs=tuple(tally.runs),
        refusal=tally.refusal,
    )


def _first_batches(network: nn.Module, rows: ComparedRows, settings: TrainSettings) -> list[list[Documents]]:
    """The batches of rows that the Trainer of every arm takes first, as many as are measured."""
    trainer = make_trainer(network, rows.trained, settings, pack=False, collator=list)
    used = math.ceil(steps_of(len(rows.trained), settings) * settings.accumulation_steps)
    count = max(1, min(used, MEASURED_ROWS // settings.rows_per_batch))
    return [batch for batch, _ in zip(trainer.get_train_dataloader(), range(count), strict=False)]


def _attempt(arm: Arm, network: nn.Module, work: Callable[[], _R]) -> _R:
    """Do what only some models can; their own failure becomes one with a name."""
    try:
        return work()
    except HermeticError:
        raise
    except FORWARD_FAILURES as error:
        reason = " ".join(str(error).split())
        raise ArmError(
            f"{type(network).__name__} fails on the rows of the {arm.name} arm ({type(error).__name__}: {reason}); "
            f"expected a model that runs documents that are {arm.about}. Train it with the other arms"
        ) from error


def _last_tenth(fitted: FitResult) -> float:
    """Mean of the last tenth of the steps."""
    last = fitted.losses[-max(1, len(fitted.losses) // 10) :]
    return sum(last) / len(last)


def _device() -> torch.device:
    """Where the Trainer will train."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")
