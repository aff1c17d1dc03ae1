"""A report as SARIF 2.1.0: valid against what the standard requires, with places that a code host can show."""

import json
from pathlib import Path

import jsonschema
import pytest

from hermetic.audit import AuditFinding, AuditReport, Place, audit_script
from hermetic.audit.rules import RULES
from hermetic.audit.sarif import LEVELS, to_sarif

FOLDER = Path(__file__).parent / "spot_the_bug"

MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
MARKED_UP = {**MESSAGE, "properties": {**MESSAGE["properties"], "markdown": {"type": "string"}}}
REGION = {
    "type": "object",
    "required": ["startLine"],
    "additionalProperties": False,
    "properties": {
        "startLine": {"type": "integer", "minimum": 1},
        "startColumn": {"type": "integer", "minimum": 1},
    },
}
LOCATION = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation", "region"],
            "additionalProperties": False,
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "format": "uri-reference", "pattern": r"^[^\\ ]+$"}},
                },
                "region": REGION,
            },
        },
        "logicalLocations": {
            "type": "array",
            "items": {"type": "object", "properties": {"fullyQualifiedName": {"type": "string"}}},
        },
    },
}
RULE = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string", "pattern": r"^[A-Z]\w+$"},
        "shortDescription": MESSAGE,
        "fullDescription": MESSAGE,
        "help": MARKED_UP,
        "helpUri": {"type": "string", "format": "uri"},
    },
}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "ruleIndex", "level", "locations"],
    "additionalProperties": False,
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": MESSAGE,
        "locations": {"type": "array", "minItems": 1, "items": LOCATION},
        "properties": {"type": "object"},
    },
}
INVOCATION = {
    "type": "object",
    "required": ["executionSuccessful"],
    "properties": {
        "executionSuccessful": {"type": "boolean"},
        "toolExecutionNotifications": {
            "type": "array",
            "items": {"type": "object", "required": ["message"], "properties": {"message": MESSAGE}},
        },
    },
}
RUN = {
    "type": "object",
    "required": ["tool", "results"],
    "properties": {
        "tool": {
            "type": "object",
            "required": ["driver"],
            "properties": {
                "driver": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string"},
                        "semanticVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+"},
                        "rules": {"type": "array", "uniqueItems": True, "items": RULE},
                    },
                }
            },
        },
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "invocations": {"type": "array", "items": INVOCATION},
        "results": {"type": "array", "items": RESULT},
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {"type": "array", "items": RUN},
    },
}
"""What the published schema requires of the parts that are written here, and no part that it does not know; and a
region of every file, which GitHub requires."""


def valid(log: dict) -> dict:
    """The one run of a log, checked and taken through JSON."""
    plain = json.loads(json.dumps(log, allow_nan=False))
    jsonschema.Draft7Validator(SARIF, format_checker=jsonschema.FormatChecker()).validate(plain)
    (run,) = plain["runs"]
    return run


def finding(**changes) -> AuditFinding:
    parts = {
        "code": "HM101",
        "certainty": "certain",
        "what": "a mask",
        "place": Place(key="attention_mask", file="train.py", line=3, column=5),
        "value": "ones",
        "way_out": "Leave it out",
    }
    return AuditFinding(**(parts | changes))


def report(*findings: AuditFinding, notes: tuple[str, ...] = ()) -> AuditReport:
    return AuditReport(subject="train.py", kind="script", stack=None, findings=findings, notes=notes)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_the_log_of_an_exercise_is_valid_and_says_what_the_report_says(path):
    audited = audit_script(path)
    run = valid(to_sarif(audited, base=FOLDER))

    assert [(one["ruleId"], one["level"]) for one in run["results"]] == [
        (one.code, LEVELS[one.certainty]) for one in audited.findings
    ]
    for result, one in zip(run["results"], audited.findings, strict=True):
        physical = result["locations"][0]["physicalLocation"]
        assert physical == {
            "artifactLocation": {"uri": path.name},
            "region": {"startLine": one.place.line, "startColumn": one.place.column},
        }


def test_each_rule_stands_once_with_its_help_and_results_point_to_it():
    run = valid(to_sarif(report(finding(), finding(code="HM240"), finding(place=Place(key="k", file="b.py")))))
    rules = run["tool"]["driver"]["rules"]

    assert [rule["id"] for rule in rules] == ["HM101", "HM240"]
    assert [rules[one["ruleIndex"]]["id"] for one in run["results"]] == [one["ruleId"] for one in run["results"]]
    for rule in rules:
        known = RULES[rule["id"]]
        assert rule["shortDescription"]["text"] == known.what
        assert all(part in rule["help"]["markdown"] for part in (known.why, known.fix, known.bad.text.rstrip()))
        assert all(source in rule["help"]["text"] for source in known.sources)


def test_how_sure_a_finding_is_is_its_level_and_a_version_is_told():
    run = valid(
        to_sarif(
            report(
                finding(),
                finding(certainty="likely"),
                finding(certainty="depends on version", versions="trl < 0.19"),
            )
        )
    )

    assert [one["level"] for one in run["results"]] == ["error", "warning", "note"]
    assert [one["message"]["text"] for one in run["results"]] == [
        "a mask. Leave it out.",
        "a mask. Leave it out.",
        "a mask (true of trl < 0.19). Leave it out.",
    ]


def test_paths_are_relative_uris_below_the_base_and_file_uris_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def uri(file: str, **options) -> str:
        placed = finding(place=Place(key="k", file=file, line=1))
        (one,) = valid(to_sarif(report(placed), **options))["results"]
        return one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]

    assert uri("train.py") == "train.py"
    assert uri("./sub/../train.py") == "train.py"
    assert uri(str(tmp_path / "my scripts" / "größe#1.py")) == "my%20scripts/gr%C3%B6%C3%9Fe%231.py"
    assert uri("sub/train.py", base=tmp_path / "sub") == "train.py"
    assert uri("train.py", base=tmp_path / "sub") == (tmp_path / "train.py").resolve().as_uri()


def test_paths_are_relative_to_the_repository_of_the_file_wherever_the_audit_runs(tmp_path, monkeypatch):
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / "sub").mkdir()
    for here, file in (
        ("repository/sub", "train.py"),
        ("repository", "sub/train.py"),
        (".", str(tmp_path / "repository" / "sub" / "train.py")),
    ):
        monkeypatch.chdir(tmp_path / here)
        (one,) = valid(to_sarif(report(finding(place=Place(key="k", file=file, line=1)))))["results"]
        assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "sub/train.py"


def test_a_file_has_a_line_whatever_is_known_of_it_and_what_is_in_none_has_its_name():
    places = [Place(key="cu_seqlens"), Place(key="k", file="a.yaml"), Place(key="cell 2: k", file="a.ipynb", line=3)]
    run = valid(to_sarif(report(*(finding(place=place) for place in places))))
    locations = [one["locations"][0] for one in run["results"]]

    assert [one.get("physicalLocation", {}).get("region") for one in locations] == [
        None,
        {"startLine": 1},
        {"startLine": 1},
    ]
    assert [one["message"]["text"] for one in run["results"]][1:] == [
        "a mask. Leave it out.",
        "cell 2, line 3: a mask. Leave it out.",
    ]
    assert [one["logicalLocations"][0]["fullyQualifiedName"] for one in locations] == [place.key for place in places]


def test_notes_are_notifications_and_a_sound_report_has_no_results():
    run = valid(to_sarif(report(notes=("not read",))))

    assert run["results"] == run["tool"]["driver"]["rules"] == []
    assert run["invocations"][0]["toolExecutionNotifications"] == [{"level": "note", "message": {"text": "not read"}}]


@pytest.mark.parametrize(
    "breaks",
    [
        lambda run: run.pop("tool"),
        lambda run: run["results"][0].pop("message"),
        lambda run: run["results"][0].update(level="certain"),
        lambda run: run["results"][0]["locations"][0]["physicalLocation"]["region"].update(startLine=0),
        lambda run: run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"].update(uri="a b.py"),
        lambda run: run["tool"]["driver"]["rules"][0].pop("id"),
    ],
)
def test_a_log_that_breaks_the_standard_is_told(breaks):
    log = to_sarif(report(finding()))
    breaks(log["runs"][0])

    with pytest.raises(jsonschema.ValidationError):
        valid(log)
