"""Probe a model: does any packed document reach another, and does packing change what is computed?

Algorithm: one packed batch (by default four documents of random tokens, one of them a single token) goes
through the instruments; what they measured is turned into one verdict, and a leak is traced to the module
that first carries it and to the argument that lets it. A document alone in a row of its own is the control.
Guarantee: ``sealed`` means that every instrument that ran found nothing: no bit moved, no gradient crossed a
seam, no logit, loss or parameter gradient differed beyond the noise floor measured on this very subject.
Price: the passes of less than five training steps of the same batch, however many documents of some dozens of tokens
it holds; on a model of 110 million parameters less than five in processor time too, and at most 1.2 times the memory
of a step (``benchmarks/probe.py``). Batches of at most 256 tokens are measured whole, for some twenty forwards. Once
something is found, telling who reaches whom takes each document by itself. No copy of the model is made; the caller's
gradients, modes and random state are left alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import nn

from hermetic.batch import PackedBatch, collate
from hermetic.errors import HermeticError, ProbeError, UnsupportedError
from hermetic.probe import instruments as measuring
from hermetic.probe.findings import unsupported_finding
from hermetic.probe.judge import judge
from hermetic.probe.lengthen import Lengthening, lengthen
from hermetic.probe.locate import read_layers
from hermetic.probe.observe import Observation, observe
from hermetic.probe.report import Finding, LayerReading, LeakReport, Verdict
from hermetic.probe.sample import documents_of, is_small, two_documents, two_of
from hermetic.probe.subject import Forward, Subject, packed_run, subject_from
from hermetic.probe.targets import Targets, logits_and_targets, targets
from hermetic.probe.weights import Weights, weights
from hermetic.probe.wording import scope_of
from hermetic.seal.measure import (
    FLOOR_FACTOR,
    FORWARD_FAILURES,
    GradientInfluence,
    largest_difference,
)
from hermetic.seal.precision import LOW

INSTRUMENTS = ("swap", "gradient", "solo", "length-change", "causality", "targets", "weights")
"""The instruments of ``probe``, in the order in which they run."""


@dataclass(slots=True, kw_only=True)
class Measurements:
    """What the instruments that ran have found so far."""

    chosen: tuple[str, ...]
    observation: Observation | None = None
    influence: torch.Tensor | None = None
    gradients: GradientInfluence | None = None
    equivalence: measuring.Equivalence | None = None
    lengthening: Lengthening | None = None
    causality: torch.Tensor | None = None
    targets: Targets | None = None
    weights: Weights | None = None
    ran: list[str] = field(default_factory=list)
    not_run: list[tuple[str, str]] = field(default_factory=list)

    @property
    def noise_floor(self) -> float | None:
        """Of the logits, from whichever instrument has measured it."""
        found = self.equivalence or self.lengthening
        return None if found is None else found.noise_floor


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
        instruments: some of ``INSTRUMENTS``; by default all that can run here. ``"targets"`` and ``"weights"`` need a
            loss: a model that takes labels, or a callable that returns an object with ``.loss`` and ``.logits``.
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
    batch = packed_documents(subject, documents, lengths)
    subject.alone(batch)  # a subject that cannot even run each document alone is not a finding about packing
    measured = Measurements(chosen=chosen)
    try:
        with packed_run(subject.name):
            measured.observation = observe(subject, batch)
            subject.apart(batch)  # at once, for the logits of the documents alone are kept until then
            for name in chosen:
                _measure(name, subject, batch, measured, required=instruments is not None)
            if subject.draws(batch) or _moved(measured):
                _require_repeatable(subject, batch)
            _require_still(subject, batch)
    except UnsupportedError as error:
        return _report(subject, batch, measured, "unsupported", [unsupported_finding(error)])
    if not measured.ran:
        raise ProbeError(f"{subject.name}: no instrument could run: {'; '.join(why for _, why in measured.not_run)}")
    verdict, findings = judge(subject, batch, measured)
    finer, note = _measured_finer(subject, batch, measured, verdict)
    return finer or _report(subject, batch, measured, verdict, findings, note=note)


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


def packed_documents(
    subject: Subject, documents: Sequence[Mapping[str, Any]] | None, lengths: Sequence[int]
) -> PackedBatch:
    """The documents that were given, or random ones of the given lengths, in one row.

    Raises:
        ProbeError: fewer than two have tokens, or ``lengths`` are no lengths.
    """
    if documents is None:
        _refuse_no_lengths(lengths)
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


def _refuse_no_lengths(lengths: object) -> None:
    given = lengths if isinstance(lengths, Iterable) else (lengths,)
    wrong = [length for length in given if not isinstance(length, Integral) or int(length) < 0]
    if wrong or given is not lengths:
        offender = f"lengths has {wrong[0]!r}" if wrong else f"lengths is {lengths!r}"
        raise ProbeError(f"{offender}; expected tokens of each document, such as (11, 13, 6, 1)")


def _require_repeatable(subject: Subject, batch: PackedBatch) -> None:
    """Instruments compare runs, so a run has to say the same when nothing has changed."""
    with torch.no_grad():
        first, second = subject.row(batch), subject.logits(batch)
    if not torch.equal(first, second):
        raise ProbeError(
            f"{subject.name} gave other logits for the same batch and random state (by up to "
            f"{largest_difference(first, second):.2g}), so nothing can be concluded from runs that differ; expected "
            "equal ones. It keeps state between calls, draws from a generator of its own, or runs kernels that are "
            "not deterministic: try torch.use_deterministic_algorithms(True)"
        )


def _require_still(subject: Subject, batch: PackedBatch) -> None:
    """A document alone in a row of its own has no neighbours: whatever ran packed in between may not move it."""
    control = next(i for i, length in enumerate(batch.boundaries.document_lengths) if length)
    with torch.no_grad():
        again = subject.logits(collate([list(documents_of(batch))[control]]))
    moved = largest_difference(subject.control(batch), again)
    if moved:
        raise ProbeError(
            f"{subject.name} gave document {control} alone in a row of its own other logits (by up to {moved:.2g}) "
            "after it had run packed ones, so what moves says nothing about packing; expected a subject that keeps "
            "no state between calls"
        )


def _moved(measured: Measurements) -> bool:
    """Whether runs differed by more than rounding; where none did, repeating one could show nothing."""
    by_bits = [found for found in (measured.influence, measured.causality) if found is not None]
    by_floor = [(found.logits, found.noise_floor) for found in [measured.equivalence] if found is not None]
    by_floor += [(found.change, found.noise_floor) for found in [measured.lengthening] if found is not None]
    far = [float(moved.max()) > FLOOR_FACTOR * floor for moved, floor in by_floor]
    return any(bool(found.any()) for found in by_bits) or any(far)


@contextmanager
def _without_dropout(subject: Subject, batch: PackedBatch) -> Iterator[Subject]:
    """The subject in evaluation mode where its own mode draws random numbers; else as it is."""
    if not subject.is_random(batch):
        yield subject
        return
    with subject.evaluation() as quiet:
        yield quiet


def _measure(name: str, subject: Subject, batch: PackedBatch, measured: Measurements, *, required: bool) -> None:
    try:
        _RUN[name](subject, batch, measured)
    except (ProbeError, NotImplementedError) as error:
        if required or isinstance(error, UnsupportedError):
            raise
        measured.not_run.append((name, str(error)))
        return
    measured.ran.append(name)


def _swap(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    measured.influence = measuring.swap(subject, batch)


def _gradient(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    found: list[Targets] = []

    def run() -> torch.Tensor:
        together = logits_and_targets(subject, batch) if "targets" in measured.chosen else None
        if together is None:
            return subject.logits(batch)
        found.append(together[1])
        return together[0]

    measured.gradients = measuring.gradient(subject, batch, run=run)
    measured.targets = next(iter(found), None)


def _solo(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    with _without_dropout(subject, batch) as quiet:
        measured.equivalence = measuring.solo(quiet, batch)


def _length_change(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    measured.lengthening = lengthen(subject, batch, floor=measured.noise_floor)


def _causality(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    measured.causality = measuring.causality(subject, batch)


def _targets(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    measured.targets = measured.targets or targets(subject, batch)


def _weights(subject: Subject, batch: PackedBatch, measured: Measurements) -> None:
    with _without_dropout(subject, batch) as quiet:
        measured.weights = weights(quiet, batch)


_RUN: dict[str, Callable[[Subject, PackedBatch, Measurements], None]] = {
    "swap": _swap,
    "gradient": _gradient,
    "solo": _solo,
    "length-change": _length_change,
    "causality": _causality,
    "targets": _targets,
    "weights": _weights,
}


def _measured_finer(
    subject: Subject, batch: PackedBatch, measured: Measurements, verdict: Verdict
) -> tuple[LeakReport | None, tuple[str, ...]]:
    """What float32 sees of a model of low precision and its own noise hides; and why float32 was not asked.

    Of a batch that is not small, two documents cut short are asked, and only if nothing was found so far.
    """
    names = _judged_by_noise(measured)
    if verdict == "leak" or not names or not _is_low(subject, batch) or not (is_small(batch) or verdict == "sealed"):
        return None, ()
    sample, finer = batch if is_small(batch) else two_documents(batch), Measurements(chosen=names)
    try:
        with subject.in_float32() as precise:
            precise.apart(sample)
            for name in names:
                _measure(name, precise, sample, finer, required=False)
            _require_still(precise, sample)
            note = tuple(_not_finer(f"{name}: {why}") for name, why in finer.not_run)
            _take_exact(finer, measured, batch)
            verdict, findings = judge(precise, sample, finer)
            if verdict == "sealed":
                return None, note
            note = (_how_fine(sample, batch), *note)
            return _report(precise, sample, finer, verdict, findings, note=note), ()
    except (HermeticError, *FORWARD_FAILURES) as error:
        return None, (_not_finer(str(error)),)


def _is_low(subject: Subject, batch: PackedBatch) -> bool:
    return any(one.dtype in LOW for one in (*subject.parameters(), subject.row(batch)))


def _judged_by_noise(measured: Measurements) -> tuple[str, ...]:
    """The instruments of which noise may have hidden something; bits that moved and are no leak are such noise."""
    moved = {"swap": measured.influence, "causality": measured.causality}
    by_bits = {name for name, found in moved.items() if found is not None and bool(found.any())}
    return tuple(name for name in measured.ran if name in {"solo", "length-change", "weights"} | by_bits)


def _take_exact(finer: Measurements, measured: Measurements, batch: PackedBatch) -> None:
    """What does not depend on the precision: exact zeros, and of the same batch also what was passed to the model."""
    finer.ran, finer.not_run = measured.ran, measured.not_run
    gradients, chosen = measured.gradients, torch.tensor(two_of(batch))
    if is_small(batch):
        finer.observation, finer.targets, finer.gradients = measured.observation, measured.targets, gradients
        finer.influence = measured.influence if "swap" not in finer.chosen else finer.influence
        finer.causality = measured.causality if "causality" not in finer.chosen else finer.causality
    elif gradients is not None:
        pairs = (of_all[chosen][:, chosen] for of_all in (gradients.across, gradients.measured))
        finer.gradients = GradientInfluence(**dict(zip(("across", "measured"), pairs, strict=True)), future=0.0)


def _how_fine(sample: PackedBatch, batch: PackedBatch) -> str:
    what = "the numbers are those of the model run in float32, whose noise is smaller than that of its own dtype"
    if sample is batch:
        return what
    first, last = two_of(batch)
    return f"{what}; documents {first} and {last} were taken, cut to what the report has as lengths"


def _not_finer(why: str) -> str:
    return f"what the noise of the model's own dtype hides was not looked for, as float32 failed: {why}"


def _report(
    subject: Subject,
    batch: PackedBatch,
    measured: Measurements,
    verdict: Verdict,
    findings: list[Finding],
    *,
    note: tuple[str, ...] = (),
) -> LeakReport:
    solo = measured.equivalence
    return LeakReport(
        subject=subject.name,
        verdict=verdict,
        findings=tuple(findings),
        lengths=batch.boundaries.document_lengths,
        influence=measured.influence,
        gradients=None if measured.gradients is None else measured.gradients.across,
        gradients_measured=None if measured.gradients is None else measured.gradients.measured,
        equivalence=None if solo is None else solo.logits,
        gradient_equivalence=None if solo is None else solo.gradients,
        noise_floor=measured.noise_floor,
        instruments=tuple(measured.ran),
        not_run=tuple(measured.not_run),
        lengthening=None if measured.lengthening is None else measured.lengthening.change,
        causality=measured.causality,
        targets=None if measured.targets is None else measured.targets.reading,
        weights=None if measured.weights is None else measured.weights.readings(),
        layers=read_layers(subject, batch) if verdict == "leak" else None,
        note=note,
        scope=scope_of(verdict) if subject.as_is else None,
    )


def layers(
    model: nn.Module | Forward,
    *,
    documents: Sequence[Mapping[str, Any]] | None = None,
    lengths: Sequence[int] = (11, 13, 6, 1),
    seed: int = 0,
) -> tuple[LayerReading, ...]:
    """What each token mixer of a model carries from one packed document into another, by itself.

    Args:
        model: as for ``probe``.
        documents: what to pack; by default random tokens of the given ``lengths``. At most 512 tokens are used.
        lengths: tokens of each default document.
        seed: of the default documents and of all random choices.

    Returns:
        One reading for each innermost module that mixes tokens, in the order in which they run. Functions that mix
        tokens outside of modules have no reading.

    Raises:
        ProbeError: it is no model, too few documents were given, or it fails on packed ones (``UnsupportedError``).

    Example:
        >>> import transformers, hermetic
        >>> from hermetic.probe import layers
        >>> config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1)
        >>> model = hermetic.seal(transformers.LlamaForCausalLM(config))
        >>> [(layer.name, layer.kind, layer.influence, layer.reach) for layer in layers(model)]
        [('model.layers.0.self_attn', 'LlamaAttention', 0.0, 0)]
    """
    subject = subject_from(model, seed=seed)
    batch = packed_documents(subject, documents, lengths)
    with packed_run(subject.name):
        subject.row(batch)  # a run that breaks off would be read as one of few modules
        return read_layers(subject, batch)
