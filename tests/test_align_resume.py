"""Bitwise resume of a training run that was killed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from align_data import make_rows, read_curves, recipe, source
from msdscore_lab.align.recipe import dump_recipe
from msdscore_lab.align.run.folder import checkpoints
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import train

TESTS = Path(__file__).parent
CPU = TrainOptions(device="cpu", workers=2)


def start(recipe_, rows, run, *, pause):
    file = run.with_suffix(".toml")
    file.write_text(dump_recipe(recipe_), encoding="utf-8")
    command = [sys.executable, str(TESTS / "align_worker.py"), str(file), str(rows), str(run), str(pause)]
    settings = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.Popen(command, env={**os.environ, **settings}, cwd=TESTS)


def wait_for(path, process, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, "the run finished before it could be killed"
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.02)


@pytest.mark.slow
def test_resume_after_kill_gives_identical_weights(tmp_path):
    rows = make_rows(tmp_path / "data")
    small = recipe(
        heads={"image": {"kind": "mlp", "hidden": 16, "dropout": 0.3}, "text": {"kind": "linear", "dropout": 0.2}},
        train={"steps": 14, "accumulate": 2, "average": 0.9, "save_every": 3, "eval_every": 4, "weight_decay": 0.1},
    )
    train(small, source(rows), tmp_path / "whole", val=source(rows), options=CPU)
    run = tmp_path / "killed"
    process = start(small, rows, run, pause=0.3)
    try:
        wait_for(run / "checkpoints" / "step-00000006", process)
        time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert checkpoints(run)[-1].name < "step-00000014"
    train(small, source(rows), run, val=source(rows), options=replace(CPU, resume=True))
    one, two = checkpoints(tmp_path / "whole")[-1], checkpoints(run)[-1]
    for name in ("weights.safetensors", "average.safetensors", "optimizer.safetensors"):
        first, second = load_file(one / name), load_file(two / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[key]) for key, value in first.items()), name
    assert (one / "state.json").read_text() == (two / "state.json").read_text()
    assert read_curves(tmp_path / "whole") == read_curves(run)
