"""Print wall and CPU seconds of several runs of `msdscore score` on one machine, for two policies of idle threads.

    python perf/side_by_side.py --runs 3 --rows 64

Idle OpenMP threads of one run that spin take the cores of the others. `passive` is the default of msdscore.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image


def make_rows(folder: Path, count: int) -> Path:
    """Write images of noise with captions."""
    draw = np.random.default_rng(0)
    lines = []
    for number in range(count):
        coarse = Image.fromarray(draw.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        coarse.resize((640, 480)).save(folder / f"{number}.jpg")
        lines.append(json.dumps({"image": f"{number}.jpg", "caption": f"a dog next to {number} red boxes"}))
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows


def cpu_seconds() -> float:
    """CPU time of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(rows: Path, runs: int, policy: str, encoder: str) -> tuple[float, float]:
    """Wall seconds until all runs are finished, and CPU seconds per run."""
    environment = os.environ | {"OMP_WAIT_POLICY": policy}
    start, before = time.perf_counter(), cpu_seconds()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "msdscore", "-q", "score", str(rows), "-e", encoder, "--device", "cpu",
             "-o", str(rows.with_name(f"{policy}-{number}.parquet"))],
            env=environment,
        )
        for number in range(runs)
    ]  # fmt: skip
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("a run has failed")
    return time.perf_counter() - start, (cpu_seconds() - before) / runs


def main() -> None:
    """Print one line per number of runs and policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--encoder", default="mini")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        rows = make_rows(Path(folder), args.rows)
        for runs in (1, args.runs):
            for policy in ("ACTIVE", "PASSIVE"):
                wall, cpu = measure(rows, runs, policy, args.encoder)
                print(f"{runs} runs, {policy.lower():7}: {wall:6.1f} s, {cpu:6.1f} s of CPU time per run", flush=True)


if __name__ == "__main__":
    main()
