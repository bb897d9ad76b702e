"""Change of a score under re-encoding, resizing and a shift of one pixel.

python perf/noise_floor.py ROWS.jsonl IMAGES.parquet [COUNT] [ENCODER]     rows: image, caption; needs msdscore-mini
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from msdscore import Scorer
from msdscore.io.images import open_image
from msdscore.rows.images import StoredImages

CAPTIONS = 4  # per image
LANCZOS = Image.Resampling.LANCZOS


def saved_as(image, kind, **settings):
    """Return the image after a round trip through a file of another format."""
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return open_image(file.getvalue())


CHANGES = {
    "TIFF, PNG": lambda image: saved_as(image, "TIFF"),
    "JPEG, quality 95": lambda image: saved_as(image, "JPEG", quality=95),
    "JPEG, quality 75": lambda image: saved_as(image, "JPEG", quality=75),
    "WebP, quality 80": lambda image: saved_as(image, "WEBP", quality=80),
    "1.5 times as large": lambda image: image.resize((image.width * 3 // 2, image.height * 3 // 2), LANCZOS),
    "half as large": lambda image: image.resize((image.width // 2, image.height // 2), LANCZOS),
    "without its first row and column": lambda image: image.crop((1, 1, *image.size)),
}


def main(rows, images, count="40", encoder="mini"):
    """Print the table of the model card."""
    stored = StoredImages([Path(images)], "file_name")
    captions = {}
    for line in Path(rows).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        captions.setdefault(row["image"], []).append(row["caption"])
    names = [name for name in captions if stored.find(name)]
    names = names[:: max(1, len(names) // int(count))][: int(count)]
    chosen = [(name, text) for name in names for text in list(dict.fromkeys(captions[name]))[:CAPTIONS]]
    originals = {name: open_image(stored.find(name).read()) for name in names}
    scorer = Scorer(encoder)

    def score(change):
        changed = {name: change(image) for name, image in originals.items()}
        return np.array(scorer.score_batch([changed[name] for name, _ in chosen], [text for _, text in chosen]).msd)

    before = score(lambda image: image)
    print(f"{len(chosen)} pairs of {len(names)} images; MSD has a standard deviation of {before.std():.3f}")
    print("| same image | standard deviation of the change | largest | mean |\n|---|---|---|---|")
    for name, change in CHANGES.items():
        moved = score(change) - before
        print(f"| {name} | {moved.std():.3f} | {np.abs(moved).max():.3f} | {moved.mean():+.3f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
