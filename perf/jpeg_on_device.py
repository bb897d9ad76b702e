"""JPEG decoding on the GPU (`jpeg=device`): throughput, and effect on scores.

python perf/jpeg_on_device.py workers                         tars to Parquet on 1, 2 and 3 processes that share a GPU
python perf/jpeg_on_device.py large                           files of 50 megapixels: throughput and GPU memory
python perf/jpeg_on_device.py scores ROWS.jsonl FOLDER        JPEG photographs with captions; needs msdscore-mini
python perf/jpeg_on_device.py pixels ROWS.jsonl FOLDER --pixels P.npz        for a GPU machine without the weights

The rates of `jpeg=device` are in `gpu_gate.py`. `scores` compares pixels and scores of
`mini` with CPU decoding, and with the same files re-encoded as JPEG of quality 95: mean difference of a pixel value
(of 255), standard deviation of the change of MSD relative to that of MSD, and the fraction of caption pairs of one
image whose order changes.
"""

import argparse
import io
import json
import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from end_to_end_more import SHARD_ROWS, WORKERS, workers_rate
from PIL import Image
from pixels import reordered_fraction
from runs import load, peak, prepare, report_rate, reporter, stream, timed
from synthetic_clip import make_captions, make_tars

from msdscore.encoders.preprocessing import Preprocessing, as_prepared, read_pixels
from msdscore.encoders.registry import load_encoder
from msdscore.io.images import ImageLimits, open_image
from msdscore.scoring.pipeline import Pipeline
from msdscore_torch.gpu.launching import without_cudnn_attention
from msdscore_torch.vision.device import decode_jpegs

MINI = (288, 288)  # input size of `mini`


def workers(folder, device, count, report, *, numbers):
    paths, captions = prepare(folder, device, min(count, 4 * SHARD_ROWS), report, tars=False)
    make_tars(folder, paths, captions, SHARD_ROWS)
    encoder = load(folder, device)
    with without_cudnn_attention():
        report("encoder_peak", peak(encoder, 256 if device == "cuda" else 32, device, 16))
    del encoder
    report("cores", len(os.sched_getaffinity(0)))
    for number in numbers:
        tars = sorted(folder.glob("*.tar"))
        rate, start = workers_rate(folder, device, tars, folder / f"by-{number}", number, jpeg="device")
        report(f"tars_{number}_workers", rate)
        report(f"seconds_{number}_workers_start", start)


def large(folder, device, report):
    """Measure files of 50 megapixels."""
    content, path = io.BytesIO(), folder / "large.jpg"
    noise = np.random.RandomState(0).randint(0, 255, (60, 85, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((8500, 6000), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    path.write_bytes(content.getvalue())
    prepare(folder, device, 64, report, tars=False)
    for mode in ("full", "device"):
        pipeline = Pipeline(load(folder, device, jpeg=mode))
        stream(pipeline, [path] * 4, make_captions(4, seed=1))
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        report_rate(
            report, f"large_{mode}", 64, [timed(partial(stream, pipeline, [path] * 64, make_captions(64)), device)]
        )
        if device == "cuda":
            report(f"gigabytes_{mode}", torch.cuda.max_memory_allocated() / 1e9)
            free, total = torch.cuda.mem_get_info()
            report(f"gigabytes_taken_{mode}", (total - free) / 1e9)


def reencoded(content):
    file = io.BytesIO()
    open_image(content).save(file, "JPEG", quality=95)
    return file.getvalue()


def photographs(rows, folder, count):
    """Return files of a folder, their captions and one of the next image, and the image index of each caption."""
    captions_of = {}
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        captions_of.setdefault(row["image"], []).extend(row.get("captions") or [row["caption"]])
    names = [name for name in captions_of if (folder / name).is_file()][:count]
    captions, owner = [], []
    for index, name in enumerate(names):
        for text in [*dict.fromkeys(captions_of[name][:3]), captions_of[names[(index + 1) % len(names)]][0]]:
            captions.append(text)
            owner.append(index)
    return [(folder / name).read_bytes() for name in names], captions, owner


def pixels(rows, folder, output, device, count):
    """Store the pixels that the device decodes for `mini`, to be scored elsewhere with `scores --pixels`."""
    contents, _, _ = photographs(rows, folder, count)
    steps = Preprocessing(MINI, None, jpeg_on_device=True)
    files = [as_prepared(*read_pixels(content, steps=steps, limits=ImageLimits())) for content in contents]
    decoded = decode_jpegs(files, steps, torch.device(device))
    np.savez_compressed(output, *(image.pixels.cpu().numpy() for image in decoded))


def scores(rows, folder, device, count, report, *, stored=None):
    contents, captions, owner = photographs(rows, folder, count)
    results = {}
    for name, mode, files in (
        ("default", "full", contents),
        ("re-encoded, quality 95", "full", [reencoded(content) for content in contents]),
        ("jpeg=device", "device", contents),
    ):
        pipeline = Pipeline(load_encoder("mini", device=device, jpeg=mode))
        decoded = pipeline.decode(files)
        if mode == "device" and stored:
            canvases = np.load(stored)
            decoded = [
                replace(image, prepared=replace(image.prepared, pixels=torch.from_numpy(canvases[key])))
                for image, key in zip(decoded, canvases, strict=True)
            ]
        levels = torch.stack([image.prepared.pixels.cpu().float() for image in decoded])
        results[name] = levels, np.array([score.values["msd"] for score in pipeline.score(decoded, captions, owner)])
    levels, default = results["default"]
    report("images", len(contents))
    report("pairs", len(captions))
    for name, (changed, msd) in list(results.items())[1:]:
        report(f"{name}: mean difference", float((changed - levels).abs().mean()))
        report(f"{name}: change of MSD", float((msd - default).std() / default.std()))
        report(f"{name}: reordered pairs, %", 100 * float(reordered_fraction(default, msd, owner)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["workers", "large", "scores", "pixels"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--images", type=int)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--pixels", type=Path, help="file of pixels, written by `pixels` and read by `scores`")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report, _ = reporter(args.json)
    count = args.images or (8192 if args.device == "cuda" else 128)
    with tempfile.TemporaryDirectory() as folder:
        if args.part == "scores":
            rows, images = args.files
            scores(rows, images, args.device, args.images or 150, report, stored=args.pixels)
        elif args.part == "pixels":
            rows, images = args.files
            pixels(rows, images, args.pixels, args.device, args.images or 150)
        elif args.part == "workers":
            workers(Path(folder), args.device, count, report, numbers=args.workers)
        else:
            large(Path(folder), args.device, report)


if __name__ == "__main__":
    main()
