"""Imports point down only, and what should stay light stays light. Each check is shown to be able to fail."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hermetic

ROOT = Path(__file__).parents[1]

FLOORS = {
    "errors": 0,
    "constants": 0,
    "files": 0,
    "markup": 1,
    "plan": 1,
    "batch": 2,
    "attention": 3,
    "loss": 3,
    "seal": 4,
    "probe": 5,
    "audit": 5,
    "data": 5,
    "integrations": 6,
    "train": 6,
    "compare": 6,
    "atlas": 6,
    "doctor": 6,
    "show": 6,
    "demo": 6,
    "testing": 6,
    "report": 7,
    "cli": 8,
}
# a later one may import an earlier one
STAIRS = ("data", "audit", "integrations", "train", "compare", "demo", "report", "cli")
BACKENDS = {"reference", "sdpa", "flex", "flash", "torch_varlen"}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_of_the_root(tree: ast.AST) -> set[str]:
    """What a module calls the root package, through which every public name can be reached."""
    aliases = (alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)
    return {"hermetic"} | {alias.asname for alias in aliases if alias.name == "hermetic" and alias.asname}


def targets_of(node: ast.AST, package: list[str], roots: set[str]) -> Iterator[str]:
    """The dotted names that one import, one literal import_module call or one use of the root may load."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name != "hermetic")
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in roots:
        yield f"hermetic.{node.attr}"
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in {"import_module", "__import__"}:
            yield str(node.args[0].value)


def home_of(target: str) -> str:
    """A public name of the root package stands for the module that it comes from."""
    _, _, name = target.partition(".")
    return f"{hermetic._HOMES[name]}.{name}" if name in hermetic._HOMES else target


def edges(root: Path) -> Iterator[tuple[str, str, int]]:
    """Every import of the package's own modules: (importing module, imported name, line)."""
    for path in sorted((root / "hermetic").rglob("*.py")):
        name = module_name(path, root)
        if name == "hermetic":
            continue  # resolves its names lazily, and only from the table that the surface test freezes
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        roots = names_of_the_root(tree)
        for node in ast.walk(tree):
            for target in targets_of(node, package, roots):
                if target.split(".")[0] == "hermetic":
                    yield name, home_of(target), getattr(node, "lineno", 0)


def part_of(dotted: str) -> str:
    return [*dotted.split("."), ""][1]


def floor_of_target(target: str) -> int:
    return FLOORS.get(part_of(target), 0)  # what is not in a part is in the root itself, such as __version__


def objection(name: str, target: str) -> str | None:
    """Why this import is not allowed, or None."""
    here, there = part_of(name), part_of(target)
    if here not in FLOORS:
        return f"{name} has no floor"
    if here == there:
        sideways = {[*dotted.split("."), "", ""][2] for dotted in (name, target)}
        both_backends = here == "attention" and len(sideways) > 1 and sideways <= BACKENDS
        return f"backend {name} imports backend {target}" if both_backends else None
    if floor_of_target(target) < FLOORS[here]:
        return None
    if here in STAIRS and there in STAIRS[: STAIRS.index(here)]:
        return None
    return f"{name} (floor {FLOORS[here]}) imports {target} (floor {floor_of_target(target)})"


def objections(root: Path) -> list[str]:
    found = ((name, line, objection(name, target)) for name, target, line in edges(root))
    return [f"{why}, line {line}" for name, line, why in found if why]


def write_module(root: Path, relative: str, source: str) -> None:
    path = root / "hermetic" / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_imports_point_down_only():
    seen = {part_of(name) for name, _, _ in edges(ROOT)}

    assert objections(ROOT) == []
    assert {"plan", "batch", "attention", "seal", "probe"} <= seen, "the walk saw too little to mean anything"


def test_every_module_of_the_package_stands_on_a_floor():
    parts = {part_of(module_name(path, ROOT)) for path in (ROOT / "hermetic").rglob("*.py")} - {""}

    assert parts <= set(FLOORS)


@pytest.mark.parametrize(
    ("relative", "source", "expected"),
    [
        (
            "plan/rows.py",
            "import hermetic.batch",
            "hermetic.plan.rows (floor 1) imports hermetic.batch (floor 2)",
        ),
        (
            "plan/rows.py",
            "def f():\n    from hermetic.seal import seal",
            "imports hermetic.seal.seal (floor 4)",
        ),
        ("plan/rows.py", "from ..batch import collate", "imports hermetic.batch.collate (floor 2)"),
        ("plan/__init__.py", "from .. import batch", "imports hermetic.batch (floor 2)"),
        (
            "plan/rows.py",
            "import importlib\nimportlib.import_module('hermetic.cli')",
            "imports hermetic.cli (floor 8)",
        ),
        (
            "errors.py",
            "from hermetic import constants",
            "hermetic.errors (floor 0) imports hermetic.constants",
        ),
        (
            "loss.py",
            "from hermetic.attention import api",
            "hermetic.loss (floor 3) imports hermetic.attention.api",
        ),
        (
            "attention/api.py",
            "from hermetic import loss",
            "hermetic.attention.api (floor 3) imports hermetic.loss",
        ),
        (
            "probe/p.py",
            "from hermetic.data import read",
            "hermetic.probe.p (floor 5) imports hermetic.data.read",
        ),
        (
            "data/d.py",
            "from hermetic.probe import probe",
            "hermetic.data.d (floor 5) imports hermetic.probe.probe",
        ),
        (
            "batch/b.py",
            "import hermetic\nhermetic.packed_loss",
            "hermetic.batch.b (floor 2) imports hermetic.loss",
        ),
        ("batch/b.py", "import hermetic as h\nh.seal", "imports hermetic.seal.seal (floor 4)"),
        ("batch/b.py", "from hermetic import probe", "imports hermetic.probe.probe (floor 5)"),
        (
            "integrations/t.py",
            "import hermetic.train",
            "hermetic.integrations.t (floor 6) imports hermetic.train",
        ),
        ("train.py", "import hermetic.demo", "hermetic.train (floor 6) imports hermetic.demo (floor 6)"),
        (
            "testing.py",
            "import hermetic.train",
            "hermetic.testing (floor 6) imports hermetic.train (floor 6)",
        ),
        (
            "attention/sdpa.py",
            "from hermetic.attention.reference import r",
            "backend hermetic.attention.sdpa imports",
        ),
        ("attention/flex.py", "from . import flash", "backend hermetic.attention.flex imports backend"),
        ("cellar/c.py", "import hermetic.plan", "hermetic.cellar.c has no floor"),
    ],
)
def test_the_floor_check_names_an_import_that_points_up_or_sideways(tmp_path, relative, source, expected):
    write_module(tmp_path, relative, source)

    (found,) = objections(tmp_path)

    assert expected in found


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("batch/collate.py", "from hermetic.plan import Plan\nfrom hermetic import __version__"),
        ("batch/collate.py", "from .boundaries import Boundaries"),
        ("attention/api.py", "from hermetic.attention import flex, sdpa"),
        ("attention/sdpa.py", "from hermetic.attention.layout import rows"),
        ("train.py", "from hermetic.integrations.trainer import T"),
        ("demo/run.py", "from hermetic.train import train\nfrom hermetic.integrations import trainer"),
        ("data/d.py", "import hermetic\nprint(hermetic.__version__, hermetic.plan_rows)"),
        ("cli.py", "import hermetic\nhermetic.probe\nfrom hermetic.demo.run import run"),
        ("__init__.py", "from hermetic.cli import main"),
    ],
)
def test_the_floor_check_lets_imports_point_down_and_stairs_be_climbed_in_order(tmp_path, relative, source):
    write_module(tmp_path, relative, source)

    assert objections(tmp_path) == []


def loaded_by(statement: str, suspects: set[str], search: Path = ROOT) -> set[str]:
    """Which of the suspects are loaded in a fresh interpreter that ran the statement."""
    program = f"import sys\n{statement}\nprint(*sorted({suspects!r} & set(sys.modules)))"
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(search)}
    done = subprocess.run(command, cwd=search, env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_neither_torch_nor_numpy():
    assert loaded_by("import hermetic", {"torch", "numpy", "numba", "transformers"}) == set()


def test_importing_the_planner_leaves_torch_unimported():
    statement = "import hermetic\nhermetic.plan_rows"

    assert loaded_by("import hermetic.plan", {"torch", "transformers", "numpy"}) == {"numpy"}
    assert loaded_by(statement, {"torch", "transformers", "numpy"}) == {"numpy"}


def test_the_import_check_can_fail(tmp_path):
    write_module(tmp_path, "__init__.py", "")
    write_module(tmp_path, "plan/__init__.py", "import torch")
    (tmp_path / "torch.py").write_text("")

    assert loaded_by("import hermetic", {"torch"}, tmp_path) == set()
    assert loaded_by("import hermetic.plan", {"torch"}, tmp_path) == {"torch"}
