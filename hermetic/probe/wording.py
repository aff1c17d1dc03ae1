"""A report in sentences: the verdict, and what each instrument read. The terminal and the page say the same."""

from typing import TYPE_CHECKING

import torch

from hermetic.markup import counted, number
from hermetic.seal.measure import FLOOR_FACTOR

if TYPE_CHECKING:
    from hermetic.probe.report import Finding, LeakReport


_SINGULAR = {"ones": "one", "edges": "edge", "arguments": "argument", "seams": "seam", "labels": "label"}
"""Units of counts."""


def size_of(finding: "Finding") -> str:
    """Size and unit of a finding; counts are whole: ``31 ones``, ``1 one``, ``0.0012 logits``."""
    if not finding.size.is_integer() or finding.size >= 1e9:
        return f"{finding.size:.2g} {finding.unit}"
    unit = _SINGULAR.get(finding.unit, finding.unit) if finding.size == 1.0 else finding.unit
    return f"{finding.size:.0f} {unit}"


def scope_of(verdict: str) -> str:
    """Which call a verdict on a model is about that is not sealed."""
    how = "Probed as it is, not sealed, and called with positions that restart, no mask and no cache."
    if verdict == "leak":
        return how
    return f"{how} Called otherwise it may leak: seal it (--seal, or hermetic.seal), or probe your own call in Python."


def verdict_in_words(report: "LeakReport") -> str:
    """The verdict as a title; where it holds for one call, the title says that and no more."""
    if report.verdict == "sealed" and report.scope is not None:
        return f"no {'leak' if _measures_isolation(report) else 'finding'} in this call"
    return report.verdict.replace("_", " ")


def _measures_isolation(report: "LeakReport") -> bool:
    return bool({"swap", "gradient"} & set(report.instruments))


def headline(report: "LeakReport") -> str:
    """The verdict in a sentence, claiming no more than was measured."""
    isolated = _measures_isolation(report)
    apart = "no document reaches another" if isolated else "whether documents reach each other was not measured"
    what = report.findings[0].what if report.findings else report.verdict
    if report.verdict == "sealed":
        alone = ", and each is computed as if it were alone" if isolated and "solo" in report.instruments else ""
        call = "" if report.scope is None else "in this call "
        return _sentence(f"{call}{apart}{alone}" if isolated else f"{call}nothing was found, but {apart}")
    if report.verdict == "leak":
        return _sentence(what)
    if report.verdict == "unsupported":
        return "It runs a document alone and fails on packed ones."
    return _sentence(f"{apart}, but {what}" if isolated else f"{what}; {apart}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def readings(report: "LeakReport") -> tuple[tuple[str, str], ...]:
    """Each instrument that has a reading, and what it read."""
    found = {
        "swap": None if report.influence is None else _swapped(report, report.influence),
        "gradient": None if report.gradients is None else _gradients(report, report.gradients),
        "solo": None if report.equivalence is None else _alone(report, report.equivalence),
        "length-change": None if report.lengthening is None else _lengthened(report, report.lengthening),
        "causality": None if report.causality is None else _earlier(report.causality),
        "targets": _targets(report),
        "weights": _weights(report),
    }
    return tuple((name, read) for name, read in found.items() if read is not None)


def measured_pairs(report: "LeakReport", matrix: torch.Tensor) -> torch.Tensor:
    """``[D, D]`` booleans: the pairs of two different documents for which an entry of ``matrix`` says something."""
    apart = ~torch.eye(len(matrix), dtype=torch.bool)
    if matrix is report.gradients and report.gradients_measured is not None:
        return apart & report.gradients_measured
    return apart


def _pairs(report: "LeakReport", matrix: torch.Tensor, unit: str) -> str:
    """What a ``[D, D]`` matrix says of the pairs of different documents."""
    measured = measured_pairs(report, matrix)
    values, pairs = matrix[measured], len(matrix) * (len(matrix) - 1)
    of_all = "" if values.numel() == pairs else f" that were measured, of {pairs}"
    crossing = int((values != 0.0).sum())
    if crossing == 0:
        return f"exactly 0 for all {values.numel()} pairs of documents{of_all}"
    return f"up to {number(float(values.max()))} {unit}, in {crossing} of {values.numel()} pairs of documents{of_all}"


def _swapped(report: "LeakReport", influence: torch.Tensor) -> str:
    return f"a document moves when another is replaced: {_pairs(report, influence, 'logits')}"


def _gradients(report: "LeakReport", gradients: torch.Tensor) -> str:
    return f"gradient of a document at another: {_pairs(report, gradients, 'logits per embedding')}"


def floor_of(report: "LeakReport") -> str:
    """The noise floor in brackets, or nothing where none was measured."""
    return "" if report.noise_floor is None else f" (noise floor {number(report.noise_floor)})"


def is_beyond_noise(report: "LeakReport", value: float) -> bool:
    """Whether a difference of logits is more than rounding; without a noise floor, whether there is any."""
    return value > FLOOR_FACTOR * (report.noise_floor or 0.0)


def _alone(report: "LeakReport", equivalence: torch.Tensor) -> str:
    line = f"packed against alone: logits differ by at most {number(float(equivalence.max()))}{floor_of(report)}"
    if report.gradient_equivalence is not None:
        line += f", parameter gradients by {number(report.gradient_equivalence)} relative"
    return line


def _lengthened(report: "LeakReport", lengthening: torch.Tensor) -> str:
    worst = number(float(lengthening.max()))
    return f"a document moves when another gets longer: at most {worst} logits{floor_of(report)}"


def _earlier(causality: torch.Tensor) -> str:
    worst = float(causality.max())
    return (
        f"earlier tokens move when the last one changes: {'exactly 0' if worst == 0.0 else number(worst) + ' logits'}"
    )


def _targets(report: "LeakReport") -> str | None:
    if report.targets is None:
        return None
    expected, trained, across = sum(report.targets.expected), report.targets.trained, report.targets.across
    known = "trained tokens are not known" if trained is None else f"{sum(trained)} of {expected} tokens are trained"
    verb = "is" if len(across) == 1 else "are"
    return f"{known}; {counted(len(across), 'document')} {verb} trained to predict another's token"


def _weights(report: "LeakReport") -> str | None:
    if report.weights is None:
        return None
    parts = ", ".join(f"{name} {number(value)}" for name, value in report.weights)
    return f"relative difference between losses that should be one: {parts}"


def reach_in_words(reach: int | None) -> str:
    """How many tokens behind a seam a layer moves."""
    if reach is None:
        return "all tokens"
    return "nothing" if reach == 0 else f"{reach} token{'s' if reach > 1 else ''}"
