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
from forked_jobs import JOBS, cached, finish, fork, kill_once, make_inputs, output_hashes, undisturbed

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
