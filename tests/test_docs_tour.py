"""The notebook of the documentation runs, and shows what it is stored with."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]


def tour():
    spec = importlib.util.spec_from_file_location("tour", ROOT / "scripts" / "tour.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored():
    return nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)


def shown(notebook):
    """What each code cell prints, and of what kinds its other outputs are."""
    return [
        [output.get("text") or sorted(output["data"]) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_every_cell_runs_and_shows_what_the_notebook_is_stored_with(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    assert shown(tour().executed(stored(), tmp_path)) == shown(stored())
    assert sum(bool(outputs) for outputs in shown(stored())) >= 10


def test_the_stored_notebook_names_no_folder_of_whoever_ran_it():
    text = (ROOT / "docs" / "tour.ipynb").read_text("utf-8")

    assert "site-packages" not in text
    assert not [name for name in ("home", "root", "tmp") if f"/{name}/" in text]


def test_a_cell_that_fails_is_seen(tmp_path):
    cell = nbformat.v4.new_code_cell("assert 1 == 2")

    with pytest.raises(CellExecutionError, match="assert 1 == 2"):
        tour().executed(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
