"""Overhead of shards: memory per row, and the check of finished shards.

python perf/shards.py
"""

import gc
import io
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from msdscore.forms.paper import Paper
from msdscore.io.files import TarImage
from msdscore.io.rows import Row
from msdscore.run.parts import part_table, plan, row_keys
from msdscore.run.shards import ShardJob, ShardOptions, input_columns, score_table
from msdscore.run.workers import score_jobs
from msdscore.scoring.results import Numbers
from msdscore.scoring.spec import ScorerSpec

ROWS, SHARDS = 200_000, 300
CAPTION = "A brown dog with a red collar runs along the sandy beach at sunset, while two children play."
VALUES = dict.fromkeys(("similarity", *Paper.columns, "msd"), 0.1) | {"length": 18, "windows": 1}
NUMBERS = Numbers(VALUES, worst=("dog", "beach", "sunset"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def rows():
    for number in range(ROWS):
        image = TarImage(Path("00000.tar"), number * 512, 100, f"{number:09d}.jpg")
        names = {"key": f"{number:09d}", "uid": f"{number:032x}"}
        yield Row(number, str(number), image, f"{number} {CAPTION}", None, names)


def memory() -> None:
    columns = input_columns()
    gc.collect()
    before = resident()
    parts = [
        part_table(row_keys(part), [NUMBERS] * len(part.rows), words=True)
        for part in plan(columns.watch(rows()), part_rows=512)
    ]
    while_scored = resident() - before
    table = score_table(columns, parts, Paper())
    with_table = resident() - before
    print(f"bytes per row: {while_scored / ROWS:.0f} while scored, {with_table / len(table):.0f} with the table")


def check() -> None:
    image = io.BytesIO()
    Image.new("RGB", (48, 32), "red").save(image, "JPEG")
    with TemporaryDirectory() as folder:
        tar = Path(folder, "00000.tar")
        with tarfile.open(tar, "w") as shard:
            for name, content in (("0.jpg", image.getvalue()), ("0.txt", b"a red square")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
        jobs = [ShardJob(str(tar), f"{folder}/scores/{number}.parquet") for number in range(SHARDS)]
        spec = ScorerSpec(encoder="toy", device="cpu")
        list(score_jobs(spec, jobs, ShardOptions()))
        wall, core = time.perf_counter(), time.process_time()
        assert not any(result.fresh for result in score_jobs(spec, jobs, ShardOptions()))
        wall, core = time.perf_counter() - wall, time.process_time() - core
        print(f"checking a finished shard: {wall / SHARDS * 1e3:.1f} ms, {core / SHARDS * 1e3:.1f} ms of a core")


if __name__ == "__main__":
    memory()
    check()
