"""The runnable examples of the integrations run."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "integrations"
NEEDS = {"torchmetrics_example": "torchmetrics", "trl_example": "PIL", "training_example": "tensorboard"}


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_example_runs(name, capsys, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "msd|enc:toy" in capsys.readouterr().out
