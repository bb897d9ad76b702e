"""What interruptions cost: processes killed at random moments, disks that fill, folders that vanish, clocks that jump.

    python perf/reliability.py kills --count 1000     # SIGKILL at random moments; outputs against undisturbed ones
    python perf/reliability.py faults                 # needs rights to mount a small disk; says what it leaves out
    python perf/reliability.py writers --count 50     # two processes, one cache

Jobs run in forks of this process, so that a job costs its own work and not the import of its libraries. Every job is
a whole command of the program on the `toy` encoder.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import pyarrow.parquet
import torch
from PIL import Image

import msdscore.align.run.train
import msdscore.benchmarks.run.runner
import msdscore.cli.app
import msdscore.engine.local  # noqa: F401  before the forks, as the libraries

torch.set_num_threads(1)

Job = Callable[[Path, Path], None]
KILLS_A_CASE = 10  # then the job is let finish, and its output compared
ROWS, PICTURES, CHUNK = 240, 24, 16


def make_inputs(folder: Path) -> None:
    """Rows over pictures that the toy encoder tells apart, a benchmark, and rows to train on."""
    from align_data import make_rows
    from bench_sets import make_sugarcrepe

    draw = np.random.default_rng(0)
    pictures = folder / "pictures"
    pictures.mkdir(parents=True)
    for number in range(PICTURES):
        Image.fromarray(draw.integers(0, 255, (40, 56, 3), dtype=np.uint8)).save(pictures / f"{number}.png")
    words = ("red", "blue", "green", "dog", "left", "sky")
    lines = []
    for number in range(ROWS):
        caption = " ".join(str(word) for word in draw.choice(words, 5))
        lines.append(
            json.dumps({"image": f"pictures/{number % PICTURES}.png", "caption": caption, "group": number // 5})
        )
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    make_sugarcrepe(folder / "sugarcrepe")
    make_rows(folder / "train")


def score(inputs: Path, place: Path, *, cache: Path | None = None) -> None:
    """`score_rows`, in small chunks so that there is much to interrupt."""
    from msdscore import ScorerSpec
    from msdscore.encoders.cached import CacheSettings
    from msdscore.engine.local import RunOptions, score_rows
    from msdscore.io.inputs.rows import open_rows

    spec = ScorerSpec(encoder="toy", cache=None if cache is None else CacheSettings(folder=str(cache)))
    score_rows(spec, open_rows(inputs / "rows.jsonl"), place / "out.parquet", RunOptions(chunk_rows=CHUNK))


def cached(inputs: Path, place: Path) -> None:
    """The same, with a cache that every killed process has written into."""
    score(inputs, place, cache=inputs / "cache")


def bench(inputs: Path, place: Path) -> None:
    """A benchmark with its controls and intervals."""
    _command(
        "bench", "sugarcrepe", "--root", str(inputs / "sugarcrepe"), "-o", str(place), "-e", "toy", "--samples", "50"
    )


def train(inputs: Path, place: Path) -> None:
    """An aligner; a killed run goes on with --resume."""
    from dataclasses import replace

    from align_data import recipe, source
    from msdscore.align.run.session import TrainOptions
    from msdscore.align.run.train import train as run

    options = TrainOptions(device="cpu", workers=1, resume=(place / "run").exists())
    small = recipe(train={"steps": 30, "save_every": 5, "log_every": 10})
    with suppress(FileNotFoundError):
        if options.resume and not any((place / "run" / "checkpoints").glob("step-*")):
            shutil.rmtree(place / "run")  # killed before its first checkpoint: nothing to go on with
            options = replace(options, resume=False)
    run(small, source(inputs / "train" / "rows.jsonl"), place / "run", options=options)


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


def fork(job: Job, inputs: Path, place: Path) -> int:
    """Start a job in a child of its own; its process number."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    log = os.open(place.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        job(inputs, place)
        code = 0
    except BaseException as error:  # noqa: BLE001  the parent reads the log
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(code)


def finish(job: Job, inputs: Path, place: Path, *, limit: float = 120.0) -> tuple[int, float]:
    """Run a job to its end: exit code (-9: hung and was killed) and seconds."""
    start, child = time.perf_counter(), fork(job, inputs, place)
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.perf_counter() - start > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -9, limit
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(done[1]), time.perf_counter() - start


def kill_once(job: Job, inputs: Path, place: Path, delay: float) -> bool:
    """Start a job and kill it after a delay; whether it was still running."""
    child = fork(job, inputs, place)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def marks(place: Path, names: tuple[str, ...]) -> dict[str, str]:
    """A hash of every output, and of what lies beside them."""
    found = {name: hashlib.sha256(_content(place / name)).hexdigest()[:12] for name in names}
    left = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    return found | {
        "files": ",".join(name for name in left if not name.endswith((".log", ".lock")) and "events" not in name)
    }


def _content(path: Path) -> bytes:
    """The bytes of a file; of a result without the time it took."""
    if path.suffix != ".json":
        return path.read_bytes()
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("made", None)  # date, command line, seconds
    return json.dumps(content, sort_keys=True).encode()


def kills(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Kill every kind of job at random moments; compare what comes out in the end."""
    draw = random.Random(seed)
    for name, (job, outputs) in JOBS.items():
        with tempfile.TemporaryDirectory() as base:
            inputs = Path(base, "inputs")
            make_inputs(inputs)
            calm = Path(base, "calm")
            calm.mkdir()
            code, seconds = finish(job, inputs, calm)
            if code:
                raise SystemExit(f"{name}: {calm.with_suffix('.log').read_text()}")
            wanted, killed, cases, wrong = marks(calm, outputs), 0, 0, []
            while killed < count // len(JOBS):
                place = Path(base, f"case-{cases}")
                place.mkdir()
                for _ in range(KILLS_A_CASE):
                    if not kill_once(job, inputs, place, draw.uniform(0, 2 * seconds / KILLS_A_CASE)):
                        break
                    killed += 1
                code, _ = finish(job, inputs, place)
                if code or marks(place, outputs) != wanted:
                    wrong.append(place.with_suffix(".log").read_text()[-300:] or str(marks(place, outputs)))
                cases += 1
                shutil.rmtree(place)
                print(f"\r{name}: {killed} kills, {cases} cases, {len(wrong)} wrong", end="", file=sys.stderr)
            print(file=sys.stderr)
            yield {"job": name, "kills": killed, "cases": cases, "different": len(wrong), "first": (wrong or [""])[0]}


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A disk of its own that is full soon."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def faults() -> Iterator[dict[str, object]]:
    """What goes wrong around a run; afterwards, with the fault gone, its output is the undisturbed one."""
    with tempfile.TemporaryDirectory() as base:
        inputs, calm = Path(base, "inputs"), Path(base, "calm")
        make_inputs(inputs)
        calm.mkdir()
        finish(score, inputs, calm)
        wanted = marks(calm, ("out.parquet",))
        for name, fault in (
            ("full disk", _full_disk),
            ("read-only folder", _read_only),
            ("pictures vanish and come back", _vanishing),
            ("clock jumps", _clock),
        ):
            yield {"fault": name, **fault(inputs, wanted)}


def _told(place: Path) -> str:
    log = place.with_suffix(".log")
    lines = [line for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:160] if lines else ""


def _full_disk(inputs: Path, wanted: dict[str, str]) -> dict[str, object]:
    with small_disk("48k") as disk:
        place = disk / "out"
        place.mkdir()
        log = Path(tempfile.mkdtemp()) / "out"
        code = _logged(inputs, place, log)
        told = _told(log)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again, _ = finish(score, inputs, place)
        return {"exit": code, "said": told, "afterwards": again, "same": marks(place, ("out.parquet",)) == wanted}


def _logged(inputs: Path, place: Path, log: Path) -> int:
    """A job whose log lies elsewhere than its output."""

    def job(inputs: Path, _: Path) -> None:
        score(inputs, place)

    return finish(job, inputs, log)[0]


def _read_only(inputs: Path, wanted: dict[str, str]) -> dict[str, object]:
    with small_disk("64m") as disk:
        place = disk / "out"
        place.mkdir()
        log = Path(tempfile.mkdtemp()) / "out"
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        code = _logged(inputs, place, log)
        told = _told(log)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        again, _ = finish(score, inputs, place)
        return {"exit": code, "said": told, "afterwards": again, "same": marks(place, ("out.parquet",)) == wanted}


def _vanishing(inputs: Path, wanted: dict[str, str]) -> dict[str, object]:
    """As when a network file system is lost in the middle of a run."""
    with tempfile.TemporaryDirectory() as base:
        place = Path(base, "out")
        place.mkdir()
        child = fork(score, inputs, place)
        time.sleep(0.15)
        (inputs / "pictures").rename(inputs / "gone")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (inputs / "gone").rename(inputs / "pictures")
        errors = pyarrow.parquet.read_table(place / "out.parquet").column("error")
        failed = len(errors) - errors.null_count
        again, _ = finish(score, inputs, place)
        return {
            "exit": code,
            "rows with a reason": failed,
            "afterwards": again,
            "same": marks(place, ("out.parquet",)) == wanted,
        }


def _clock(inputs: Path, wanted: dict[str, str]) -> dict[str, object]:
    """The time of day jumps by days in both directions while runs are killed and go on."""
    draw, true = random.Random(0), time.time

    def job(inputs: Path, place: Path) -> None:
        time.time = lambda: true() + draw.choice((-1e6, 0.0, 1e6))  # type: ignore[assignment]
        score(inputs, place, cache=inputs / "clock-cache")

    with tempfile.TemporaryDirectory() as base:
        place, killed = Path(base, "out"), 0
        place.mkdir()
        for _ in range(20):
            killed += kill_once(job, inputs, place, draw.uniform(0, 0.4))
            for path in place.rglob("*"):
                os.utime(path, (true() + draw.uniform(-1e7, 1e7),) * 2)
        code, _ = finish(job, inputs, place)
        return {"kills": killed, "exit": code, "same": marks(place, ("out.parquet",)) == wanted}


def writers(count: int) -> Iterator[dict[str, object]]:
    """Two processes score the same rows into outputs of their own through one cache, from empty, each time."""
    same = codes = 0
    with tempfile.TemporaryDirectory() as base:
        inputs, calm = Path(base, "inputs"), Path(base, "calm")
        make_inputs(inputs)
        calm.mkdir()
        finish(score, inputs, calm)
        wanted = marks(calm, ("out.parquet",))
        for number in range(count):
            shutil.rmtree(inputs / "cache", ignore_errors=True)
            places = [Path(base, f"{number}-{side}") for side in "ab"]
            for place in places:
                place.mkdir()
            children = [fork(cached, inputs, place) for place in places]
            codes += sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)
            same += sum(marks(place, ("out.parquet",)) == wanted for place in places)
    yield {"runs": 2 * count, "failed": codes, "same output": same}


def main() -> None:
    """Run a part of the campaign and print a JSON line per result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("kills", "faults", "writers"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    parts = {
        "kills": lambda: kills(chosen.count, chosen.seed),
        "faults": faults,
        "writers": lambda: writers(chosen.count),
    }
    for result in parts[chosen.part]():
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
