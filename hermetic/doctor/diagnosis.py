"""What a doctor found about one training command: plain data that travels from its process to the one that prints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch

from hermetic.probe import Finding, LeakReport

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
        found: Diagnosis = _typed(Diagnosis, plain)
        return found

    def __rich__(self) -> "Group":
        from hermetic.doctor.render import render

        return render(self)


def _typed(kind: Any, plain: Any) -> Any:
    """Plain lists, numbers and mappings as a value of this annotated type: what ``to_dict`` made of it, undone."""
    (kind, *_) = [one for one in get_args(kind) if one is not NoneType] if isinstance(kind, UnionType) else [kind]
    if plain is None:
        return None
    if kind is torch.Tensor:
        return torch.from_numpy(np.array(plain))  # float64 or bool, as the numbers are
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast("Any", kind)
        return make(**{one.name: _typed(hints[one.name], plain[one.name]) for one in fields(kind)})
    if get_origin(kind) is tuple:
        members = plain.items() if isinstance(plain, Mapping) else plain
        return tuple(_typed(get_args(kind)[0], one) for one in members)
    return tuple(plain) if isinstance(plain, list) else plain
