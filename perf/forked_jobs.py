"""Commands with the toy encoder, run in forked processes that can be killed.

Forking avoids the cost of imports.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import torch
from PIL import Image

import msdscore.cli.app
import msdscore.run.rows  # noqa: F401, imported before forking

torch.set_num_threads(1)

Job = Callable[[Path, Path], None]
ROWS, IMAGES, PART_ROWS = 240, 24, 16


def make_inputs(folder: Path) -> None:
    """Write rows with images that the toy encoder can distinguish, a benchmark, and training rows."""
    from align_data import make_rows
    from bench_sets import make_sugarcrepe

    draw = np.random.default_rng(0)
    images = folder / "images"
    images.mkdir(parents=True)
    for number in range(IMAGES):
        Image.fromarray(draw.integers(0, 255, (40, 56, 3), dtype=np.uint8)).save(images / f"{number}.png")
    words = ("red", "blue", "green", "dog", "left", "sky")
    lines = []
    for number in range(ROWS):
        caption = " ".join(str(word) for word in draw.choice(words, 5))
        lines.append(json.dumps({"image": f"images/{number % IMAGES}.png", "caption": caption, "group": number // 5}))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    make_sugarcrepe(folder / "sugarcrepe")
    make_rows(folder / "train")


def score(inputs: Path, output: Path, *, cache: Path | None = None) -> None:
    """Run `score_file` in small parts, so that there are many points of interruption."""
    from msdscore import ScorerSpec
    from msdscore.encoders.cached import CacheSettings
    from msdscore.rows.files import open_rows
    from msdscore.run.options import RunOptions
    from msdscore.run.rows import score_file

    spec = ScorerSpec(encoder="toy", cache=None if cache is None else CacheSettings(folder=str(cache)))
    score_file(spec, open_rows(inputs / "rows.jsonl"), output / "out.parquet", RunOptions(part_rows=PART_ROWS))


def cached(inputs: Path, output: Path) -> None:
    """Run `score` with a cache that all killed processes have written to."""
    score(inputs, output, cache=inputs / "cache")


def bench(inputs: Path, output: Path) -> None:
    """Run a benchmark with controls and intervals."""
    _command(
        "bench", "sugarcrepe", "--root", str(inputs / "sugarcrepe"), "-o", str(output), "-e", "toy", "--samples", "50"
    )


def train(inputs: Path, output: Path) -> None:
    """Train an aligner; a killed run is continued with --resume."""
    from dataclasses import replace

    from align_data import recipe, source
    from msdscore_lab.align.run.parts import TrainOptions
    from msdscore_lab.align.run.train import train as run

    options = TrainOptions(device="cpu", workers=1, resume=(output / "run").exists())
    small = recipe(train={"steps": 30, "save_every": 5, "log_every": 10})
    with suppress(FileNotFoundError):
        if options.resume and not any((output / "run" / "checkpoints").glob("step-*")):
            shutil.rmtree(output / "run")  # killed before its first checkpoint: nothing to resume
            options = replace(options, resume=False)
    run(small, source(inputs / "train" / "rows.jsonl"), output / "run", options=options)


def _command(*words: str) -> None:
    from msdscore.cli.app import main

    sys.argv = ["msdscore", "--quiet", *words]
    try:
        main()
    except SystemExit as stop:
        if stop.code not in (0, None, 3):
            raise


JOBS: dict[str, tuple[Job, tuple[str, ...]]] = {
    "score": (score, ("out.parquet",)),
    "score with a cache": (cached, ("out.parquet",)),
    "bench": (bench, ("sugarcrepe.json", "sugarcrepe.parquet")),
    "align train": (train, ("run/checkpoints/step-00000030/weights.safetensors",)),
}


def fork(job: Job, inputs: Path, output: Path) -> int:
    """Start a job in a child process and return its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    log = os.open(output.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        job(inputs, output)
        code = 0
    except BaseException as error:  # noqa: BLE001, the parent reads the log
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(code)


def finish(job: Job, inputs: Path, output: Path, *, limit: float = 120.0) -> tuple[int, float]:
    """Run a job to its end and return its exit code (-9: killed after the time limit) and seconds."""
    start, child = time.perf_counter(), fork(job, inputs, output)
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.perf_counter() - start > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -9, limit
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(done[1]), time.perf_counter() - start


def kill_once(job: Job, inputs: Path, output: Path, delay: float) -> bool:
    """Start a job and kill it after a delay; return whether it was still running."""
    child = fork(job, inputs, output)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def output_hashes(output: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return a hash of every named output, and the list of all files."""
    hashes = {name: hashlib.sha256(_content(output / name)).hexdigest()[:12] for name in names}
    files = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
    return hashes | {
        "files": ",".join(name for name in files if not name.endswith((".log", ".lock")) and "events" not in name)
    }


def undisturbed(base: Path) -> tuple[Path, dict[str, str]]:
    """Return the input folder, and the hashes of the scores of an undisturbed run."""
    inputs, reference = base / "inputs", base / "reference"
    make_inputs(inputs)
    reference.mkdir()
    finish(score, inputs, reference)
    return inputs, output_hashes(reference, ("out.parquet",))


def _content(path: Path) -> bytes:
    """Return the bytes of a file; results without their run time."""
    if path.suffix != ".json":
        return path.read_bytes()
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("made", None)  # date, command line, seconds
    return json.dumps(content, sort_keys=True).encode()
