"""Time saved by `--cache`: without a cache, with an empty cache, and with another kappa and a full cache.

CPU time over all threads, from files to the scored file, without loading weights; and the size of the cache.

python perf/cache.py                          needs msdscore-mini
python perf/cache.py --images 200 --captions 5 --encoder toy
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from msdscore.encoders.cached import CacheSettings
from msdscore.rows.files import open_rows
from msdscore.run.rows import score_file
from msdscore.scoring.spec import ScorerSpec


def write_rows(folder, images, captions):
    """Write JPEG files of coloured clouds, and rows with captions."""
    noise, lines = np.random.RandomState(0), []
    for number in range(images):
        cloud = Image.fromarray(noise.randint(0, 255, (12, 16, 3), dtype=np.uint8)).resize((640, 480), Image.BICUBIC)
        cloud.save(folder / f"{number}.jpg", quality=90)
        for caption in range(captions):
            lines.append(f'{{"image": "{number}.jpg", "caption": "cloud {number} of colours seen {caption} times"}}')
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder / "rows.jsonl"


def run(spec, rows, output):
    pipeline = spec.build()
    start = time.process_time()
    with open_rows(rows) as source:
        result = score_file(pipeline, source, output)
    return time.process_time() - start, result.cache, pq.read_table(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="mini")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--captions", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = write_rows(folder, args.images, args.captions)
        spec = ScorerSpec(encoder=args.encoder, form="short")
        full = replace(spec, cache=CacheSettings(folder=str(folder / "full")))
        runs = {
            "no cache": spec,
            "empty cache": full,
            "kappa 30, full cache": replace(full, changes=(("kappa", 30.0),)),
        }
        tables, first = {}, None
        for number, (name, settings) in enumerate(runs.items()):
            seconds, use, tables[name] = run(settings, rows, folder / f"{number}.parquet")
            first = first or seconds
            print(f"{name:22} {seconds:8.2f} s  {first / seconds:6.1f} times as fast  {use or ''}")
        size = sum(path.stat().st_size for path in (folder / "full").rglob("*") if path.is_file())
        print(f"{size / args.images / 1e3:.0f} kB per image with its captions")
        assert tables["no cache"].column("msd").equals(tables["empty cache"].column("msd"))


if __name__ == "__main__":
    main()
