"""The example notebook runs from top to bottom, and is kept with its outputs."""

import warnings
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "explain.ipynb"


@pytest.fixture(scope="module")
def notebook():
    nbformat = pytest.importorskip("nbformat")
    with NOTEBOOK.open(encoding="utf-8") as file:
        return nbformat.read(file, as_version=4)


def test_it_is_stored_executed_and_speaks_of_no_machine(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("text/html" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert NOTEBOOK.stat().st_size < 2_000_000
    for place in ("/root", "/tmp", "/home", "/work"):
        assert place not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_it_runs(notebook):
    nbclient = pytest.importorskip("nbclient")
    for needed in ("ipykernel", "skimage", "matplotlib"):
        pytest.importorskip(needed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
