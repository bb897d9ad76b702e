"""Good and bad pairs that a threshold of match retains, against similarity and msd at the same share of good pairs.

python perf/thresholds.py ROWS.jsonl [COUNT] [ENCODER]

The rows have `image` and `captions`, with the images in files or in ROWS.images.parquet. Good pairs are an image and
its first caption; bad ones have a caption of another image: a random one, or the one whose captions share most rare
words with those of the image.
"""

import json
import sys
from pathlib import Path

import numpy as np

from msdscore import Scorer
from msdscore.io.inputs.finder import ImageFinder
from msdscore.scoring.calibrate import similar_texts

LEVELS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
COLUMNS = ("match", "msd", "similarity")
KINDS = ("good", "random", "similar")


def main(rows, count="300", encoder="mini"):
    """Print a row per threshold: percentages of good, random and similar pairs that each column retains."""
    entries = [json.loads(line) for line in Path(rows).read_text(encoding="utf-8").splitlines()]
    captions = [tuple(entry["captions"]) for entry in entries]
    similar, half, finder = similar_texts(captions), len(entries) // 2, ImageFinder(rows, None)
    chosen = range(0, len(entries), max(1, len(entries) // int(count)))[: int(count)]
    scorer, values = Scorer(encoder), {name: {kind: [] for kind in KINDS} for name in COLUMNS}
    for index in chosen:
        texts = (captions[index][0], captions[(index + half) % len(entries)][0], similar[index][0])
        scores = scorer.rank(finder.find(entries[index]["image"], "image"), texts, errors="row")
        for kind, score in zip(KINDS, scores, strict=True):
            for name in COLUMNS:
                values[name][kind].append(getattr(score, name))
    good = {name: np.sort(found["good"]) for name, found in values.items()}
    for level in LEVELS:
        kept = np.mean(good["match"] >= level)
        print(f"match >= {level}: good {kept:.1%}", end="")
        for name in COLUMNS:
            cut = level if name == "match" else np.quantile(good[name], 1 - kept)
            shares = [f"{kind} {np.mean(np.array(values[name][kind]) >= cut):.1%}" for kind in KINDS[1:]]
            print(f"; {name}: {', '.join(shares)}", end="")
        print()
    print(f"{len(chosen)} images; {scorer.signature}")


if __name__ == "__main__":
    main(*sys.argv[1:])
