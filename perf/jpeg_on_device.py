"""JPEG files decoded by the GPU (`jpeg=device`): how fast, and how far scores move.

python perf/jpeg_on_device.py rates [--compile inductor]      CLIP ViT-L/14 in bfloat16 with random weights
taskset -c 0-3 python perf/jpeg_on_device.py rates --only device             the same with four cores
python perf/jpeg_on_device.py workers                         tars to Parquet by 1, 2 and 3 processes that share a GPU
python perf/jpeg_on_device.py large                           files of 50 megapixels: rate, and memory of the GPU
python perf/jpeg_on_device.py scores ROWS.jsonl FOLDER        JPEG photographs with captions; needs msdscore[mini]
python perf/jpeg_on_device.py pixels ROWS.jsonl FOLDER --pixels P.npz        where the GPU's machine has no weights

`rates` are pairs per second of a warm pipeline, in turns, each over all files `--rounds` times, start and end included;
the encoder's peak is that of its towers on pixels which lie on the GPU. `scores` says how far pixels and scores of
`mini` are from the usual ones, beside those of the same files saved once more as JPEG of quality 95: mean difference of
a value (of 255), standard deviation of the change of MSD over that of MSD between all pairs, and orders of two captions
of one image that turn round.
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
from end_to_end import (
    Cosine,
    Pooled,
    cores_rate,
    load,
    optional,
    peak,
    prepare,
    run_shards,
    stream,
    streams,
    tell_rate,
    teller,
    torchmetrics_rate,
)
from end_to_end import timed as measured
from end_to_end_more import SHARD_ROWS, WORKERS, workers_rate
from made_up_clip import TAR_ROWS, make_captions, make_lists, make_tars
from PIL import Image
from pixels import turned

from msdscore.core.device import launching
from msdscore.encoders.registry import load_encoder
from msdscore.encoders.vision.canvas import Preprocessing, read_pixels
from msdscore.encoders.vision.device import decode_jpegs
from msdscore.encoders.vision.preprocessing import as_prepared
from msdscore.io.images import ImageLimits, open_image
from msdscore.scoring.pipeline import Pipeline

MINI = (288, 288)  # pixels that `mini` takes


def rates(folder, device, count, turns, said, *, ways, backend, rounds):
    paths, captions = prepare(folder, device, count, said)
    make_lists(folder, paths, captions, TAR_ROWS)
    for tar in sorted(folder.glob("*.tar")):
        for number in range(1, rounds):
            tar.with_name(f"{tar.stem}-{number}.tar").hardlink_to(tar)
    said("cores", len(os.sched_getaffinity(0)))
    pipelines, options = {}, {"compile": backend} if backend else {}
    for way in ways:
        encoder = load(folder, device, jpeg=way, **options)
        pipelines[f"msd_{way}"] = Pipeline(encoder)
        pipelines[f"cosine_{way}"] = Cosine(Pooled(encoder))
    some = paths[: 4 * 256 if device == "cuda" else 64]
    for pipeline in pipelines.values():
        stream(pipeline, some, make_captions(len(some), seed=7))
    size = 256 if device == "cuda" else 32
    with launching(encoder.device):
        said("encoder_peak", peak(encoder, size, device, 16 if device == "cuda" else 2))
    streams(said, pipelines, paths * rounds, device, turns=turns)
    for way in ways:
        run = partial(run_shards, pipelines[f"msd_{way}"], folder, folder / f"tars-{way}")
        tell_rate(said, f"tars_to_parquet_{way}", count * rounds, [measured(run, device) for _ in range(turns)])
    with launching(encoder.device):
        said("encoder_peak_in_the_end", peak(encoder, size, device, 16 if device == "cuda" else 2))
    with optional(said, "torchmetrics"):
        part = min(512, count)
        said("torchmetrics", torchmetrics_rate(folder / "clip", paths[:part], captions[:part], device))
    if "full" in ways:
        said("decode_cores", cores_rate(paths[: count // 2], pipelines["msd_full"].encoder.preprocessing))


def conclude(found):
    top = (found["encoder_peak"] + found["encoder_peak_in_the_end"]) / 2
    for name, value in found.items():
        if name.startswith(("stream_", "tars_")):
            print(f"{name}: {100 * value / top:.1f} % of the encoder's peak")


def workers(folder, device, count, said, *, numbers):
    paths, captions = prepare(folder, device, min(count, 4 * SHARD_ROWS), said, tars=False)
    make_tars(folder, paths, captions, SHARD_ROWS)
    encoder = load(folder, device)
    with launching(encoder.device):
        said("encoder_peak", peak(encoder, 256 if device == "cuda" else 32, device, 16))
    del encoder
    said("cores", len(os.sched_getaffinity(0)))
    for number in numbers:
        tars = sorted(folder.glob("*.tar"))
        rate, start = workers_rate(folder, device, tars, folder / f"by-{number}", number, jpeg="device")
        said(f"tars_{number}_workers", rate)
        said(f"seconds_{number}_workers_start", start)


def large(folder, device, said):
    """Files of 50 megapixels."""
    content, path = io.BytesIO(), folder / "large.jpg"
    noise = np.random.RandomState(0).randint(0, 255, (60, 85, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((8500, 6000), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    path.write_bytes(content.getvalue())
    prepare(folder, device, 64, said, tars=False)
    for way in ("full", "device"):
        pipeline = Pipeline(load(folder, device, jpeg=way))
        stream(pipeline, [path] * 4, make_captions(4, seed=1))
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        tell_rate(
            said, f"large_{way}", 64, [measured(partial(stream, pipeline, [path] * 64, make_captions(64)), device)]
        )
        if device == "cuda":
            said(f"gigabytes_{way}", torch.cuda.max_memory_allocated() / 1e9)
            free, total = torch.cuda.mem_get_info()
            said(f"gigabytes_taken_{way}", (total - free) / 1e9)


def saved_again(content):
    file = io.BytesIO()
    open_image(content).save(file, "JPEG", quality=95)
    return file.getvalue()


def photographs(rows, folder, count):
    """Files of a folder, their captions and one of the next image, and the number of the image of each caption."""
    captions_of = {}
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        captions_of.setdefault(row["image"], []).extend(row.get("captions") or [row["caption"]])
    names = [name for name in captions_of if (folder / name).is_file()][:count]
    captions, owner = [], []
    for place, name in enumerate(names):
        for text in [*dict.fromkeys(captions_of[name][:3]), captions_of[names[(place + 1) % len(names)]][0]]:
            captions.append(text)
            owner.append(place)
    return [(folder / name).read_bytes() for name in names], captions, owner


def pixels(rows, folder, output, device, count):
    """What the device makes of the files for `mini`, to be scored elsewhere with `scores --pixels`."""
    contents, _, _ = photographs(rows, folder, count)
    steps = Preprocessing(MINI, None, jpeg_on_device=True)
    files = [as_prepared(*read_pixels(content, steps=steps, limits=ImageLimits())) for content in contents]
    decoded = decode_jpegs(files, steps, torch.device(device))
    np.savez_compressed(output, *(one.pixels.cpu().numpy() for one in decoded))


def scores(rows, folder, device, count, said, *, stored=None):
    contents, captions, owner = photographs(rows, folder, count)
    made = {}
    for name, way, some in (
        ("usual", "full", contents),
        ("saved again, quality 95", "full", [saved_again(content) for content in contents]),
        ("jpeg=device", "device", contents),
    ):
        pipeline = Pipeline(load_encoder("mini", device=device, jpeg=way))
        decoded = pipeline.decode(some)
        if way == "device" and stored:
            canvases = np.load(stored)
            decoded = [
                replace(one, prepared=replace(one.prepared, pixels=torch.from_numpy(canvases[key])))
                for one, key in zip(decoded, canvases, strict=True)
            ]
        levels = torch.stack([one.prepared.pixels.cpu().float() for one in decoded])
        made[name] = levels, np.array([one.msd for one in pipeline.score(decoded, captions, owner)])
    levels, usual = made["usual"]
    said("images", len(contents))
    said("pairs", len(captions))
    for name, (others, msd) in list(made.items())[1:]:
        said(f"{name}: mean difference", float((others - levels).abs().mean()))
        said(f"{name}: MSD moves", float((msd - usual).std() / usual.std()))
        said(f"{name}: orders turned, %", 100 * float(turned(usual, msd, owner)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rates", "workers", "large", "scores", "pixels"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--pictures", type=int)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--only", choices=["full", "device"])
    parser.add_argument("--compile", default="")
    parser.add_argument("--pixels", type=Path, help="a file of canvases, written by `pixels` and read by `scores`")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    said, found = teller(asked.json)
    count = asked.pictures or (8192 if asked.device == "cuda" else 128)
    with tempfile.TemporaryDirectory() as folder:
        if asked.part == "scores":
            scores(*asked.files, asked.device, asked.pictures or 150, said, stored=asked.pixels)
        elif asked.part == "pixels":
            pixels(*asked.files, asked.pixels, asked.device, asked.pictures or 150)
        elif asked.part == "workers":
            workers(Path(folder), asked.device, count, said, numbers=asked.workers)
        elif asked.part == "large":
            large(Path(folder), asked.device, said)
        else:
            ways = (asked.only,) if asked.only else ("full", "device")
            chosen = {"ways": ways, "backend": asked.compile, "rounds": asked.rounds}
            rates(Path(folder), asked.device, count, asked.turns, said, **chosen)
            conclude(found)


if __name__ == "__main__":
    main()
