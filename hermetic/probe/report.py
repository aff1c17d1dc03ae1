"""What a probe found: plain data, a verdict, and three ways to show it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from hermetic.errors import LeakError, ProbeError
from hermetic.files import write_text

if TYPE_CHECKING:
    from rich.console import Group

Verdict = Literal["sealed", "leak", "distortion", "row_length_dependent", "not_causal", "unsupported"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, how large, where, and the way out."""

    code: str
    """Stable: HM1xx attention, HM2xx positions and equivalence, HM3xx state, HM4xx targets, HM5xx weights, HM6xx what
    could not be measured."""
    what: str
    size: float
    unit: str
    where: str
    way_out: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerReading:
    """What one token mixer carries from one document into another, by itself."""

    name: str
    """Of the module inside the model."""
    kind: str
    """Its class."""
    influence: float
    """Largest gradient of a document's outputs at another document's inputs; 0.0 when none crosses."""
    reach: int | None
    """How many tokens behind a seam move when what lies before it changes; ``None``: all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetReading:
    """Which tokens the loss trains to predict a next one, counted by document."""

    expected: tuple[int, ...]
    """Supervised tokens of each document."""
    trained: tuple[int, ...] | None
    """Tokens of each document that are trained to predict one; ``None`` when the loss does not come from logits."""
    across: tuple[int, ...]
    """Documents of which a token is trained to predict one of another document."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LeakReport:
    """The result of ``probe``. Numbers that an instrument did not measure are ``None``."""

    subject: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    lengths: tuple[int, ...]
    """Tokens of each probed document."""
    influence: torch.Tensor | None
    """``[D, D]``: how far document i's logits move when document j is swapped; the diagonal is 0."""
    gradients: torch.Tensor | None
    """``[D, D]``: largest gradient of document i's logits at document j's embeddings."""
    gradients_measured: torch.Tensor | None = None
    """``[D, D]`` booleans: which entries of ``gradients`` were measured; others are 0.0 and say nothing. Of up to four
    documents, and wherever something leaks, all are; of more, those of even at odd and of odd at even documents."""
    equivalence: torch.Tensor | None
    """``[D]``: largest logit difference between packed and alone."""
    gradient_equivalence: float | None
    """Relative difference of parameter gradients between packed and alone."""
    noise_floor: float | None
    """Largest logit difference that rounding alone may make on this subject, batch and dtype."""
    instruments: tuple[str, ...]
    """The instruments that ran."""
    not_run: tuple[tuple[str, str], ...]
    """The instruments that could not run here, and why."""
    lengthening: torch.Tensor | None = None
    """``[D]``: how far document i's logits move when another document of the row is made longer."""
    causality: torch.Tensor | None = None
    """``[D]``: how far document i's earlier logits move when its last token changes."""
    targets: TargetReading | None = None
    """Which tokens carry loss, for a subject that returns one."""
    weights: tuple[tuple[str, float], ...] | None = None
    """Relative differences between losses that should be one: ``packed``, ``accumulated``, ``router``."""
    layers: tuple[LayerReading, ...] | None = None
    """The token mixers, in the order in which they run; read where something leaks, and by ``layers``."""
    reach: torch.Tensor | None = None
    """``[T, T]``: largest gradient of token t's logits at token s's embeddings, from ``token_reach``; not probed."""
    note: tuple[str, ...] = ()
    """What has to be known to read the numbers, such as that boundaries were inferred from position_ids."""
    scope: str | None = None
    """Which call the verdict is about, where a model that is not sealed was probed as it is; another call of it may
    come to another verdict. ``None`` for a sealed model, and for a callable, which makes the call itself."""

    def raise_for_leaks(self) -> None:
        """Raise unless isolation was measured and holds.

        Raises:
            LeakError: the verdict is ``leak``.
            ProbeError: the verdict is ``unsupported``, or neither swap nor gradient ran.
        """
        if self.verdict == "leak":
            raise LeakError(self.summary())
        if self.verdict == "unsupported":
            raise ProbeError(self.summary())
        if not {"swap", "gradient"} & set(self.instruments):
            raise ProbeError(
                f"{self.subject}: isolation was not measured, for only {', '.join(self.instruments)} ran; expected "
                "swap or gradient. Probe with instruments=None"
            )

    def summary(self) -> str:
        """Verdict and findings in one line."""
        found = "; ".join(f"{f.code} {f.what} ({f.where}). {f.way_out}" for f in self.findings)
        return f"{self.subject}: verdict {self.verdict!r}. {found}"

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
            "lengths": list(self.lengths),
            "influence": _plain(self.influence),
            "gradients": _plain(self.gradients),
            "gradients_measured": _plain(self.gradients_measured),
            "equivalence": _plain(self.equivalence),
            "gradient_equivalence": self.gradient_equivalence,
            "noise_floor": self.noise_floor,
            "instruments": list(self.instruments),
            "not_run": dict(self.not_run),
            "lengthening": _plain(self.lengthening),
            "causality": _plain(self.causality),
            "targets": None if self.targets is None else asdict(self.targets),
            "weights": None if self.weights is None else dict(self.weights),
            "layers": None if self.layers is None else [asdict(layer) for layer in self.layers],
            "reach": _plain(self.reach),
            "note": list(self.note),
            "scope": self.scope,
        }

    def to_json(self) -> str:
        """The report as one JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_html(self, path: str | Path) -> None:
        """Write the report as one page that needs no network and no script, atomically; all text is escaped.

        Raises:
            ProbeError: ``reach`` is not of the report's own documents, or nothing can be written to ``path``.
        """
        from hermetic.probe.page import page

        try:
            write_text(Path(path), page(self))
        except OSError as error:
            raise ProbeError(
                f"the report cannot be written to {path} ({error.strerror}); expected the name of a file in a folder "
                "that exists"
            ) from error

    def __rich__(self) -> "Group":
        from hermetic.probe.render import render

        return render(self)


def _plain(matrix: torch.Tensor | None) -> Any:
    return None if matrix is None else matrix.tolist()
