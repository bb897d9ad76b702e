"""Effect of cheaper preprocessing: JPEG decoding at reduced size, and resizing by torch on the device.

python perf/pixels.py ROWS.jsonl IMAGES.parquet [--count 150]          rows: image and captions; needs msdscore-mini

Both change pixels slightly. The table shows the mean difference of a pixel value (of 255), the standard deviation of
the change of MSD relative to that of MSD, the fraction of caption pairs of one image whose order changes, and the CPU
time of decoding and preprocessing relative to the default. Small images are enlarged with added noise, or combined into
collages with real detail.
"""

import argparse
import io
import json
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from msdscore.encoders.preprocessing import as_prepared, prepare_image, read_pixels
from msdscore.io.images import ImageLimits, open_image
from msdscore.rows.images import StoredImages
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.spec import ScorerSpec
from msdscore_torch.vision.device import stack_pixels

SIDE = 6  # scale factor, and images along a side of a collage


def as_jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def enlarged(images, index, times=SIDE):
    """Return one image enlarged, with added noise."""
    image = images[index]
    large = image.resize((times * image.width, times * image.height), Image.Resampling.BICUBIC)
    grain = np.random.RandomState(index).normal(0, 4, (large.height, large.width, 1))
    return as_jpeg(Image.fromarray((np.asarray(large) + grain).clip(0, 255).astype(np.uint8)))


def collage(images, index):
    """Return a collage of one image and the next ones."""
    width, height = images[index].size
    sheet = Image.new("RGB", (SIDE * width, SIDE * height))
    for cell in range(SIDE * SIDE):
        other = images[(index + cell) % len(images)].resize((width, height))
        sheet.paste(other, (cell % SIDE * width, cell // SIDE * height))
    return as_jpeg(sheet)


def preprocessings(steps):
    """Return preprocessing functions by name."""

    def reduced(margin):
        cheaper = replace(steps, reduced=margin)
        return lambda content: as_prepared(*read_pixels(content, steps=cheaper, limits=ImageLimits()))

    device = replace(steps, on_device=True)
    return {
        "default": lambda content: prepare_image(open_image(content), steps),
        "jpeg=smallest": reduced(1),
        "jpeg=reduced": reduced(2),
        "resize=device": lambda content: prepare_image(open_image(content), device),
    }


def cost(make, contents):
    times = []
    for _ in range(3):
        start = time.process_time()
        for content in contents:
            make(content)
        times.append(time.process_time() - start)
    return min(times)


def reordered_fraction(before, after, owner):
    """Return the fraction of caption pairs of one image whose order differs."""
    pairs = [(a, b) for a, b in combinations(range(len(owner)), 2) if owner[a] == owner[b] and before[a] != before[b]]
    return np.mean([(before[a] - before[b]) * (after[a] - after[b]) < 0 for a, b in pairs])


def table(pipeline, contents, captions, owner, chosen):
    tower = pipeline.encoder._image
    steps, msd, pixels, times = tower.preprocessing, {}, {}, {}
    for name, make in preprocessings(steps).items():
        if name in chosen:
            ready = [make(content) for content in contents]
            # mini does not support it; it is forced here to measure its effect on scores.
            tower.preprocessing = replace(steps, on_device=name == "resize=device")
            levels = replace(tower.preprocessing, scale=1.0, mean=(0.0,) * 3)
            pixels[name] = stack_pixels(ready, levels, torch.device("cpu"))
            numbers = pipeline.score([Decoded(item) for item in ready], captions, owner)
            msd[name] = np.array([item.values["msd"] for item in numbers])
            tower.preprocessing = steps
            times[name] = cost(make, contents[:40])
    default = msd["default"]
    for name in list(msd)[1:]:
        change = (msd[name] - default).std() / default.std()
        difference = (pixels[name] - pixels["default"]).abs()
        print(
            f"| {name} | {difference.mean():.2f} | {change:.3f} "
            f"| {100 * reordered_fraction(default, msd[name], owner):.1f} % "
            f"| {times[name] / times['default']:.2f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=150)
    args = parser.parse_args()
    stored, rows = StoredImages([args.images], "file_name"), {}
    for line in args.rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["image"], []).extend(row.get("captions") or [row["caption"]])
    names = [name for name in rows if stored.find(name)]
    names = names[:: max(1, len(names) // args.count)][: args.count]
    images = [open_image(stored.find(name).read()) for name in names]
    captions, owner = [], []
    for index, name in enumerate(names):
        # The captions of the image, and one of the next image.
        for text in [*dict.fromkeys(rows[name][:3]), rows[names[(index + 1) % len(names)]][0]]:
            captions.append(text)
            owner.append(index)
    pipeline = ScorerSpec(encoder="mini", options={"runtime": "torch"}, device="cpu", limits=ImageLimits()).build()
    reduced = ("default", "jpeg=smallest", "jpeg=reduced")
    small = {
        "original size": lambda images, index: as_jpeg(images[index]),
        "twice as large": lambda images, index: enlarged(images, index, 2),
    }
    for make, kinds in (({"enlarged": enlarged, "collages": collage}, reduced), (small, ("default", "resize=device"))):
        for kind, large in make.items():
            contents = [large(images, index) for index in range(len(images))]
            sizes = [Image.open(io.BytesIO(content)).size for content in contents]
            print(
                f"\n{len(images)} images, {kind} (such as {sizes[0][0]} x {sizes[0][1]}), {len(captions)} pairs\n"
                "| pixels | mean difference | change of MSD | reordered pairs | time to decode |\n|---|---|---|---|---|"
            )
            table(pipeline, contents, captions, owner, kinds)


if __name__ == "__main__":
    main()
