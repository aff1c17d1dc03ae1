"""What an audit found in words, for the terminal and for the page."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from hermetic.audit.finding import AuditFinding, AuditReport, Certainty

CERTAINTIES: Final[tuple[Certainty, ...]] = ("certain", "likely", "depends on version")
"""The surest first."""

NONE_SEEN: Final = "none seen"
"""The packing of a script in which none was recognised."""

UNJUDGED: Final = "no packing was seen, so there was nothing to judge"
TO_THE_DOCTOR: Final = "hermetic doctor -- COMMAND runs it up to its first batch and looks at that"


def judged(report: AuditReport) -> bool:
    """Whether there was anything to judge: of a script, packing, boundaries, or a finding, even if it is ignored.

    Example:
        >>> facts = (("packing", "none seen"),)
        >>> judged(AuditReport(subject="train.py", kind="script", stack=None, findings=(), facts=facts))
        False
    """
    facts = dict(report.facts)
    found = report.findings or any(count for _, count in report.ignored)
    return bool(report.kind != "script" or found or "boundaries" in facts or facts.get("packing") != NONE_SEEN)


def counts_in_words(findings: Sequence[AuditFinding]) -> str:
    """How many findings are how sure: ``1 certain, 2 depend on the version``."""
    counts = Counter(finding.certainty for finding in findings)
    return ", ".join(f"{counts[kind]:,} {_said(kind, counts[kind])}" for kind in CERTAINTIES if counts[kind])


def _said(certainty: Certainty, count: int) -> str:
    return f"depend{'s' * (count == 1)} on the version" if certainty == "depends on version" else certainty


def alike(findings: Sequence[AuditFinding]) -> list[list[AuditFinding]]:
    """Findings in groups that differ in nothing but their places, in the order of the first of each."""
    groups: dict[tuple[str | None, ...], list[AuditFinding]] = {}
    for finding in findings:
        same = (finding.code, finding.certainty, finding.what, finding.way_out, finding.versions)
        groups.setdefault(same, []).append(finding)
    return list(groups.values())
