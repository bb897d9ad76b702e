"""Reliability tests: processes killed at random times, full disks, missing folders, clock jumps.

    python perf/reliability.py kills --count 1000     # SIGKILL at random times; compare with undisturbed outputs
    python perf/reliability.py faults                 # needs permission to mount; reports skipped faults
    python perf/reliability.py writers --count 50     # two processes, one cache

Jobs are defined in `forked_jobs.py`, faults in `faults.py`.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faults import faults
from forked_jobs import JOBS, cached, finish, fork, kill_once, make_inputs, marks, undisturbed

KILLS_PER_CASE = 10  # then the job finishes and its output is compared


def kills(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Kill every kind of job at random times, and compare the final output."""
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
                for _ in range(KILLS_PER_CASE):
                    if not kill_once(job, inputs, place, draw.uniform(0, 2 * seconds / KILLS_PER_CASE)):
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


def writers(count: int) -> Iterator[dict[str, object]]:
    """Score the same rows in two processes with different outputs and one cache, initially empty."""
    same = codes = 0
    with tempfile.TemporaryDirectory() as base:
        inputs, wanted = undisturbed(Path(base))
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
    """Run a part and print a JSON line per result."""
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
