"""What a doctor found about one training command: plain data that travels from its process to the one that prints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from hermetic.probe import Finding, LayerReading, LeakReport, TargetReading

if TYPE_CHECKING:
    from rich.console import Group

Packing = Literal["packed", "one_document_per_row", "no_boundaries", "contradictory"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Diagnosis:
    """The first training batch of a command, and what it does in the model that it was made for."""

    model: str
    """Class of the module that was called."""
    packing: Packing
    rows: int
    slots: int
    """Tokens per row, padding included."""
    documents: tuple[int, ...]
    """Real tokens of each document; of each row where nothing says more."""
    source: str | None
    """The argument that says where documents start."""
    inferred: bool
    """The source is made for something else: positions, a mask."""
    findings: tuple[Finding, ...]
    """All of them, those of the report included."""
    notes: tuple[str, ...]
    report: LeakReport | None
    """What the probe measured; ``None`` where there is no neighbour to reach."""

    @property
    def verdict(self) -> str:
        """The probe's verdict, or the kind of packing where nothing was probed."""
        return self.packing if self.report is None else self.report.verdict

    @property
    def sound(self) -> bool:
        """Nothing is wrong as far as was seen: each document trains as if it were alone."""
        return not self.findings and (self.report is None or self.report.verdict == "sealed")

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {
            "model": self.model,
            "sound": self.sound,
            "verdict": self.verdict,
            "packing": self.packing,
            "rows": self.rows,
            "slots": self.slots,
            "documents": list(self.documents),
            "source": self.source,
            "inferred": self.inferred,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": list(self.notes),
            "report": None if self.report is None else self.report.to_dict(),
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Diagnosis":
        """The inverse of ``to_dict``."""
        return Diagnosis(
            model=plain["model"],
            packing=plain["packing"],
            rows=plain["rows"],
            slots=plain["slots"],
            documents=tuple(plain["documents"]),
            source=plain["source"],
            inferred=plain["inferred"],
            findings=tuple(Finding(**finding) for finding in plain["findings"]),
            notes=tuple(plain["notes"]),
            report=None if plain["report"] is None else report_from_dict(plain["report"]),
        )

    def __rich__(self) -> "Group":
        from hermetic.doctor.render import render

        return render(self)


def report_from_dict(plain: Mapping[str, Any]) -> LeakReport:
    """The inverse of ``LeakReport.to_dict``."""
    return LeakReport(
        subject=plain["subject"],
        verdict=plain["verdict"],
        findings=tuple(Finding(**finding) for finding in plain["findings"]),
        lengths=tuple(plain["lengths"]),
        influence=_matrix(plain["influence"]),
        gradients=_matrix(plain["gradients"]),
        equivalence=_matrix(plain["equivalence"]),
        gradient_equivalence=plain["gradient_equivalence"],
        noise_floor=plain["noise_floor"],
        instruments=tuple(plain["instruments"]),
        not_run=tuple(plain["not_run"].items()),
        lengthening=_matrix(plain["lengthening"]),
        causality=_matrix(plain["causality"]),
        targets=None if plain["targets"] is None else _targets(plain["targets"]),
        weights=None if plain["weights"] is None else tuple(plain["weights"].items()),
        layers=None if plain["layers"] is None else tuple(LayerReading(**layer) for layer in plain["layers"]),
        note=tuple(plain["note"]),
    )


def _matrix(numbers: list[Any] | None) -> torch.Tensor | None:
    return None if numbers is None else torch.tensor(numbers, dtype=torch.float64)


def _targets(plain: Mapping[str, Any]) -> TargetReading:
    return TargetReading(**{name: None if counts is None else tuple(counts) for name, counts in plain.items()})
