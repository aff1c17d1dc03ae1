"""Probe a model: does any packed document reach another, and does packing change what is computed?

Algorithm: one packed batch (by default four documents of random tokens, one of them a single token) goes
through the instruments; what they measured is turned into one verdict, and a leak is traced to the module
that first carries it and to the argument that lets it.
Guarantee: ``sealed`` means that every instrument that ran found nothing: no bit moved, no gradient crossed a
seam, no logit or parameter gradient differed beyond the noise floor measured on this very subject.
Price: about ``D + 3`` forwards and ``D + 2`` backwards over the batch for D documents, and as much again
over single documents; no copy of the model, the caller's gradients, modes and random state are left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.errors import ProbeError, UnsupportedError
from hermetic.probe import instruments as measuring
from hermetic.probe.findings import (
    causality_finding,
    equivalence_findings,
    leak_findings,
    length_findings,
    position_findings,
    unsupported_finding,
)
from hermetic.probe.observe import Observation, observe
from hermetic.probe.report import Finding, LeakReport, Verdict
from hermetic.probe.subject import Forward, Subject, packed_run, subject_from
from hermetic.seal.measure import FLOOR_FACTOR, FORWARD_FAILURES, GradientInfluence, largest_difference

INSTRUMENTS = ("swap", "gradient", "solo")
"""The instruments of ``probe``, in the order in which they run."""


@dataclass(slots=True, kw_only=True)
class Measurements:
    """What the instruments that ran have found so far."""

    observation: Observation | None = None
    influence: torch.Tensor | None = None
    gradients: GradientInfluence | None = None
    equivalence: measuring.Equivalence | None = None
    ran: list[str] = field(default_factory=list)
    not_run: list[tuple[str, str]] = field(default_factory=list)


def probe(
    model: nn.Module | Forward,
    *,
    documents: Sequence[Mapping[str, Any]] | None = None,
    lengths: Sequence[int] = (11, 13, 6, 1),
    instruments: Sequence[str] | None = None,
    seed: int = 0,
) -> LeakReport:
    """Measure whether packed documents stay apart, and whether packing changes the computation.

    Args:
        model: a transformers model (any module that takes ``batch.model_inputs()``), or any callable
            ``forward(batch) -> logits`` that gets a ``hermetic.PackedBatch`` and returns ``[T, V]`` or
            ``[1, T, V]``.
        documents: what to pack; by default random tokens of the given ``lengths``.
        lengths: tokens of each default document. Take some beyond every attention window of the model.
        instruments: some of ``"swap"``, ``"gradient"``, ``"solo"``; by default all that can run here.
        seed: of the default documents and of all random choices.

    Returns:
        A report. In the mode that the model is in, except that a model with active dropout is compared with
        its solo runs in evaluation mode.

    Raises:
        ProbeError: nothing can be measured: unknown or impossible instruments, too few documents, logits
            that are not finite or not one row per token.
    """
    chosen = _chosen(instruments)
    subject = subject_from(model, seed=seed)
    batch = _batch(subject, documents, lengths)
    _require_alone(subject, batch)
    measured = Measurements()
    try:
        with packed_run(subject.name):
            _require_repeatable(subject, batch)
            measured.observation = observe(subject, batch)
            for name in chosen:
                _measure(name, subject, batch, measured, required=instruments is not None)
    except UnsupportedError as error:
        return _report(subject, batch, measured, "unsupported", [unsupported_finding(error)])
    if not measured.ran:
        raise ProbeError(f"{subject.name}: no instrument could run: {'; '.join(why for _, why in measured.not_run)}")
    verdict, findings = _judge(subject, batch, measured)
    return _report(subject, batch, measured, verdict, findings)


def _chosen(instruments: Sequence[str] | None) -> tuple[str, ...]:
    if instruments is None:
        return INSTRUMENTS
    names = (instruments,) if isinstance(instruments, str) else tuple(instruments)
    for name in names:
        if name not in INSTRUMENTS:
            raise ProbeError(f"instrument {name!r} is unknown; expected some of {', '.join(INSTRUMENTS)}")
    if not names:
        raise ProbeError(f"instruments is empty; expected some of {', '.join(INSTRUMENTS)}, or None for all")
    return names


def _batch(subject: Subject, documents: Sequence[Mapping[str, Any]] | None, lengths: Sequence[int]) -> PackedBatch:
    if documents is None:
        generator = torch.Generator().manual_seed(subject.seed)
        documents = [
            {"input_ids": torch.randint(0, subject.vocabulary, (length,), generator=generator)} for length in lengths
        ]
    batch = collate(documents)
    present = sum(length > 0 for length in batch.boundaries.document_lengths)
    if present < 2:
        raise ProbeError(
            f"{present} document(s) with tokens were given; expected at least 2, for a leak takes a neighbour"
        )
    return batch


def _require_alone(subject: Subject, batch: PackedBatch) -> None:
    """A subject that cannot even run each document alone is not a finding about packing."""
    for index, document in enumerate(measuring.documents_of(batch)):
        if document["input_ids"].numel() == 0:
            continue
        try:
            with torch.no_grad():
                subject.logits(collate([document]))
        except ProbeError:
            raise
        except FORWARD_FAILURES as error:
            raise ProbeError(
                f"{subject.name} failed on document {index} alone ({type(error).__name__}: {error}); "
                "expected it to run before packing is probed"
            ) from error


def _require_repeatable(subject: Subject, batch: PackedBatch) -> None:
    """Instruments compare runs, so a run has to say the same when nothing has changed."""
    with torch.no_grad():
        first, second = subject.logits(batch), subject.logits(batch)
    if not torch.equal(first, second):
        raise ProbeError(
            f"{subject.name} gave other logits for the same batch and random state (by up to "
            f"{largest_difference(first, second):.2g}), so nothing can be concluded from runs that differ; expected "
            "equal ones. It keeps state between calls, draws from a generator of its own, or runs kernels that are "
            "not deterministic: try torch.use_deterministic_algorithms(True)"
        )


def _measure(name: str, subject: Subject, batch: PackedBatch, measured: Measurements, *, required: bool) -> None:
    try:
        if name == "swap":
            measured.influence = measuring.swap(subject, batch)
        elif name == "gradient":
            measured.gradients = measuring.gradient(subject, batch)
        else:
            measured.equivalence = _solo(subject, batch)
    except (ProbeError, NotImplementedError) as error:
        if required or isinstance(error, UnsupportedError):
            raise
        measured.not_run.append((name, str(error)))
        return
    measured.ran.append(name)


def _solo(subject: Subject, batch: PackedBatch) -> measuring.Equivalence:
    if not _is_random(subject, batch):
        return measuring.solo(subject, batch)
    with subject.evaluation():
        return measuring.solo(subject, batch)


def _is_random(subject: Subject, batch: PackedBatch) -> bool:
    """Whether another random state alone changes the logits: dropout is active."""
    other = replace(subject, seed=subject.seed + 1)
    with torch.no_grad():
        return not torch.equal(subject.logits(batch), other.logits(batch))


def _judge(subject: Subject, batch: PackedBatch, measured: Measurements) -> tuple[Verdict, list[Finding]]:
    positions = position_findings(measured.observation, batch)
    if _leaks(subject, batch, measured):
        return "leak", [*leak_findings(subject, batch, measured), *positions]
    if measured.gradients is not None and measured.gradients.future != 0.0:
        return "not_causal", [causality_finding(measured.gradients.future), *positions]
    differences = equivalence_findings(measured.equivalence)
    if positions or differences:
        lengths = [] if positions else length_findings(subject, batch, measured.equivalence)
        return "row_length_dependent" if lengths else "distortion", [*lengths, *positions, *differences]
    return "sealed", []


def _leaks(subject: Subject, batch: PackedBatch, measured: Measurements) -> bool:
    """A gradient that crosses a seam is a leak, and so is a bit that a swap moves.

    With one exception: where no gradient crosses and a swap changes the shapes of operations, as in mixtures of
    experts, it moves last bits, and counts beyond the noise floor only.
    """
    if measured.gradients is not None and bool(measured.gradients.across.clone().fill_diagonal_(0.0).any()):
        return True
    moved = 0.0 if measured.influence is None else float(measured.influence.max())
    if moved == 0.0 or measured.gradients is None or measured.equivalence is None:
        return moved != 0.0
    return moved > FLOOR_FACTOR * measured.equivalence.noise_floor or not measuring.shapes_follow_content(
        subject, batch
    )


def _report(
    subject: Subject,
    batch: PackedBatch,
    measured: Measurements,
    verdict: Verdict,
    findings: list[Finding],
) -> LeakReport:
    solo = measured.equivalence
    return LeakReport(
        subject=subject.name,
        verdict=verdict,
        findings=tuple(findings),
        lengths=batch.boundaries.document_lengths,
        influence=measured.influence,
        gradients=None if measured.gradients is None else measured.gradients.across,
        equivalence=None if solo is None else solo.logits,
        gradient_equivalence=None if solo is None else solo.gradients,
        noise_floor=None if solo is None else solo.noise_floor,
        instruments=tuple(measured.ran),
        not_run=tuple(measured.not_run),
    )
