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
from forked_jobs import finish, fork, kill_once, marks, score, undisturbed


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mount a small file system."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def faults() -> Iterator[dict[str, object]]:
    """Inject each fault; after it is removed, the output must equal that of an undisturbed run."""
    with tempfile.TemporaryDirectory() as base:
        inputs, wanted = undisturbed(Path(base))
        for name, fault in (
            ("full disk", _full_disk),
            ("read-only folder", _read_only),
            ("image folder disappears and returns", _vanishing),
            ("clock jumps", _clock),
        ):
            yield {"fault": name, **fault(inputs, wanted)}


def _errors_of(place: Path) -> str:
    log = place.with_suffix(".log")
    lines = [line for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:160] if lines else ""


def _full_disk(inputs: Path, wanted: dict[str, str]) -> dict[str, object]:
    with small_disk("48k") as disk:
        place = disk / "out"
        place.mkdir()
        log = Path(tempfile.mkdtemp()) / "out"
        code = _logged(inputs, place, log)
        message = _errors_of(log)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        again, _ = finish(score, inputs, place)
        return {"exit": code, "said": message, "afterwards": again, "same": marks(place, ("out.parquet",)) == wanted}


def _logged(inputs: Path, place: Path, log: Path) -> int:
    """Return a job whose log is not next to its output."""

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
        message = _errors_of(log)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        again, _ = finish(score, inputs, place)
        return {"exit": code, "said": message, "afterwards": again, "same": marks(place, ("out.parquet",)) == wanted}


def _vanishing(inputs: Path, wanted: dict[str, str]) -> dict[str, object]:
    """Simulate the loss of a network file system during a run."""
    with tempfile.TemporaryDirectory() as base:
        place = Path(base, "out")
        place.mkdir()
        child = fork(score, inputs, place)
        time.sleep(0.15)
        (inputs / "images").rename(inputs / "gone")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (inputs / "gone").rename(inputs / "images")
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
    """Shift the clock by days in both directions while runs are killed and resumed."""
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
