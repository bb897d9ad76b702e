"""How far a score moves when the image stays the same: other file formats, sizes and a shift of one pixel.

python perf/noise_floor.py ROWS.jsonl PICTURES.parquet [COUNT] [ENCODER]     rows: image, caption; needs msdscore[mini]
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from msdscore import Scorer
from msdscore.io.images import open_image
from msdscore.io.parquet_images import stored_images

CAPTIONS = 4  # per image
LANCZOS = Image.Resampling.LANCZOS


def again(picture, kind, **settings):
    """The image after a file of another format."""
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return open_image(file.getvalue())


CHANGES = {
    "TIFF, PNG": lambda picture: again(picture, "TIFF"),
    "JPEG, quality 95": lambda picture: again(picture, "JPEG", quality=95),
    "JPEG, quality 75": lambda picture: again(picture, "JPEG", quality=75),
    "WebP, quality 80": lambda picture: again(picture, "WEBP", quality=80),
    "1.5 times as large": lambda picture: picture.resize((picture.width * 3 // 2, picture.height * 3 // 2), LANCZOS),
    "half as large": lambda picture: picture.resize((picture.width // 2, picture.height // 2), LANCZOS),
    "without its first row and column": lambda picture: picture.crop((1, 1, *picture.size)),
}


def main(rows, pictures, count="40", encoder="mini"):
    """Print the table of the model card."""
    stored = stored_images([Path(pictures)], "file_name")
    captions = {}
    for line in Path(rows).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        captions.setdefault(row["image"], []).append(row["caption"])
    names = [name for name in captions if name in stored]
    names = names[:: max(1, len(names) // int(count))][: int(count)]
    chosen = [(name, text) for name in names for text in list(dict.fromkeys(captions[name]))[:CAPTIONS]]
    originals = {name: open_image(stored[name].read()) for name in names}
    scorer = Scorer(encoder)

    def score(change):
        changed = {name: change(picture) for name, picture in originals.items()}
        return np.array(scorer.score_batch([changed[name] for name, _ in chosen], [text for _, text in chosen]).msd)

    before = score(lambda picture: picture)
    print(f"{len(chosen)} pairs of {len(names)} pictures; MSD has a standard deviation of {before.std():.3f}")
    print("| the same picture | standard deviation of the change | largest | mean |\n|---|---|---|---|")
    for name, change in CHANGES.items():
        moved = score(change) - before
        print(f"| {name} | {moved.std():.3f} | {np.abs(moved).max():.3f} | {moved.mean():+.3f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
