"""Run docs/tour.ipynb and keep what its cells show, so that it can be read where notebooks are not run.

Run it after a change to the notebook; a test runs the notebook, too, and holds the text that cells show against it.
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tour.ipynb"


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in a folder, and without times, paths and warnings of that run."""
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    notebook.metadata.pop("language_info", None)  # the version of whoever ran it
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Write the notebook with its outputs."""
    notebook = executed(nbformat.read(NOTEBOOK, as_version=4), NOTEBOOK.parent)
    nbformat.write(notebook, NOTEBOOK)
    print(f"wrote {NOTEBOOK.name}")


if __name__ == "__main__":
    main()
