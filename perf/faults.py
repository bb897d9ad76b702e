"""Fault injection: full or read-only disks, missing folders, clock jumps (see reliability.py)."""

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
from forked_jobs import finish, fork, kill_once, output_hashes, score, undisturbed


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
            ("full disk", _full_disk),
            ("read-only folder", _read_only),
            ("image folder disappears and returns", _vanishing),
            ("clock jumps", _clock),
        ):
            yield {"fault": name, **fault(inputs, expected)}


def _errors_of(output: Path) -> str:
    log = output.with_suffix(".log")
    lines = [line for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:160] if lines else ""


def _full_disk(inputs: Path, expected: dict[str, str]) -> dict[str, object]:
    with small_disk("48k") as disk:
        output = disk / "out"
        output.mkdir()
        log = Path(tempfile.mkdtemp()) / "out"
        code = _logged(inputs, output, log)
        message = _errors_of(log)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again, _ = finish(score, inputs, output)
        same = output_hashes(output, ("out.parquet",)) == expected
        return {"exit": code, "message": message, "afterwards": again, "same": same}


def _logged(inputs: Path, output: Path, log: Path) -> int:
    """Run `score` with its log outside of the output folder, and return the exit code."""

    def job(inputs: Path, _: Path) -> None:
        score(inputs, output)

    return finish(job, inputs, log)[0]


def _read_only(inputs: Path, expected: dict[str, str]) -> dict[str, object]:
    with small_disk("64m") as disk:
        output = disk / "out"
        output.mkdir()
        log = Path(tempfile.mkdtemp()) / "out"
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        code = _logged(inputs, output, log)
        message = _errors_of(log)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        again, _ = finish(score, inputs, output)
        same = output_hashes(output, ("out.parquet",)) == expected
        return {"exit": code, "message": message, "afterwards": again, "same": same}


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
