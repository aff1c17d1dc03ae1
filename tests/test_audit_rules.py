"""Every rule says what the code does: its bad example is found through its own door, and its good one is not.

Rules and codes cover each other: no code without a rule, no rule whose code nobody emits.
"""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hermetic import errors
from hermetic.audit import Example, Rule
from hermetic.audit.explain import as_plain, explain, found_by, link_of, render_list, topic_of
from hermetic.audit.rules import RULES, TOPICS, by_code
from hermetic.cli import app
from hermetic.errors import AuditError

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"HM\d{3}")
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|https://\S+|measured: .+")

SLOW: set[str] = set()
"""Rules whose examples take longer than a fast test may."""

BESIDE = {
    **{f"HM{number}": {"HM100"} for number in (101, 102, 103, 106, 108, 109, 110)},
    "HM202": {"HM203"},
    "HM204": {"HM202", "HM203"},
    "HM205": {"HM202", "HM203"},
    "HM403": {"HM401"},
}
"""Codes of the same topic that a rule's bad example has as well, as it should: a cause stands beside its leak."""

NUMBERS = {
    "HM104": ("HM104", "7.3"),
    "HM107": ("HM301", "7.1"),
    "HM202": ("HM202", "5.7"),
    "HM402": ("HM402", "2"),
    "HM502": ("HM502", "1.9"),
}
"""What rules say of their own bad example: of which finding, and its size to two digits."""


def load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(text: str, name: str):
    """Run Python in a namespace of its own and hand back what it leaves under a name."""
    namespace = {"__name__": "example"}
    exec(compile(text, f"{name} of an example", "exec"), namespace)  # noqa: S102 - running what a rule shows is the test
    return namespace[name]


@cache
def probed(text: str):
    """The report of Python that several rules may show."""
    return run(text, "report")


def report_of(example: Example, folder: Path):
    """Whatever an example's door makes of it: a report with findings."""
    audits = importlib.import_module("hermetic.audit")  # hermetic.audit itself is the function

    if example.door == "run":
        return probed(example.text)
    if example.door == "batch":
        return audits.audit_batch(run(example.text, "batch"))
    path = folder / (example.file or ("train.py" if example.door == "script" else "train.yaml"))
    path.write_text(example.text, encoding="utf-8")
    versions = dict(version.split("==") for version in example.versions)
    if example.door == "script":
        return audits.audit_script(path, versions=versions)
    return audits.audit_config(path, stack=example.door, versions=versions)


def codes_of(report) -> set[str]:
    return {finding.code for finding in report.findings}


def objections(rule: Rule, bad: set[str], good: set[str]) -> list[str]:
    """Why codes found in a rule's two examples are not what the rule says."""
    topic, expected = rule.code[:3], {rule.code} | BESIDE.get(rule.code, set())
    of_topic = lambda codes: {code for code in codes if code.startswith(topic)}  # noqa: E731 - one expression
    return [
        *(f"the bad example has no {code}" for code in sorted(expected - bad)),
        *(f"the bad example has {code} as well" for code in sorted(of_topic(bad) - expected)),
        *(f"the good example has {code}" for code in sorted(of_topic(good))),
    ]


def rules_to_run() -> list:
    marks = {code: [pytest.mark.slow] for code in SLOW}
    return [pytest.param(rule, id=rule.code, marks=marks.get(rule.code, [])) for rule in RULES.values()]


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
@pytest.mark.parametrize("rule", rules_to_run())
def test_a_rule_finds_its_bad_example_and_not_its_good_one_and_no_other_of_its_topic_fires(rule, tmp_path):
    bad, good = (report_of(example, tmp_path) for example in (rule.bad, rule.good))

    assert objections(rule, codes_of(bad), codes_of(good)) == []
    if rule.code in NUMBERS:
        code, size = NUMBERS[rule.code]
        assert [f"{one.size:.2g}" for one in bad.findings if one.code == code] == [size]


def test_the_check_of_examples_tells_apart_what_it_should():
    rule = RULES["HM101"]

    assert objections(rule, {"HM100", "HM101", "HM201"}, {"HM201"}) == []
    assert objections(rule, {"HM100"}, set()) == ["the bad example has no HM101"]
    assert objections(rule, {"HM100", "HM101", "HM102"}, set()) == ["the bad example has HM102 as well"]
    assert objections(rule, {"HM100", "HM101"}, {"HM101"}) == ["the good example has HM101"]


def test_a_rule_whose_examples_were_swapped_is_caught(tmp_path):
    rule = RULES["HM603"]
    swapped = replace(rule, bad=rule.good, good=rule.bad)
    bad, good = (report_of(example, tmp_path) for example in (swapped.bad, swapped.good))

    assert objections(swapped, codes_of(bad), codes_of(good)) == [
        "the bad example has no HM603",
        "the good example has HM603",
    ]


def constants(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every string of a module, and whether it stands in a comparison."""
    compared = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Compare) for one in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, id(node) in compared


def codes_named(source: str) -> set[str]:
    """Codes anywhere in the strings of a module, its documentation included."""
    return {code for text, _ in constants(ast.parse(source)) for code in CODE.findall(text)}


def codes_emitted(source: str) -> set[str]:
    """Codes that are strings of their own and are not only compared with."""
    return {text for text, compared in constants(ast.parse(source)) if CODE.fullmatch(text) and not compared}


def sources_of(*patterns: str) -> Iterator[str]:
    """Files that name a code at all."""
    texts = (path.read_text(encoding="utf-8") for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    yield from (text for text in texts if CODE.search(text))


def emitted_by(*patterns: str) -> set[str]:
    return set().union(*map(codes_emitted, sources_of(*patterns)))


READERS = {
    "settings": ("hermetic/audit/setup.py", "hermetic/audit/stacks/*.py", "hermetic/audit/rules/setup_*.py"),
    "script": ("hermetic/audit/script/*.py", "hermetic/audit/rules/script_*.py"),
    "batch": ("hermetic/audit/batch/*.py", "hermetic/audit/rules/batch_*.py"),
    "folder": ("hermetic/audit/folder.py", "hermetic/audit/rules/folder_*.py"),
}
"""Where the checks are that look at what an audit reads."""


def test_every_code_that_the_code_or_the_documentation_names_has_a_rule():
    named = set().union(*map(codes_named, sources_of("hermetic/**/*.py", "leaks/*.py", "examples/**/*.py")))
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    written = {code for page in pages for code in CODE.findall(page)}

    assert (named | written) - RULES.keys() == set()
    assert len(named) >= 27


def test_every_measured_rule_is_found_by_the_probe_or_the_doctor_and_nothing_else_is():
    measured = {code for code in RULES if int(code[-2:]) < 20}

    assert emitted_by("hermetic/probe/*.py", "hermetic/doctor/*.py") == measured
    assert {code for code, rule in RULES.items() if rule.bad.door == "run" and int(code[-2:]) < 80} == measured


@pytest.mark.parametrize("place", READERS)
def test_what_is_said_to_be_found_by_an_audit_is_what_its_checks_find(place):
    told = {code for code, rule in RULES.items() if place in re.split(r"[:,] ", found_by(rule))}

    assert told == emitted_by(*READERS[place])


def test_the_readers_of_codes_see_what_is_named_and_what_is_emitted():
    source = '''"""Tells of HM991."""\nfinding = make(code="HM992")\nsame = found.code == "HM993"\nx = 1\n'''

    assert codes_named(source) == {"HM991", "HM992", "HM993"}
    assert codes_emitted(source) == {"HM992"}


def test_two_rules_of_one_code_or_of_one_name_or_of_no_topic_cannot_be_loaded():
    first, second = RULES["HM101"], RULES["HM102"]

    assert list(by_code([second, first])) == ["HM101", "HM102"]
    with pytest.raises(AssertionError, match="two rules have the code HM101"):
        by_code([first, replace(second, code="HM101")])
    with pytest.raises(AssertionError, match="two rules have the name mask-of-ones"):
        by_code([first, replace(second, name="mask-of-ones")])
    with pytest.raises(AssertionError, match="HM901 belong to no topic"):
        by_code([replace(first, code="HM901")])


def test_no_module_of_rules_is_forgotten():
    folder = ROOT / "hermetic" / "audit" / "rules"
    modules = [importlib.import_module(f"hermetic.audit.rules.{path.stem}") for path in folder.glob("[a-z]*.py")]
    told = [rule.code for module in modules for rule in getattr(module, "RULES", ())]

    assert sorted(told) == list(RULES)


def test_rules_are_in_order_and_cannot_be_changed():
    assert list(RULES) == sorted(RULES)
    assert {code[:3] for code in RULES} <= TOPICS.keys()
    with pytest.raises(TypeError):
        RULES["HM101"] = RULES["HM102"]


@pytest.mark.parametrize("code", RULES)
def test_a_rule_has_a_name_whole_sentences_and_sources_that_exist(code):
    rule = RULES[code]
    sources = [source for source in rule.sources if not SOURCE.fullmatch(source)]

    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert [text for text in (rule.what, rule.why, rule.fix) if not text.endswith((".", "?"))] == []
    assert [source for source in sources if not (ROOT / source).is_file()] == []
    assert rule.bad != rule.good


def test_what_the_probe_and_the_doctor_find_is_explained_with_a_number():
    measured = [rule for code, rule in RULES.items() if int(code[-2:]) < 20]

    assert [rule.code for rule in measured if not re.search(r"\d", rule.why)] == []
    assert len(measured) == 27


@pytest.mark.parametrize("text", ["HM101", "hm101", " HM101\n"])
def test_a_rule_is_found_by_its_code_in_any_case(text):
    assert explain(text) is RULES["HM101"]


@pytest.mark.parametrize("code", RULES)
def test_a_rule_stands_in_a_module_of_its_kind_so_that_it_is_found_without_the_others(code):
    assert explain(code) is RULES[code]


def test_an_unknown_code_is_an_error_that_names_the_closest():
    with pytest.raises(AuditError, match=r"rule 'HM111' is unknown.*The closest are HM110 \(boundaries-of-other"):
        explain("HM111")
    with pytest.raises(AuditError, match=r"The closest are .*HM101"):
        explain("HM 101")
    with pytest.raises(AuditError, match=r"rule 'xyz' is unknown; expected a code of hermetic explain --list$"):
        explain("xyz")


ERRORS = {
    one.code: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.HermeticError)
}


@pytest.mark.parametrize("code", ERRORS)
def test_the_command_tells_what_the_code_of_an_error_means(code):
    shown, told = invoke(code.lower()), json.loads(invoke(code, "--json").stdout)

    assert (shown.exit_code, told["code"], told["name"]) == (0, code, ERRORS[code].__name__)
    assert " ".join(told["what"].split()) in " ".join(shown.stdout.split())
    assert told["what"].endswith(".")


def test_the_code_of_an_error_is_no_rule_and_one_that_is_not_there_is_unknown():
    with pytest.raises(AuditError, match=r"HE501 is the code of an error, LeakError: The probe found that documents"):
        explain("HE501")
    with pytest.raises(AuditError, match=r"error 'HE999' is unknown; expected a code that docs/errors.md lists"):
        explain("HE999")
    assert invoke("HE999").exit_code == 2


def test_who_finds_a_rule_is_told_by_its_code():
    codes = ("HM119", "HM120", "HM139", "HM140", "HM160", "HM199")
    told = [found_by(replace(RULES["HM101"], code=code)) for code in codes]

    assert told == [
        "probe, doctor",
        *(f"audit: {one}" for one in ("settings", "settings", "script", "batch", "folder")),
    ]
    assert found_by(RULES["HM602"]).split(", ")[0] == "doctor"
    assert topic_of(RULES["HM301"]) == "state"


def test_a_source_is_an_address_where_there_is_one():
    assert link_of("a/b#12") == "https://github.com/a/b/issues/12"
    assert link_of("https://example.org/x") == "https://example.org/x"
    assert link_of("docs/probe.md") is None


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize("code", RULES)
def test_the_command_tells_all_that_a_rule_says(code):
    rule, shown = RULES[code], invoke(code)
    words = "".join(shown.stdout.split())

    assert shown.exit_code == 0
    for part in (rule.code, rule.name, rule.what, rule.why, rule.bad.text, rule.good.text, rule.fix):
        assert "".join(part.split()) in words
    assert all("".join((link_of(source) or source).split()) in words for source in rule.sources)


def test_the_command_gives_one_rule_or_all_of_them_as_json():
    one, every = (json.loads(invoke(what, "--json").stdout) for what in ("HM101", "--list"))

    assert one == json.loads(json.dumps(as_plain(RULES["HM101"])))
    assert one.keys() == {*Rule.__dataclass_fields__, "topic", "found_by"} - {"check"}
    assert [rule["code"] for rule in every["rules"]] == list(RULES)
    assert every["rules"][list(RULES).index("HM101")] == one


def test_the_command_lists_every_rule_with_who_finds_it():
    console = Console(width=120)
    with console.capture() as captured:
        console.print(render_list(RULES.values()))
    lines = [line.split() for line in captured.get().splitlines() if "HM" in line]

    assert lines == [[code, rule.name, *found_by(rule).split()] for code, rule in RULES.items()]
    assert re.findall(r"^ ?(HM\d+) +([a-z0-9-]+) ", invoke("--list").stdout, re.MULTILINE) == [
        (code, rule.name) for code, rule in RULES.items()
    ]


def test_an_unknown_code_is_exit_code_2_and_nothing_on_stdout():
    result = invoke("HM999")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "HE730: rule 'HM999' is unknown" in result.stderr


def test_an_explanation_imports_neither_torch_nor_numpy():
    script = (
        "import sys; from hermetic.cli import app; app(['explain', 'HM101'], standalone_mode=False); "
        "sys.stderr.write(repr({'torch', 'numpy'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert told.stdout.startswith("HM101 mask-of-ones")
    assert told.stderr == "set()"


@pytest.mark.parametrize(("code", "first"), [("HM201", "HM201"), ("HM603", "HM603"), ("HM402", "HM402")])
def test_a_printed_report_points_to_the_explanation_of_its_first_finding_once(code, first, tmp_path):
    console = Console(width=80)
    with console.capture() as captured:
        for example in (RULES[code].bad, RULES[code].good):
            console.print(report_of(example, tmp_path))

    assert re.findall(r"hermetic explain (\S+)", captured.get()) == [first]


def test_the_pages_of_the_rules_say_what_the_code_says():
    module = load("rules_pages", ROOT / "scripts" / "rules_pages.py")
    written = {path.name: path.read_text(encoding="utf-8") for path in module.FOLDER.glob("*.md")}

    assert written == module.pages(), "run python scripts/rules_pages.py"
