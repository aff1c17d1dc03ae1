"""From numbers to findings: a code, a size, a place, a reason and a way out."""

from typing import TYPE_CHECKING

import torch

from hermetic.batch import PackedBatch
from hermetic.errors import ProbeError
from hermetic.probe.instruments import Equivalence, among_equals, with_document_replaced
from hermetic.probe.observe import Observation, restarts
from hermetic.probe.report import Finding
from hermetic.probe.subject import Subject
from hermetic.seal.measure import FLOOR_FACTOR, first_leaking_module

if TYPE_CHECKING:
    from hermetic.probe.probe import Measurements

_SEAL = "Call hermetic.seal(model), which isolates its documents or names the module that it cannot isolate"


def leak_findings(subject: Subject, batch: PackedBatch, measured: "Measurements") -> list[Finding]:
    """Who reaches whom, through which module, and what in the call lets it."""
    reach, unit = _reach(measured)
    reached, source = divmod(int(torch.argmax(reach)), reach.shape[1])
    leak = Finding(
        code="HM100",
        what=f"document {source} reaches document {reached}",
        size=float(reach[reached, source]),
        unit=unit,
        where=_leaking_module(subject, batch, source),
        way_out=_SEAL,
    )
    return [leak, *_causes(measured.observation)]


def _reach(measured: "Measurements") -> tuple[torch.Tensor, str]:
    """The matrix that shows the leak best, and its unit: a moved logit says more than a gradient."""
    if measured.influence is not None and float(measured.influence.max()) > 0.0:
        return measured.influence, "logits"
    assert measured.gradients is not None  # noqa: S101 - a leak was found, so one of the two found it
    return measured.gradients.across.clone().fill_diagonal_(0.0), "gradient"


def _leaking_module(subject: Subject, batch: PackedBatch, source: int) -> str:
    replaced = with_document_replaced(batch, source)

    def run(ids: torch.Tensor) -> torch.Tensor:
        same = torch.equal(ids.cpu(), batch.input_ids.cpu())
        return subject.logits(batch if same else replaced)

    for module in subject.modules:
        found = first_leaking_module(module, run, batch.input_ids, replaced.input_ids)
        if found is not None:
            return f"{found[0] or type(module).__name__} ({found[1]})"
    return "outside of the modules that were seen"


def _causes(observation: Observation | None) -> list[Finding]:
    """What in the call turned isolation off, as far as the outermost module's arguments tell."""
    if observation is None:
        return []
    found = []
    mask = observation.attention_mask
    if mask is not None and bool((mask > 1).any()):
        found.append(
            Finding(
                code="HM103",
                what="document numbers in a 2-D attention_mask: transformers makes booleans of them",
                size=float(mask.max()),
                unit="largest number",
                where="attention_mask",
                way_out="Pass document_ids to a sealed model",
            )
        )
    elif mask is not None and bool(mask.bool().all()):
        found.append(
            Finding(
                code="HM101",
                what="an all-ones attention_mask: transformers then looks for no packed documents",
                size=float(mask.numel()),
                unit="ones",
                where="attention_mask",
                way_out="Leave it out, or call hermetic.seal(model)",
            )
        )
    if observation.caches:
        found.append(
            Finding(
                code="HM102",
                what="a cache: transformers then looks for no packed documents",
                size=1.0,
                unit="cache",
                where="use_cache",
                way_out="Pass use_cache=False, or call hermetic.seal(model)",
            )
        )
    return found


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


def length_findings(subject: Subject, batch: PackedBatch, equivalence: Equivalence | None) -> list[Finding]:
    """A document that is as it is alone among copies of itself, and not among neighbours of other lengths."""
    if equivalence is None:
        return []
    worst = int(torch.argmax(equivalence.logits))
    difference, noise = float(equivalence.logits[worst]), FLOOR_FACTOR * equivalence.noise_floor
    if difference <= noise or among_equals(subject, batch, worst) > noise:
        return []
    return [
        Finding(
            code="HM204",
            what="a document is as it is alone among copies of itself, and not among these neighbours",
            size=difference,
            unit=f"logits (noise floor {equivalence.noise_floor:.1e})",
            where=f"document {worst}",
            way_out="Keep documents below the length at which the model rescales positions (dynamic NTK, longrope); "
            "look for whatever the row shares, such as the capacity of experts",
        )
    ]


def causality_finding(size: float) -> Finding:
    """A token that sees later tokens of its own document."""
    return Finding(
        code="HM105",
        what="a token sees later tokens of its own document",
        size=size,
        unit="gradient",
        where="attention",
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
