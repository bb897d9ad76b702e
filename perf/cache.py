"""What `--cache` saves: a first run, the same with an empty cache, and one with another kappa that finds all vectors.

Processor time over all threads, from files to the scored file, weights loaded before; and what half precision changes.

python perf/cache.py                          needs msdscore[mini]
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
from msdscore.io.inputs.rows import open_rows
from msdscore.run.rows import score_rows
from msdscore.scoring.spec import ScorerSpec


def write_rows(folder, pictures, captions):
    """JPEG files of coloured clouds, with captions."""
    noise, lines = np.random.RandomState(0), []
    for number in range(pictures):
        cloud = Image.fromarray(noise.randint(0, 255, (12, 16, 3), dtype=np.uint8)).resize((640, 480), Image.BICUBIC)
        cloud.save(folder / f"{number}.jpg", quality=90)
        for other in range(captions):
            lines.append(f'{{"image": "{number}.jpg", "caption": "cloud {number} of colours seen {other} times"}}')
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder / "rows.jsonl"


def run(spec, rows, output):
    pipeline = spec.build()
    start = time.process_time()
    with open_rows(rows) as source:
        made = score_rows(pipeline, source, output)
    return time.process_time() - start, made.cache, pq.read_table(output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="mini")
    parser.add_argument("--pictures", type=int, default=100)
    parser.add_argument("--captions", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = write_rows(folder, asked.pictures, asked.captions)
        spec = ScorerSpec(encoder=asked.encoder, config="short")
        full = replace(spec, cache=CacheSettings(folder=str(folder / "full")))
        half = replace(spec, cache=CacheSettings(folder=str(folder / "half"), half=True))
        runs = {
            "no cache": spec,
            "empty cache": full,
            "kappa 30, full cache": replace(full, changes=(("kappa", 30.0),)),
            "empty cache, half": half,
            "kappa 30, half cache": replace(half, changes=(("kappa", 30.0),)),
        }
        tables, first = {}, None
        for number, (name, one) in enumerate(runs.items()):
            seconds, use, tables[name] = run(one, rows, folder / f"{number}.parquet")
            first = first or seconds
            print(f"{name:22} {seconds:8.2f} s  {first / seconds:6.1f} times as fast  {use or ''}")
        for name in ("full", "half"):
            size = sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file())
            print(f"{name}: {size / asked.pictures / 1e3:.0f} kB per picture with its captions")
        msd = {name: table.column("msd").to_numpy() for name, table in tables.items()}
        assert (msd["no cache"] == msd["empty cache"]).all()
        change = np.abs(msd["no cache"] - msd["empty cache, half"]).max() / msd["no cache"].std()
        print(f"half precision moves MSD by at most {change:.1e} standard deviations; a full cache by none")


if __name__ == "__main__":
    main()
