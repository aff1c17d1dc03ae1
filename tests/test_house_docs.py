"""What the documentation shows runs, and what it names exists. Each check is shown to be able to fail."""

import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w.}-])/(?:home|root|work)/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A fenced block of a page."""

    info: str
    body: str
    line: int


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        line = text[: match.start("body")].count("\n")
        yield Block(info=match["info"].strip(), body=match["body"], line=line)


def run_python_blocks(page: Path) -> int:
    """Run the blocks of a page in order in one namespace; returns how many there were."""
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if block.info.split()[:1] == ["python"]]
    namespace = {"__name__": "documentation"}
    for block in found:
        assert block.info == "python", f"{page.name}:{block.line}: ```{block.info} would not be run"
        code = compile("\n" * block.line + block.body, str(page), "exec")
        exec(code, namespace)  # noqa: S102 - running what the page shows is the test
    return len(found)


def objections_to_command(line: str, targets: set[str], commands: dict[str, set[str]]) -> list[str]:
    """Why a line of a bash block would not work; commands maps each hermetic command to its options."""
    words = shlex.split(line, comments=True)
    words = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    program, arguments = words[0], [word for word in words[1:] if not re.fullmatch(r"[A-Z_]+=.*", word)]
    if program == "make":
        return [f"make has no target {word}" for word in arguments if word not in targets]
    if program == "hermetic":
        name, *rest = arguments
        if name not in commands:
            return [f"hermetic has no command {name}"]
        used = {word.split("=")[0] for word in rest if word.startswith("--")}
        return [f"hermetic {name} has no option {option}" for option in sorted(used - commands[name])]
    own_script = program == "python" and bool(arguments) and (ROOT / arguments[0]).is_file()
    if own_script or program in {"git", "cd"} or program.startswith(".venv/bin/"):
        return []
    return [f"{program} is neither make, hermetic, git, cd nor python with a file of this repository"]


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def hermetic_commands() -> dict[str, set[str]]:
    import typer.main

    from hermetic.cli import app

    group = typer.main.get_command(app)
    return {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        | {"--help"}
        for name, command in group.commands.items()
    }


def bash_lines(page: Path) -> list[str]:
    """The commands of a page's bash blocks, continued lines joined, comments and blank lines left out."""
    bodies = [block.body for block in blocks(page.read_text(encoding="utf-8")) if block.info == "bash"]
    lines = [line.strip() for body in bodies for line in body.replace("\\\n", " ").splitlines()]
    return [part.strip() for line in lines if line and not line.startswith("#") for part in line.split("&&")]


def anchors(page: Path) -> set[str]:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", path):
            continue  # another site; nothing here may depend on the network
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(match["target"])
    return broken


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_python_block_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = page.read_text(encoding="utf-8").count("```python")

    assert run_python_blocks(page) == shown


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_of_a_page_exists(page):
    targets = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    lines = bash_lines(page)
    commands = hermetic_commands() if any(line.startswith("hermetic") for line in lines) else {}

    assert [why for line in lines for why in objections_to_command(line, targets, commands)] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_internal_link_of_a_page_resolves(page):
    assert broken_links(page) == []


def test_the_readme_shows_code_commands_and_links():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")

    assert {"python", "bash"} <= {block.info for block in blocks(text)}
    assert {"make demo", "make test"} <= set(bash_lines(readme))
    assert LINK.search(text)


def test_the_page_of_errors_says_what_the_code_says():
    script = ROOT / "scripts" / "errors_page.py"
    spec = importlib.util.spec_from_file_location("errors_page", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python scripts/errors_page.py"


def files_of_the_repository() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def machine_paths(content: bytes) -> list[str]:
    """Lines that name a folder of someone's machine; binary files have none."""
    if b"\0" in content:
        return []
    return [line for line in content.decode("utf-8").splitlines() if MACHINE_PATH.search(line)]


def test_no_file_of_the_repository_names_a_path_of_a_machine():
    files = files_of_the_repository()
    named = {str(path.relative_to(ROOT)): machine_paths(path.read_bytes()) for path in files}

    assert {name: lines for name, lines in named.items() if lines} == {}
    assert len(files) > len(PAGES)


def test_a_python_block_that_fails_fails_with_its_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")

    with pytest.raises(AssertionError) as caught:
        run_python_blocks(page)

    last = caught.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("page.md", 8)


def test_a_python_block_that_would_not_be_run_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python no-run\nx = 1\n```\n")

    with pytest.raises(AssertionError, match=r"page\.md:1: ```python no-run would not be run"):
        run_python_blocks(page)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("make fly", ["make has no target fly"]),
        ("make test PYTHON=python3", []),
        ("hermetic fly --json", ["hermetic has no command fly"]),
        ("hermetic demo --jsn --json", ["hermetic demo has no option --jsn"]),
        ("hermetic demo --json  # one object", []),
        ("python scripts/missing.py", ["python is neither make, hermetic, git, cd nor python with a file"]),
        ("python scripts/errors_page.py", []),
        ("git clone URL", []),
        ("curl x", ["curl is neither make, hermetic, git, cd nor python with a file"]),
    ],
)
def test_the_command_check_names_what_does_not_exist(line, expected):
    found = objections_to_command(line, {"test", "demo"}, {"demo": {"--json"}})

    assert len(found) == len(expected)
    assert all(why.startswith(start) for why, start in zip(found, expected, strict=True))


def test_the_link_check_names_a_missing_file_and_a_missing_heading(tmp_path):
    (tmp_path / "other.md").write_text("# A heading: with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Top\n[a](other.md) [b](other.md#a-heading-with-code) [c](#top) [d](https://example.org/x)\n"
        "[e](missing.md) [f](other.md#nowhere) ![g](missing.svg)\n```\n[h](in-code.md)\n```\n"
    )

    assert broken_links(page) == ["missing.md", "other.md#nowhere", "missing.svg"]


def test_the_machine_path_check_can_fail():
    folder = os.sep + "home" + os.sep
    content = f"see {folder}someone/x\nhttps://example.org{folder}x\n".encode()

    assert machine_paths(content) == [f"see {folder}someone/x"]
    assert machine_paths(b"\0" + content) == []
