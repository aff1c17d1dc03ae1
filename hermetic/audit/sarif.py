"""A report as SARIF 2.1.0, which code hosts show beside the lines of a change.

Algorithm: one run; each rule that found something is described once, with its help; each finding is a result with a
place, or, where there is no file, with the name of what was read, which is SARIF and which GitHub does not take.
Certain findings are errors, likely ones warnings, those that depend on a version notes.
Guarantee: paths in a repository are URIs relative to its root with forward slashes, whatever the system and the
current folder; lines and columns count from 1, columns in code points. Each file has a line, for GitHub asks for one:
the first, where no other is known and in notebooks, whose lines of JSON mean nothing to a reader; their message names
the cell.
Price: microseconds; nothing is imported but the rules.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from hermetic import __version__
from hermetic.audit.finding import AuditFinding, AuditReport, Certainty, Place
from hermetic.audit.rule import Rule
from hermetic.audit.rules import RULES

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

LEVELS: Final[Mapping[Certainty, str]] = {"certain": "error", "likely": "warning", "depends on version": "note"}


def to_sarif(report: AuditReport, *, base: str | Path | None = None) -> dict[str, Any]:
    """A SARIF log of one report.

    Args:
        report: of an audit.
        base: the folder that paths are to be relative to; by default the root of the repository that a file is in,
            and the current folder where it is in none.

    Returns:
        Plain data for ``json.dumps``.

    Example:
        >>> to_sarif(AuditReport(subject="a.py", kind="script", stack=None, findings=()))["runs"][0]["results"]
        []
    """
    codes = sorted({finding.code for finding in report.findings})
    root = None if base is None else Path(base)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "hermetic",
                        "semanticVersion": __version__,
                        "rules": [_rule(RULES[code]) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [_notification(note) for note in report.notes],
                    }
                ],
                "results": [_result(finding, codes.index(finding.code), root) for finding in report.findings],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    text = f"{rule.why}\n\n{rule.fix}\n\nSources: {', '.join(rule.sources)}"
    markdown = (
        f"{rule.why}\n\n**Way out.** {rule.fix}\n\nFound:\n\n```\n{rule.bad.text.rstrip()}\n```\n\n"
        f"Sound:\n\n```\n{rule.good.text.rstrip()}\n```\n\nSources: {', '.join(rule.sources)}\n"
    )
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.what},
        "fullDescription": {"text": rule.why},
        "help": {"text": text, "markdown": markdown},
    }


def _notification(note: str) -> dict[str, Any]:
    return {"level": "note", "message": {"text": note}}


def _result(finding: AuditFinding, index: int, root: Path | None) -> dict[str, Any]:
    versions = f" (true of {finding.versions})" if finding.versions else ""
    cell = (
        f"{finding.place.key.partition(':')[0]}, line {finding.place.line}: " if _in_a_notebook(finding.place) else ""
    )
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.certainty],
        "message": {"text": f"{cell}{finding.what}{versions}. {finding.way_out}."},
        "locations": [_location(finding.place, root)],
        "properties": {"certainty": finding.certainty, "value": finding.value},
    }


def _in_a_notebook(place: Place) -> bool:
    return place.file is not None and place.file.endswith(".ipynb")


def _location(place: Place, root: Path | None) -> dict[str, Any]:
    named = {"logicalLocations": [{"fullyQualifiedName": place.key}]}
    if place.file is None:
        return named
    region = {"startLine": 1}
    if place.line is not None and not _in_a_notebook(place):
        region = {"startLine": place.line} | ({"startColumn": place.column} if place.column is not None else {})
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(place.file, root)}, "region": region}, **named}


def _uri(file: str, root: Path | None) -> str:
    """Relative to a folder where the file is below it, else as a file URI."""
    whole = (Path.cwd() / file).resolve()
    if root is None:
        root = next((above for above in whole.parents if (above / ".git").exists()), Path.cwd())
    try:
        return quote(PurePosixPath(*whole.relative_to(root.resolve()).parts).as_posix())
    except ValueError:
        return whole.as_uri()
