"""The configurations of tests/audit_configs, and what is expected of each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from hermetic.audit import AuditReport, audit_config

FOLDER = Path(__file__).parent / "audit_configs"
EXPECTED = FOLDER / "expected.yaml"

Told = tuple[str, str, int | None]
"""Code, certainty, line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One configuration with the versions that are given."""

    path: Path
    versions: Mapping[str, str]
    expected: tuple[Told, ...]

    @property
    def name(self) -> str:
        """For test ids and tables."""
        return " ".join([self.path.name, *(f"{package}=={version}" for package, version in self.versions.items())])


def cases() -> Iterator[Case]:
    """Every configuration, as often as versions are given for it."""
    for name, told in yaml.safe_load(EXPECTED.read_text(encoding="utf-8")).items():
        for case in told:
            versions = case.get("with", {}) if isinstance(case, dict) else {}
            findings = case["findings"] if isinstance(case, dict) else case
            expected = tuple(sorted((tuple(finding) for finding in findings), key=str))
            yield Case(path=FOLDER / name, versions=versions, expected=expected)


def told(report: AuditReport) -> tuple[Told, ...]:
    """What a report says, in the form of what is expected."""
    found = ((finding.code, finding.certainty, finding.place.line) for finding in report.findings)
    return tuple(sorted(found, key=str))


def audited(text: str, folder: Path, *, name: str = "train.yaml", **options: object) -> AuditReport:
    """The report of a text, as of a file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return audit_config(path, **options)


def said(report: AuditReport) -> list[tuple[str, str, str, str]]:
    """Findings without their places and without how a value was written."""
    return [(one.code, one.certainty, one.what, one.way_out) for one in report.findings]
