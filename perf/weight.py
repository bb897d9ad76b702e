"""Weight of an installation: size and packages of the environment, start-up, memory and speed of `mini`.

python perf/weight.py [--python ENV/bin/python]     budgets are for an idle machine; needs msdscore and msdscore-mini
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

IMPORT = "import msdscore"
FIRST = "from msdscore import Scorer, sample_image; Scorer(device='cpu').score(sample_image('cat'), 'a cat')"
SPEED = """
import json, sys, time, numpy as np
from PIL import Image
from importlib.util import find_spec
from msdscore import load_encoder
rng = np.random.default_rng(0)
images = [Image.fromarray(rng.integers(0, 256, (240, 320, 3), dtype=np.uint8)) for _ in range(8)]
runtimes = ["onnx", "torch"] if find_spec("torch") else ["onnx"]
encoders = {name: load_encoder("mini", device="cpu", runtime=name) for name in runtimes}
ready, times = [encoders["onnx"].prepare(image) for image in images], {name: [] for name in encoders}
for _ in range(4):  # turn by turn: other load hits both
    for name, encoder in encoders.items():
        start = time.perf_counter(); encoder.encode_images(ready); times[name].append(time.perf_counter() - start)
print(json.dumps({name: len(images) / min(values[1:]) for name, values in times.items()}))
"""


def run(python, code):
    """Return the wall time, CPU time, peak memory in MB and output of a new process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    watch = f"{code}\nimport resource as r, sys; print(r.getrusage(r.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)"
    # Bytecode is written by the first run, as in an installation.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([python, "-c", watch], capture_output=True, text=True, check=True, env=env)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, int(done.stderr.split()[-1]), done.stdout


def best(python, code, repeats=5):
    results = [run(python, code) for _ in range(repeats + 1)][1:]  # the first reads files from disk
    return min(one[0] for one in results), min(one[1] for one in results), statistics.median(one[2] for one in results)


def size(folder):
    files = [path.stat() for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(facts.st_size for facts in files) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    python = parser.parse_args().python
    listing = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    packages = [one["name"] for one in json.loads(listing.stdout)]
    prefix = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    rows = [
        ("environment, MB", f"{size(prefix.stdout.strip()):.0f}", "550"),
        ("packages", f"{len(packages)}", "52"),
        ("torch", "installed" if "torch" in packages else "not installed", "not installed"),
    ]
    wall, _, _ = best(python, "pass")
    import_wall, _, _ = best(python, IMPORT)
    first_wall, first_cpu, memory = best(python, FIRST)
    rows += [
        ("import msdscore, s", f"{import_wall - wall:.2f}", "0.1"),
        ("process to first score, s", f"{first_wall:.2f}", "1.0"),
        ("its CPU time, s", f"{first_cpu:.2f}", "1.6"),
        ("its memory, MB", f"{memory:.0f}", "500"),
    ]
    rates = json.loads(run(python, SPEED)[3])
    rows.append(("images per second", f"{rates['onnx']:.0f}", ""))
    if "torch" in rates:
        rows.append(("times the rate of torch", f"{rates['onnx'] / rates['torch']:.2f}", "at least 1.4"))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name, value, budget in rows:
        print(f"{name:<28}{value:>16}{budget:>16}")


if __name__ == "__main__":
    main()
