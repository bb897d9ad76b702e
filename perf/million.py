"""Time and peak memory of `score` and `select` by number of rows, under a memory limit.

Shards of 10,000 rows (1,000 JPEG images of 64 x 64 pixels, ten captions each) are scored with the toy encoder, one
after the other in one process that exits if it uses more than 1,000 MB; then the best 30 % are selected.

python perf/million.py                                  a million rows: about 15 minutes of one core
python perf/million.py --rows 30000                     a minute
python perf/million.py --only select --rows 10000000    ten million rows of random scores
python perf/million.py --only file --rows 200000        one file of rows instead of shards: memory grows until
                                                        `--remember` MB of vectors are stored
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from msdscore.rows.files import open_rows
from msdscore.run.folder import Facts, write_shard
from msdscore.run.rows import score_file
from msdscore.run.shards import score_shard
from msdscore.scoring.spec import ScorerSpec
from msdscore.select.rule import Quota, Rule
from msdscore.select.run import select

SHARD, CAPTIONS = 10_000, 10
WORDS = ["red", "blue", "green", "yellow", "ball", "square", "dog", "house", "tree", "left", "right", "top", "street"]


def write_shard_of_rows(path, number):
    """Write random images and captions of one shard, seeded by its index."""
    noise = np.random.RandomState(number)
    images = []
    for _ in range(SHARD // CAPTIONS):
        buffer = io.BytesIO()
        Image.fromarray(noise.randint(0, 255, (8, 8, 3), dtype=np.uint8)).resize((64, 64)).save(buffer, "JPEG")
        images.append(buffer.getvalue())
    words = noise.choice(WORDS, (SHARD, 6))
    first = number * SHARD
    table = {
        "uid": [f"{int(a):016x}{int(b):016x}" for a, b in noise.randint(0, 2**62, (SHARD, 2))],
        "id": [str(first + row) for row in range(SHARD)],
        "image": pa.array([images[row // CAPTIONS] for row in range(SHARD)], pa.binary()),
        "caption": [f"a {' '.join(row_words)} {first + row}" for row, row_words in enumerate(words)],
    }
    pq.write_table(pa.table(table), path)


def write_random_scores(folder, rows):
    """Write shards of a million rows each with random scores."""
    for number in range(-(-rows // 1_000_000)):
        noise, count = np.random.RandomState(number), min(1_000_000, rows - number * 1_000_000)
        uids = noise.bytes(16 * count).hex()
        columns = {
            "key": [f"{number:05d}{row:07d}" for row in range(count)],
            "uid": [uids[32 * row : 32 * row + 32] for row in range(count)],
            "similarity": noise.randn(count),
            "msd": noise.randn(count),
        }
        facts = Facts(source=f"{number}.tar", manifest={"signature": "synthetic"}, rows=count)
        write_shard(pa.table(columns), str(folder / f"{number:05d}.parquet"), facts)


def limited(megabytes):
    """Exit the process as soon as it uses more memory than the limit.

    System limits also count reserved memory, and the allocators of Arrow and torch reserve gigabytes.
    """

    def watch():
        while peak() <= megabytes:
            time.sleep(0.05)
        print(f"more than {megabytes} MB of memory", file=sys.stderr, flush=True)
        os._exit(9)

    threading.Thread(target=watch, daemon=True).start()


def peak():
    """Return the peak memory in MB; `getrusage` would include the memory of the parent at the start."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def do_score(folder, rows, megabytes):
    """Score all shards, and print one line of JSON after each."""
    limited(megabytes)
    pipeline = ScorerSpec(encoder="toy").build()
    seconds = 0.0
    for number in range(rows // SHARD):
        source = folder / f"{number:05d}.parquet"
        write_shard_of_rows(source, number)
        start = time.process_time()
        result = score_shard(pipeline, source, folder / "scores" / source.name)
        seconds += time.process_time() - start
        assert (result.rows, result.failed) == (SHARD, 0)
        source.unlink()
        print(json.dumps([(number + 1) * SHARD, seconds, peak()]), flush=True)


def do_file(folder, rows, megabytes, remember=512):
    """Score one file of `rows` rows."""
    limited(megabytes)
    writer = None
    for number in range(rows // SHARD):
        write_shard_of_rows(folder / "part.parquet", number)
        part = pq.read_table(folder / "part.parquet")
        writer = writer or pq.ParquetWriter(folder / "rows.parquet", part.schema)
        writer.write_table(part)
    writer.close()
    pipeline = ScorerSpec(encoder="toy").build().remembering(remember << 19)
    start = time.process_time()
    with open_rows(folder / "rows.parquet") as source:
        result = score_file(pipeline, source, folder / f"{rows}.parquet")
    assert (result.rows, result.failed) == (rows, 0)
    print(json.dumps([rows, time.process_time() - start, peak()]), flush=True)


def do_select(folder, rows, megabytes):
    """Select from the scores of `rows` rows."""
    limited(megabytes)
    files, left = [], rows
    for path in sorted((folder / "scores").glob("*.parquet")):
        if left > 0:
            files.append(str(path))
            left -= pq.read_metadata(path).num_rows
    start = time.process_time()
    result = select(files, Rule(keep=Quota.parse("0.3")), str(folder / "keep.npy"), overwrite=True)
    assert result.kept == Quota.parse("0.3").of(result.valid)
    print(json.dumps([result.rows, time.process_time() - start, peak()]), flush=True)


def child(name, folder, rows, megabytes, *options):
    """Run a measurement in a child process and yield its results."""
    command = [sys.executable, __file__, "--child", name, str(folder), "--rows", str(rows), "--memory", str(megabytes)]
    command += options
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"{name} failed with exit code {process.returncode}")


def linear_fit(points):
    """Return the slope of the fitted line, and the largest residual relative to the last value."""
    rows, values = np.array(points).T
    line = np.polyfit(rows, values, 1)
    return line[0], np.abs(np.polyval(line, rows) - values).max() / values[-1]


def show(title, points):
    print(f"\n{title}\n{'rows':>12} {'seconds':>10} {'us per row':>11} {'peak MB':>9}")
    for rows, seconds, memory in points:
        print(f"{rows:>12,} {seconds:>10.1f} {1e6 * seconds / rows:>11.1f} {memory:>9.0f}")
    if len(points) > 2:
        slope, residual = linear_fit([(rows, seconds) for rows, seconds, _ in points])
        growth = (points[-1][2] - points[0][2]) / (points[-1][0] - points[0][0]) * 1e6
        print(
            f"time: {1e6 * slope:.1f} us per row, largest residual of a linear fit {100 * residual:.1f} % of the total"
        )
        print(f"memory: {growth:+.1f} MB per million rows after the first {points[0][0]:,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", type=int, default=1000, help="memory limit of a process, MB")
    parser.add_argument("--remember", type=int, default=512, help="cached vectors of `--only file`, MB")
    parser.add_argument("--only", choices=["score", "select", "file"])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        work = {"score": do_score, "select": do_select, "file": do_file}[args.child[0]]
        more = {"remember": args.remember} if args.child[0] == "file" else {}
        work(Path(args.child[1]), args.rows, args.memory, **more)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "scores").mkdir()
        steps = sorted({max(SHARD, int(args.rows * share) // SHARD * SHARD) for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1)})
        if args.only == "file":
            options = ("--remember", str(args.remember))
            points = [next(iter(child("file", folder, rows, args.memory, *options))) for rows in steps]
            show(f"score of one file, {args.memory} MB allowed", points)
            return
        if args.only == "select":
            write_random_scores(folder / "scores", args.rows)
        else:
            scored = list(child("score", folder, args.rows, args.memory))
            show(f"score, {args.memory} MB allowed", [point for point in scored if point[0] in steps])
        if args.only != "score":
            chosen = [next(iter(child("select", folder, rows, args.memory))) for rows in steps]
            show(f"select, {args.memory} MB allowed", chosen)


if __name__ == "__main__":
    main()
