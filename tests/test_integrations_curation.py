"""The stage for NeMo Curator, which is too large for the test environment."""

import runpy
from pathlib import Path

import pytest

STAGE = Path(__file__).parents[1] / "examples" / "integrations" / "nemo_curator_stage.py"


def test_the_stage_scores_and_filters(capsys):
    pytest.importorskip("nemo_curator", reason="nemo-curator is not installed; it needs Ray and several hundred MB")
    runpy.run_path(str(STAGE), run_name="__main__")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("0 0.88")
