"""From numbers to findings: a code, a size, a place, a reason and a way out."""

from typing import TYPE_CHECKING

import torch

from hermetic.batch import PackedBatch
from hermetic.errors import ProbeError
from hermetic.probe.causes import causes
from hermetic.probe.instruments import Equivalence, among_equals
from hermetic.probe.lengthen import Lengthening
from hermetic.probe.locate import NOWHERE, Place, distorted_place, leak_place
from hermetic.probe.observe import Observation, restarts
from hermetic.probe.report import Finding
from hermetic.probe.subject import Subject
from hermetic.probe.targets import Targets
from hermetic.probe.weights import Weights
from hermetic.seal.measure import FLOOR_FACTOR

if TYPE_CHECKING:
    from hermetic.probe.probe import Measurements

_SEAL = "Call hermetic.seal(model), which isolates its documents or names the module that it cannot isolate"

_KEEP_SHORT = (
    "Keep documents below the length at which the model rescales positions (dynamic NTK, longrope), or call "
    "hermetic.seal(model); look for whatever the row shares, such as noise scaled by its length or experts' capacity"
)


def leak_findings(subject: Subject, batch: PackedBatch, measured: "Measurements") -> list[Finding]:
    """Who reaches whom, through which module and in which way, and what in the call lets it."""
    reach, unit = _reach(measured)
    reached, source = divmod(int(torch.argmax(reach)), reach.shape[1])
    place = leak_place(subject, batch, source)
    code, how, way_out = _kind(place)
    leak = Finding(
        code=code,
        what=f"document {source} reaches document {reached}{how}",
        size=float(reach[reached, source]),
        unit=unit,
        where=place.where,
        way_out=way_out,
    )
    beside = causes(
        subject,
        batch,
        measured.observation,
        pair=(reached, source),
        noise_floor=measured.noise_floor,
        in_a_module=place.where != NOWHERE,
    )
    return [leak, *beside]


def _kind(place: Place) -> tuple[str, str, str]:
    """Code, what is added to who reaches whom, and the way out."""
    if place.kind == "recurrence":
        return "HM301", " through a state that is not reset at the seam", _SEAL
    if place.kind == "convolution":
        assert place.reach is not None  # noqa: S101 - a finite reach is what makes it a convolution
        return "HM302", f" through a convolution over {place.reach + 1} tokens", _SEAL
    if place.kind == "boundary":
        side = "the token before" if place.depth == 1 else "the token behind"
        fix = "Count cu_seqlens and masks again: starts at 0, each edge is the first token of the next document"
        return "HM104", f" through {side} the seam alone: a boundary is off by one", fix
    return "HM100", "", _SEAL


def _reach(measured: "Measurements") -> tuple[torch.Tensor, str]:
    """The matrix that shows the leak best, and its unit: a moved logit says more than a gradient."""
    if measured.influence is not None and float(measured.influence.max()) > 0.0:
        return measured.influence, "logits"
    assert measured.gradients is not None  # noqa: S101 - a leak was found, so one of the two found it
    return measured.gradients.across.clone().fill_diagonal_(0.0), "gradient"


def position_findings(observation: Observation | None, batch: PackedBatch) -> list[Finding]:
    """Positions that do not restart, as a module of the model was given them."""
    if observation is None or observation.positions is None or restarts(observation.positions, batch):
        return []
    expected = batch.boundaries.position_ids
    shifted = observation.positions - observation.positions[0]
    wrong = int((shifted != expected).sum())
    return [
        Finding(
            code="HM201",
            what="positions not reset: they do not start anew with each document",
            size=float(wrong),
            unit=f"of {expected.numel()} tokens",
            where="position_ids",
            way_out="Pass batch.model_inputs(), or leave position_ids out of a call to a sealed model",
        )
    ]


def equivalence_findings(equivalence: Equivalence | None) -> list[Finding]:
    """Documents that packing changes although none reaches another."""
    if equivalence is None:
        return []
    found = []
    worst = int(torch.argmax(equivalence.logits))
    if float(equivalence.logits[worst]) > FLOOR_FACTOR * equivalence.noise_floor:
        found.append(
            Finding(
                code="HM202",
                what="a packed document's logits are not those of the document alone",
                size=float(equivalence.logits[worst]),
                unit=f"logits (noise floor {equivalence.noise_floor:.1e})",
                where=f"document {worst}",
                way_out="Check positions, windows and chunk borders: each must count from the document's start",
            )
        )
    gradients, floor = equivalence.gradients, equivalence.gradient_floor
    if gradients is not None and floor is not None and gradients > FLOOR_FACTOR * floor:
        found.append(
            Finding(
                code="HM203",
                what="parameter gradients of the packed batch are not those of its documents alone",
                size=gradients,
                unit=f"relative (noise floor {floor:.1e})",
                where="parameter gradients",
                way_out="Suspect the backward pass of a kernel; compare with hermetic.seal(model, backend='reference')",
            )
        )
    return found


def length_findings(subject: Subject, batch: PackedBatch, measured: "Measurements") -> list[Finding]:
    """A document that changes when another one gets longer, or beside neighbours of other lengths than its own."""
    found = _lengthened(measured.lengthening) or _among_others(subject, batch, measured.equivalence)
    return [] if found is None else [found]


def _lengthened(lengthening: Lengthening | None) -> Finding | None:
    if lengthening is None:
        return None
    worst = int(torch.argmax(lengthening.change))
    difference = float(lengthening.change[worst])
    if difference <= FLOOR_FACTOR * lengthening.noise_floor:
        return None
    return Finding(
        code="HM204",
        what="a document changes when another one of the row gets longer",
        size=difference,
        unit=f"logits (noise floor {lengthening.noise_floor:.1e})",
        where=f"document {worst}",
        way_out=_KEEP_SHORT,
    )


def _among_others(subject: Subject, batch: PackedBatch, equivalence: Equivalence | None) -> Finding | None:
    if equivalence is None:
        return None
    worst = int(torch.argmax(equivalence.logits))
    difference, noise = float(equivalence.logits[worst]), FLOOR_FACTOR * equivalence.noise_floor
    if difference <= noise or among_equals(subject, batch, worst) > noise:
        return None
    return Finding(
        code="HM204",
        what="a document is as it is alone among copies of itself, and not among these neighbours",
        size=difference,
        unit=f"logits (noise floor {equivalence.noise_floor:.1e})",
        where=f"document {worst}",
        way_out=_KEEP_SHORT,
    )


def causality_finding(size: float, unit: str, where: str) -> Finding:
    """A token that sees later tokens of its own document."""
    return Finding(
        code="HM105",
        what="a token sees later tokens of its own document",
        size=size,
        unit=unit,
        where=where,
        way_out="Check is_causal and the attention implementation of the model",
    )


def unsupported_finding(error: ProbeError) -> Finding:
    """The subject cannot run packed documents at all."""
    return Finding(
        code="HM601",
        what=str(error),
        size=1.0,
        unit="failure",
        where="forward",
        way_out="Install the kernels it asks for, seal the model, or train on padded rows",
    )


def context_finding(subject: Subject, batch: PackedBatch, equivalence: Equivalence | None) -> list[Finding]:
    """A token mixer that gives a document other outputs than alone, on the same inputs."""
    if equivalence is None:
        return []
    worst = int(torch.argmax(equivalence.logits))
    if float(equivalence.logits[worst]) <= FLOOR_FACTOR * equivalence.noise_floor:
        return []
    place = distorted_place(subject, batch, worst)
    if place is None:
        return []
    where, token = place
    return [
        Finding(
            code="HM205",
            what=f"a document's own context is cut or widened from its token {token} on",
            size=float(equivalence.logits[worst]),
            unit=f"logits (noise floor {equivalence.noise_floor:.1e})",
            where=f"{where}, document {worst}",
            way_out="Count windows and chunk borders from the document's first token, or call hermetic.seal(model)",
        )
    ]


def target_leaks(found: Targets | None) -> list[Finding]:
    """Tokens that are trained to predict a token of another document."""
    if found is None or not found.reading.across:
        return []
    across = found.reading.across
    return [
        Finding(
            code="HM401",
            what=f"document {across[0]} is trained to predict a token of the next document",
            size=float(len(across)),
            unit="seams",
            where="labels",
            way_out="Put -100 on the first token of every document, as hermetic.collate does",
        )
    ]


def target_findings(found: Targets | None) -> list[Finding]:
    """Supervised tokens that are not trained, and labels that are shifted twice or not at all."""
    if found is None:
        return []
    if found.shift in {0, 2}:
        what = (
            "the labels were shifted before, and the loss shifts them again" if found.shift else "nothing shifts them"
        )
        return [
            Finding(
                code="HM403",
                what=f"each token is trained to predict the one {found.shift} places on: {what}",
                size=float(found.shift or 0),
                unit="places on, expected 1",
                where="labels",
                way_out="Pass labels as input_ids has the tokens (unshifted), and let the loss shift them once",
            )
        ]
    trained = found.reading.trained
    lost = [
        0 if trained is None else max(0, e - t) for e, t in zip(found.reading.expected, trained or (), strict=False)
    ]
    if not any(lost):
        return []
    worst = max(range(len(lost)), key=lambda document: lost[document])
    return [
        Finding(
            code="HM402",
            what="supervised tokens carry no loss",
            size=float(sum(lost)),
            unit=f"of {sum(found.reading.expected)} tokens",
            where=f"document {worst}",
            way_out="Check what masks labels: each supervised token but a document's first has to be predicted",
        )
    ]


def weight_findings(found: Weights | None) -> list[Finding]:
    """Losses that depend on packing or accumulation."""
    if found is None:
        return []
    findings = []
    if found.packed > found.threshold:
        findings.append(_router_finding(found) if _is_router(found) else _packing_finding(found))
    elif found.accumulated is not None and found.accumulated > found.threshold:
        findings.append(
            Finding(
                code="HM502",
                what="micro-batches that are told the step's count of supervised tokens do not add up to the step",
                size=found.accumulated,
                unit=f"relative (noise floor {found.noise_floor:.1e})",
                where="loss",
                way_out="Divide summed token losses by num_items_in_batch: hermetic.packed_loss(..., denominator=...)",
            )
        )
    return findings


def _is_router(found: Weights) -> bool:
    return found.router is not None and found.packed - found.router <= found.threshold


def _router_finding(found: Weights) -> Finding:
    return Finding(
        code="HM503",
        what="the router's auxiliary loss is taken over the whole row, not over each document",
        size=found.packed,
        unit="relative, of the loss",
        where="aux_loss",
        way_out="No document reaches another. Keep it if experts are to be balanced over rows, or turn "
        "output_router_logits off and add a balance loss of each document",
    )


def _packing_finding(found: Weights) -> Finding:
    return Finding(
        code="HM501",
        what="the loss depends on how documents were packed: it is no mean over tokens or documents, and no sum",
        size=found.packed,
        unit=f"relative (noise floor {found.noise_floor:.1e})",
        where="loss",
        way_out="Divide the sum of token losses by the supervised tokens of the whole step: hermetic.packed_loss",
    )
