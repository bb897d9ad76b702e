"""Smoke test of installed distributions, in an empty folder: `python tools/smoke.py PYTHON [all]`.

PYTHON is the interpreter of an environment with the wheels. `all` also needs msdscore-torch and msdscore-lab. Nothing
is imported from this checkout, and the demo, scores of a file, the service and the laboratory run as commands.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

DISTRIBUTIONS = ("msdscore", "msdscore_mini", "msdscore_serve")
RESEARCH = ("msdscore_torch", "msdscore_lab")
ROWS = (
    ("cat", "a close up of a cat", "first"), ("coffee", "a cup of coffee with a spoon", "first"),
    ("cat", "a dog on the beach", "second"), ("coffee", "an airplane", "second"),
)  # fmt: skip
_START = 120.0  # seconds until the service answers


def main() -> None:
    """Run the smoke test; the first command that fails ends it."""
    python, rest = Path(sys.argv[1]).absolute(), sys.argv[2:]
    names = DISTRIBUTIONS + (RESEARCH if "all" in rest else ())
    with TemporaryDirectory() as name:
        folder = Path(name)
        for module in names:
            place = run(folder, python, "-c", f"import {module}; print({module}.__file__)")
            if not Path(place.strip()).is_relative_to(python.parents[1]):
                raise SystemExit(f"{module} is imported from {place.strip()}, not from {python.parents[1]}")
        command = python.with_name("msdscore")
        run(folder, command, "doctor")
        run(folder, command, "demo", "--output", "demo-out")
        score_rows(folder, python, command)
        check_service(folder, command)
        if "all" in rest:
            check_laboratory(folder, command)
    print(f"{', '.join(names)}: ok")  # noqa: T201


def score_rows(folder: Path, python: Path, command: Path) -> None:
    """Score captions of the sample photographs, and check their order."""
    photographs = "from msdscore import sample_image as s; print(s('cat'), s('coffee'), sep='\\n')"
    paths = dict(zip(("cat", "coffee"), run(folder, python, "-c", photographs).split("\n"), strict=False))
    rows = [{"image": paths[image], "caption": caption, "system": system} for image, caption, system in ROWS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run(folder, command, "score", "rows.jsonl", "-o", "scores.jsonl")
    scores = [json.loads(line)["msd"] for line in (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
    if min(scores[:2]) <= max(scores[2:]):
        raise SystemExit(f"expected the first two captions to have the highest scores, got {scores}")


def check_service(folder: Path, command: Path) -> None:
    """Start the service, and wait until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "serve.log").open("wb") as log:
        service = subprocess.Popen([command, "serve", "--port", str(port)], cwd=folder, stderr=log, env=environment())
    try:
        end = time.monotonic() + _START
        while not is_ready(f"http://127.0.0.1:{port}/readyz"):
            if service.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"msdscore serve does not answer:\n{(folder / 'serve.log').read_text()}")
            time.sleep(0.2)
    finally:
        service.terminate()
        service.wait(timeout=60)


def is_ready(address: str) -> bool:
    """Return whether an address answers with 200."""
    try:
        with urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError, TimeoutError):
        return False


def check_laboratory(folder: Path, command: Path) -> None:
    """Score with torch, and rank two captioners."""
    run(folder, command, "score", "rows.jsonl", "-o", "torch.parquet", "--encoder-option", "runtime=torch")
    run(folder, command, "rank-captioners", "torch.parquet", "-o", "ranking.json")
    run(folder, command, "metrics")


def run(folder: Path, *words: str | Path) -> str:
    """Run a command in the folder and return its output; exit with its errors if it fails."""
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment without a path to modules of this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    main()
