"""Reliability tests: processes killed at random times, full disks, missing folders, clock jumps.

    python perf/reliability.py kills --count 1000     # SIGKILL at random times; compare with undisturbed outputs
    python perf/reliability.py faults                 # needs permission to mount; reports skipped faults
    python perf/reliability.py writers --count 50     # two processes, one cache

Jobs are defined in `forked_jobs.py`.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.parquet
from forked_jobs import JOBS, cached, finish, fork, kill_once, make_inputs, output_hashes, score, undisturbed

KILLS_PER_CASE = 10  # then the job finishes and its output is compared


def kills(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Kill every kind of job at random times, and compare the final output."""
    draw = random.Random(seed)
    for name, (job, outputs) in JOBS.items():
        with tempfile.TemporaryDirectory() as base:
            inputs = Path(base, "inputs")
            make_inputs(inputs)
            reference = Path(base, "reference")
            reference.mkdir()
            code, seconds = finish(job, inputs, reference)
            if code:
                raise SystemExit(f"{name}: {reference.with_suffix('.log').read_text()}")
            expected, killed, cases, different = output_hashes(reference, outputs), 0, 0, []
            while killed < count // len(JOBS):
                folder = Path(base, f"case-{cases}")
                folder.mkdir()
                for _ in range(KILLS_PER_CASE):
                    if not kill_once(job, inputs, folder, draw.uniform(0, 2 * seconds / KILLS_PER_CASE)):
                        break
                    killed += 1
                code, _ = finish(job, inputs, folder)
                if code or output_hashes(folder, outputs) != expected:
                    log = folder.with_suffix(".log").read_text()[-300:]
                    different.append(log or str(output_hashes(folder, outputs)))
                cases += 1
                shutil.rmtree(folder)
                print(f"\r{name}: {killed} kills, {cases} cases, {len(different)} different", end="", file=sys.stderr)
            print(file=sys.stderr)
            first = different[0] if different else ""
            yield {"job": name, "kills": killed, "cases": cases, "different": len(different), "first": first}


def writers(count: int) -> Iterator[dict[str, object]]:
    """Score the same rows in two processes with different outputs and one cache, initially empty."""
    identical = failed = 0
    with tempfile.TemporaryDirectory() as base:
        inputs, expected = undisturbed(Path(base))
        for number in range(count):
            shutil.rmtree(inputs / "cache", ignore_errors=True)
            outputs = [Path(base, f"{number}-{side}") for side in "ab"]
            for output in outputs:
                output.mkdir()
            children = [fork(cached, inputs, output) for output in outputs]
            failed += sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)
            identical += sum(output_hashes(output, ("out.parquet",)) == expected for output in outputs)
    yield {"runs": 2 * count, "failed": failed, "same output": identical}


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mount a small file system."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def faults() -> Iterator[dict[str, object]]:
    """Inject each fault; after it is removed, the output must equal that of an undisturbed run."""
    with tempfile.TemporaryDirectory() as base:
        inputs, expected = undisturbed(Path(base))
        for name, fault in (
            ("full disk", partial(_on_disk, size="48k", fault=None, remedy="size=64m")),
            ("read-only folder", partial(_on_disk, size="64m", fault="ro", remedy="rw")),
            ("image folder disappears and returns", _vanishing),
            ("clock jumps", _clock),
        ):
            yield {"fault": name, **fault(inputs, expected)}


def _errors_of(output: Path) -> str:
    log = output.with_suffix(".log")
    lines = [line for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:160] if lines else ""


def _on_disk(inputs: Path, expected: dict[str, str], *, size: str, fault: str | None, remedy: str) -> dict[str, object]:
    """Run a job on a small disk, mounted again with the options of a fault before and of its remedy after the run."""
    with small_disk(size) as disk:
        output = disk / "out"
        output.mkdir()
        log = Path(tempfile.mkdtemp()) / "out"
        if fault:
            _remount(disk, fault)
        code = _logged(inputs, output, log)
        message = _errors_of(log)
        _remount(disk, remedy)
        again, _ = finish(score, inputs, output)
        same = output_hashes(output, ("out.parquet",)) == expected
        return {"exit": code, "message": message, "afterwards": again, "same": same}


def _remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def _logged(inputs: Path, output: Path, log: Path) -> int:
    """Run `score` with its log outside of the output folder, and return the exit code."""

    def job(inputs: Path, _: Path) -> None:
        score(inputs, output)

    return finish(job, inputs, log)[0]


def _vanishing(inputs: Path, expected: dict[str, str]) -> dict[str, object]:
    """Simulate the loss of a network file system during a run."""
    with tempfile.TemporaryDirectory() as base:
        output = Path(base, "out")
        output.mkdir()
        child = fork(score, inputs, output)
        time.sleep(0.15)
        (inputs / "images").rename(inputs / "gone")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (inputs / "gone").rename(inputs / "images")
        errors = pyarrow.parquet.read_table(output / "out.parquet").column("error")
        failed = len(errors) - errors.null_count
        again, _ = finish(score, inputs, output)
        return {
            "exit": code,
            "failed rows": failed,
            "afterwards": again,
            "same": output_hashes(output, ("out.parquet",)) == expected,
        }


def _clock(inputs: Path, expected: dict[str, str]) -> dict[str, object]:
    """Shift the clock by days in both directions while runs are killed and resumed."""
    draw, true = random.Random(0), time.time

    def job(inputs: Path, output: Path) -> None:
        time.time = lambda: true() + draw.choice((-1e6, 0.0, 1e6))  # type: ignore[assignment]
        score(inputs, output, cache=inputs / "clock-cache")

    with tempfile.TemporaryDirectory() as base:
        output, killed = Path(base, "out"), 0
        output.mkdir()
        for _ in range(20):
            killed += kill_once(job, inputs, output, draw.uniform(0, 0.4))
            for path in output.rglob("*"):
                os.utime(path, (true() + draw.uniform(-1e7, 1e7),) * 2)
        code, _ = finish(job, inputs, output)
        return {"kills": killed, "exit": code, "same": output_hashes(output, ("out.parquet",)) == expected}


def main() -> None:
    """Run a part and print a JSON line per result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("kills", "faults", "writers"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    parts = {
        "kills": lambda: kills(args.count, args.seed),
        "faults": faults,
        "writers": lambda: writers(args.count),
    }
    for result in parts[args.part]():
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
