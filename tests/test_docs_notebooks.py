"""Notebooks run from top to bottom and are stored with their outputs."""

import os
import re
import sys
import warnings
from pathlib import Path

import pytest

from msdscore import Scorer
from msdscore.forms.registry import COLUMNS

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    nbformat = pytest.importorskip("nbformat")
    with path.open(encoding="utf-8") as file:
        return nbformat.read(file, as_version=4)


@each
def test_notebook_is_stored_executed_without_local_paths(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("text/html" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert path.stat().st_size < 2_000_000
    # Encoded images may contain any letters.
    text = re.sub(r"[A-Za-z0-9+/]{200,}", "", path.read_text(encoding="utf-8"))
    for place in ("/root", "/tmp", "/home", "/work"):
        assert place not in text


def test_stored_outputs_are_those_of_the_present_encoder_and_columns():
    signature = Scorer().signature.rpartition("|v:")[0]
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        signatures = {found.rpartition("|v:")[0] for found in re.findall(r"msd-e\|enc:mini[^\s\"<\\\\]+", text)}
        assert signatures <= {signature}, path
        for header in re.findall(r"<tr><th>(.*?)</th></tr>", text):
            assert set(header.split("</th><th>")) <= {*COLUMNS, "caption"}, path


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
@each
def test_notebook_runs(path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    for needed in ("ipykernel", "skimage", "matplotlib"):
        pytest.importorskip(needed)
    # The notebooks call the program of the test environment.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = nbclient.NotebookClient(read(path), timeout=300, kernel_name="python3").execute()
    shown = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
