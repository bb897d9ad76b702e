"""Examples of the integrations run, and missing libraries are reported with their extra."""

import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from msdscore import MissingExtraError
from msdscore.errors import install_line

EXAMPLES = Path(__file__).parents[1] / "examples" / "integrations"
NEEDS = {
    "evaluate_example": "evaluate",
    "lmms_eval_example": "PIL",
    "torchmetrics_example": "torchmetrics",
    "training_example": "tensorboard",
    "trl_example": "PIL",
    "vlmevalkit_example": "PIL",
}


@pytest.mark.filterwarnings("ignore")  # warnings of the libraries
@pytest.mark.parametrize("name", sorted(NEEDS))
def test_example_runs(name, capsys, tmp_path, monkeypatch):
    pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "msd|enc:toy" in capsys.readouterr().out


def test_grpo_example_without_a_model_says_what_is_missing():
    pytest.importorskip("trl", reason="needs the extra trl")
    command = [sys.executable, EXAMPLES / "grpo_example.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.splitlines()[-1][:21]) == (1, "expected one argument")


@pytest.mark.filterwarnings("ignore")
def test_grpo_example_trains_one_step(capsys, tmp_path, monkeypatch):
    for library in ("trl", "datasets"):
        pytest.importorskip(library, reason="needs the extra trl")
    from tiny_talker import make_talker

    model = make_talker(tmp_path / "model", {"Describe the image.": "a red square"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["grpo_example.py", str(model)])
    runpy.run_path(str(EXAMPLES / "grpo_example.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "msd/judged: 1.000" in printed
    assert "rewards/msd_reward/mean" in printed
    assert "msd|enc:toy" in printed


@pytest.mark.parametrize(
    ("module", "library", "install"),
    [
        ("msdscore_torch.integrations.torchmetrics", "torchmetrics", "msdscore[torchmetrics]"),
        ("msdscore_lab.harnesses.evaluate", "evaluate", "msdscore-lab[evaluate]"),
    ],
)
def test_missing_library_error_names_the_extra(module, library, install, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(MissingExtraError, match=re.escape(install_line(install))):
        import_module(module)
