"""Speed of `mini` on a GPU: pairs per second from files, the latency of captions of one image, and its parts.

    PYTHONPATH=src:weights/src python perf/mini_on_gpu.py
    PYTHONPATH=src:weights/src python perf/mini_on_gpu.py --images 4096 --option jpeg=device

Aims on an H200 with 16 cores: 2,000 pairs per second, 64 captions of one image in 20 ms. `first` is a call in a new
process, with the start of the decoding processes; `again` are later calls of the same size, in the same process.
`--cudnn` convolves with cuDNN, for comparison. The files are JPEG photographs of noise, 640 by 480 pixels.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from synthetic_clip import make_captions, make_rows
from torch.nn import functional

from msdscore import Scorer
from msdscore.cli.options import parsed
from msdscore_torch.aligned.lite2 import Convolution

SMALL = 512  # pairs of one call


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, until the GPU is idle."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def latency(scorer: Scorer, paths: list[Path], captions: list[str], count: int, repeats: int = 20) -> float:
    """Median milliseconds of `count` new captions of a new image, from its file."""
    times = []
    for number in range(repeats + 3):
        own = [f"{text} {number}" for text in captions[:count]]
        times.append(seconds(lambda: scorer.rank(paths[number % len(paths)], own)))  # noqa: B023, it is called at once
    return 1e3 * statistics.median(times[3:])


def encoder_rates(scorer: Scorer, paths: list[Path], captions: list[str]) -> None:
    """Print the rates of both towers on decoded images, in batches of 256."""
    pipeline = scorer.pipeline
    images = [item.prepared for item in pipeline.decode(paths[:256])]
    for what, work in (
        ("images", lambda: pipeline.encoder.encode_images(images)),
        ("texts", lambda: pipeline.encoder.encode_texts(captions[:256])),
    ):
        first = seconds(work)
        best = min(seconds(work) for _ in range(5))
        print(f"encoder, {what}: {256 / best:,.0f} per second, first batch {first:.2f} s", flush=True)
    few = images[:100]
    print(f"encoder, batch of another size: {seconds(lambda: pipeline.encoder.encode_images(few)):.2f} s", flush=True)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--option", nargs="*", default=[], help="options of the encoder, such as jpeg=device")
    parser.add_argument("--cudnn", action="store_true")
    args = parser.parse_args()
    if args.cudnn:
        Convolution.unplanned = lambda self, x, padding: functional.conv2d(  # type: ignore[method-assign]
            x, self.weight.to(x.dtype), self.bias.to(x.dtype), self.stride, padding, groups=self.groups
        )
    with tempfile.TemporaryDirectory() as folder:
        paths, captions = make_rows(Path(folder), args.images, tars=False)
        scorer = Scorer("mini", device=args.device, **dict(parsed(args.option)))
        print(scorer.signature)
        encoder_rates(scorer, paths, captions)
        for count in (1, 64):
            print(f"{count} captions of one image: {latency(scorer, paths, captions, count):.1f} ms", flush=True)
        small = min(SMALL, args.images)
        for what in ("first", "again", "again"):
            time_ = seconds(lambda: scorer.score_batch(paths[:small], captions[:small]))
            print(f"score_batch of {small} pairs, {what}: {time_:.2f} s, {small / time_:,.0f} per second", flush=True)
        fresh = make_captions(args.images, seed=1)
        time_ = seconds(lambda: sum(score.error is None for score in scorer.stream(zip(paths, fresh, strict=True))))
        print(f"stream of {args.images} pairs from files: {args.images / time_:,.0f} pairs per second", flush=True)


if __name__ == "__main__":
    main()
