"""CPU throughput by batch size, tokens, patches, candidates and workers, each relative to a reference point.

python perf/curves.py [-o docs/images/throughput.svg] [--workers]            needs msdscore-mini and matplotlib

Scoring runs on random unit vectors (D = 768, K = 3 and 2), encoding with `mini`; CPU time of one thread, which depends
little on other load. `--workers` scores tars with the toy encoder on 1, 2 and 4 processes and measures wall time, which
requires an idle machine.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from mini import seconds as cost
from PIL import Image
from scoring import side

from msdscore.core.divergence import diverge
from msdscore.core.mixture import FitSettings

PAIRS = 60  # approximately, per measurement
FITS = {"image_fit": FitSettings(components=3), "text_fit": FitSettings(components=2)}
REFERENCE = {"patches": 144, "tokens": 12, "candidates": 1, "batch": 32}
RANGES = {
    "patches": (49, 100, 144, 196, 256, 576),
    "tokens": (4, 8, 12, 24, 48, 96, 180),
    "candidates": (1, 2, 5, 10, 20),
    "batch": (1, 2, 4, 8, 16, 32, 64),
}


def scoring(*, patches, tokens, candidates, batch):
    """Return the seconds per pair of the scoring step."""
    count = max(1, batch // candidates)
    images, texts = side(count, patches, 768, "cpu"), side(count * candidates, tokens, 768, "cpu")
    image_of, text_of = torch.arange(count).repeat_interleave(candidates), torch.arange(count * candidates)
    rounds = max(1, PAIRS // (count * candidates))

    def work():
        for _ in range(rounds):
            diverge(images, texts, image_of, text_of, **FITS)

    return cost(work) / (rounds * count * candidates)


def encoding():
    """Return the seconds per image and per caption of `mini`, by batch size."""
    from msdscore.encoders.registry import load_encoder

    mini, noise = load_encoder("mini", device="cpu"), np.random.RandomState(0)
    images = [Image.fromarray(noise.randint(0, 255, (240, 320, 3), dtype=np.uint8)) for _ in range(16)]
    ready = [mini.prepare(image) for image in images]
    captions = [f"a dog number {number} runs on the wet sand of a beach" for number in range(64)]
    images_cost = {n: cost(lambda n=n: mini.encode_images(ready[:n]), 2) / n for n in (1, 2, 4, 8, 16)}
    captions_cost = {n: cost(lambda n=n: mini.encode_texts(captions[:n]), 2) / n for n in (1, 2, 4, 8, 16, 32, 64)}
    return images_cost, captions_cost


def workers():
    """Return rows per second of tars by number of processes, while all of them are busy."""
    from end_to_end_more import workers_rate
    from synthetic_clip import SMALL, make_checkpoint, make_rows, make_tars

    seconds_per_row = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_checkpoint(folder / "clip", "cpu", SMALL)
        make_tars(folder, *make_rows(folder, 4096, tars=False), 512)
        for count in (1, 2, 4):
            shards = sorted(folder.glob("*.tar"))
            seconds_per_row[count] = 1 / workers_rate(folder, "cpu", shards, folder / f"by-{count}", count)[0]
    return seconds_per_row


def relative(curve, reference):
    """Return the throughput relative to the reference point, from seconds per item."""
    return {size: curve[reference] / seconds for size, seconds in curve.items()}


def measure(with_workers):
    curves = {}
    for name, sizes in RANGES.items():
        costs = {size: scoring(**{**REFERENCE, name: size}) for size in sizes}
        curves[f"scoring: {name}"] = relative(costs, REFERENCE[name])
    images_cost, captions_cost = encoding()
    curves["mini, images: batch"], curves["mini, captions: batch"] = (
        relative(images_cost, 4),
        relative(captions_cost, 16),
    )
    if with_workers:
        curves["workers"] = relative(workers(), 1)
    return curves


def draw(curves, path):
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "msdscore"  # reproducible bytes
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, -(-len(curves) // 2), figsize=(12, 5.5), constrained_layout=True)
    for panel, (name, curve) in zip(panels.flat, curves.items(), strict=False):
        panel.plot(list(curve), list(curve.values()), marker="o", color="#1f5fa8")
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(curve), [f"{size}" for size in curve], fontsize=8)
        panel.minorticks_off()
        panel.axhline(1, color="#999999", linewidth=0.8, linestyle=":")
        panel.set_ylim(0, 1.1 * max(curve.values()))
        panel.set_title(name, fontsize=10)
    for panel in panels.flat[len(curves) :]:
        panel.set_visible(False)
    figure.supylabel("throughput, relative to the reference point", fontsize=10)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--workers", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    curves = measure(args.workers)
    print(f"reference point of scoring: {REFERENCE}; mini: 4 images, 16 captions per batch")
    for name, curve in curves.items():
        print(f"| {name} | " + " · ".join(f"{size}: {value:.2f}" for size, value in curve.items()) + " |")
    if args.output:
        draw(curves, args.output)


if __name__ == "__main__":
    main()
