"""From measurements to a verdict: what each reading means in the light of the others."""

from typing import TYPE_CHECKING

import torch

from hermetic.batch import PackedBatch
from hermetic.probe import instruments as measuring
from hermetic.probe.findings import (
    causality_finding,
    context_finding,
    equivalence_findings,
    leak_findings,
    length_findings,
    position_findings,
    target_findings,
    target_leaks,
    weight_findings,
)
from hermetic.probe.report import Finding, Verdict
from hermetic.probe.sample import is_small
from hermetic.probe.subject import Subject
from hermetic.seal.measure import FLOOR_FACTOR

if TYPE_CHECKING:
    from hermetic.probe.probe import Measurements


def judge(subject: Subject, batch: PackedBatch, measured: "Measurements") -> tuple[Verdict, list[Finding]]:
    """The verdict on a subject and what it rests on; instruments may run again to tell who reaches whom."""
    positions = position_findings(measured.observation, batch)
    across = target_leaks(measured.targets)
    if _may_hide_a_leak(batch, measured):
        measured.gradients = measuring.gradient(subject, batch, singly=True)
    if _leaks(subject, batch, measured):
        _take_singly(subject, batch, measured)
        return "leak", [*leak_findings(subject, batch, measured), *positions, *across]
    if across:
        return "leak", [*across, *target_findings(measured.targets), *positions]
    future = _future(subject, batch, measured)
    if future is not None:
        return "not_causal", [future, *positions]
    context = [] if positions else context_finding(subject, batch, measured.equivalence)
    lengths = [] if positions or context else length_findings(subject, batch, measured)
    found = [*lengths, *positions, *context, *equivalence_findings(measured.equivalence)]
    weights_differ = [] if found else weight_findings(measured.weights)  # other logits have another loss anyway
    found += [*target_findings(measured.targets), *weights_differ]
    if not found:
        return "sealed", []
    return "row_length_dependent" if lengths else "distortion", found


def _leaks(subject: Subject, batch: PackedBatch, measured: "Measurements") -> bool:
    """A gradient that crosses a seam is a leak, and so is a bit that a swap moves.

    With one exception: where no gradient crosses and a swap changes the shapes of operations, as in mixtures of
    experts, it moves last bits, and counts beyond the noise floor only.
    """
    if measured.gradients is not None and bool(measured.gradients.across.clone().fill_diagonal_(0.0).any()):
        return True
    moved = 0.0 if measured.influence is None else float(measured.influence.max())
    if moved == 0.0 or measured.gradients is None or measured.noise_floor is None:
        return moved != 0.0
    return not _is_rounding(subject, batch, moved, measured.noise_floor)


def _may_hide_a_leak(batch: PackedBatch, measured: "Measurements") -> bool:
    """A gradient from later tokens, or a document unlike itself alone, may come from a pair that was not told apart."""
    if measured.gradients is None or not _in_groups(batch):
        return False
    solo = measured.equivalence
    distorted = solo is not None and float(solo.logits.max()) > FLOOR_FACTOR * solo.noise_floor
    return distorted or measured.gradients.future != 0.0


def _in_groups(batch: PackedBatch) -> bool:
    """Whether documents were asked in groups."""
    count = batch.boundaries.num_documents
    return count > 4 or (count > 2 and not is_small(batch))


def _is_rounding(subject: Subject, batch: PackedBatch, moved: float, floor: float) -> bool:
    floor = measuring.floor_for(subject, batch, moved, floor)
    return moved <= FLOOR_FACTOR * floor and measuring.shapes_follow_content(subject, batch)


def _take_singly(subject: Subject, batch: PackedBatch, measured: "Measurements") -> None:
    """Once something is found, say which document reaches which: no longer in groups."""
    if not _in_groups(batch):
        return
    if measured.influence is not None and bool(measured.influence.any()):
        measured.influence = measuring.swap(subject, batch, singly=True)
    if measured.gradients is not None:
        measured.gradients = measuring.gradient(subject, batch, singly=True)


def _future(subject: Subject, batch: PackedBatch, measured: "Measurements") -> Finding | None:
    """The finding of a token that sees its own document's future, by gradients or by bits."""
    if measured.gradients is not None and measured.gradients.future != 0.0:
        return causality_finding(measured.gradients.future, "gradient", "attention")
    if measured.causality is None or not bool(measured.causality.any()):
        return None
    if not {"swap", "gradient"} & set(measured.ran):  # then another document's last token may be what moved it
        measured.causality = measuring.causality(subject, batch, singly=True)
    worst = int(torch.argmax(measured.causality))
    moved = float(measured.causality[worst])
    floor = measured.noise_floor
    if floor is None:
        floor = measuring.floor_of(subject, batch)
    if moved == 0.0 or _is_rounding(subject, batch, moved, floor):
        return None
    return causality_finding(moved, "logits", f"document {worst}")
