"""``hermetic show``: the picture on stdout, files beside it, and refusals; and the pictures of the documentation."""

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hermetic
from hermetic.cli import app

ROOT = Path(__file__).parents[1]


def run(*arguments):
    return CliRunner().invoke(app, ["show", *map(str, arguments)], env={"COLUMNS": "100"})


def test_lengths_are_drawn():
    result = run("--lengths", "2,3")

    assert result.exit_code == 0
    assert "As it should be    Plain causal mask        FlexAttention" in result.stdout
    assert "15 cells read: 6 leak" in result.stdout


def test_options_reach_the_picture():
    result = run("--lengths", "3,4", "--window", 2, "--chunk", 3, "--reader", "causal", "--json")

    assert json.loads(result.stdout) == hermetic.show([3, 4], window=2, chunk=3, backends=["causal"]).to_dict()
    assert json.loads(run("--lengths", "2", "--no-causal", "--json").stdout)["rule"]["causal"] is False


def test_files_are_written_and_the_row_of_a_file_is_chosen(tmp_path):
    batch = {"input_ids": [[5, 6, 7], [8, 9, 4]], "position_ids": [[0, 1, 0], [0, 0, 1]]}
    (tmp_path / "batch.json").write_text(json.dumps(batch))
    files = ("--svg", tmp_path / "a.svg", "--png", tmp_path / "a.png")
    result = run(tmp_path / "batch.json", "--row", 1, "--reader", "causal", *files)

    assert result.exit_code == 0
    assert (tmp_path / "a.svg").read_text() == hermetic.show(
        tmp_path / "batch.json", row=1, backends=["causal"]
    ).to_svg()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a folder or a file, or --lengths"),
        (("packed", "--lengths", "2"), "give a folder or a file, or --lengths"),
        (("--lengths", "two"), "expected whole numbers with commas"),
        (("--lengths", "2,3", "--row", "4"), "HE730: row is 4"),
        (("--lengths", "2,3", "--reader", "sdpa"), "HE730: backends is"),
        (("nowhere.json",), "nowhere.json"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_draws_nothing(arguments, said):
    result = run(*arguments)

    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")
    assert result.stdout == ""


def test_the_pictures_of_the_documentation_are_what_the_script_draws():
    spec = importlib.util.spec_from_file_location("show_pictures", ROOT / "scripts" / "show_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = {name: picture.to_svg() for name, picture in module.pictures().items()}
    found = {path.name: path.read_text(encoding="utf-8") for path in module.DOCS.glob("show_*.svg")}

    assert found.keys() == drawn.keys()
    assert [name for name in drawn if found[name] != drawn[name]] == [], "run python scripts/show_pictures.py"
    page = (module.DOCS / "show.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in page for name in drawn)
