"""More end-to-end measurements on a GPU: curves, cheaper preprocessing, several processes, and stages.

python perf/end_to_end_more.py curves     pairs per second against decoding processes, requests ahead, batch, captions
python perf/end_to_end_more.py pixels     resize=device and jpeg=smallest, 640 x 480 pixels
python perf/end_to_end_more.py large      jpeg=reduced and jpeg=smallest, 1280 x 960 pixels
python perf/end_to_end_more.py workers    tars, and lists of files, on one, two and three processes that share the GPU
python perf/end_to_end_more.py stages     milliseconds of every stage per request, and the effect of decoding threads

Same checkpoint, images and captions as in `gpu_gate.py`; results are in pairs per second after warm-up, one run.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from os import cpu_count
from pathlib import Path
from unittest.mock import patch

from runs import cores_rate, dtype_on, load, peak, prepare, reporter, requests, seconds, stream
from synthetic_clip import make_captions, make_lists, make_tars

from msdscore.scoring import pipeline as scoring_pipeline
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import Batch, stream_batches
from msdscore_torch.feeding import images as feeding_images
from msdscore_torch.feeding.images import DecodingProcesses
from msdscore_torch.gpu import device as core_device

DECODERS = {4, 8, 12, 14, 15, 20}  # with a GPU
WORKERS = (1, 2, 3)  # processes that share the GPU
SHARD_ROWS, SHARDS = 1024, 24  # their inputs
PIXELS = ({}, {"resize": "device"}, {"jpeg": "smallest"})
LARGE_PIXELS = ({}, {"jpeg": "reduced"}, {"jpeg": "smallest"})


def rate(pipeline, paths, device, seed):
    warm = paths[: 2 * pipeline.batch_size]
    stream(pipeline, warm, make_captions(len(warm), seed=seed))
    return rate_of(pipeline, paths, device, seed + 1000)


def several(pipeline, paths, each, device):
    """Return pairs per second with `each` captions per image."""

    def requests(sources, seed):
        captions = make_captions(len(sources) * each, seed=seed)
        for first in range(0, len(sources), pipeline.batch_size):
            part = sources[first : first + pipeline.batch_size]
            owner = [index for index in range(len(part)) for _ in range(each)]
            yield Batch(part, captions[first * each : first * each + len(owner)], owner)

    def run(sources, seed):
        scored = stream_batches(pipeline, requests(sources, seed))
        assert sum(len(numbers) for _, numbers in scored) == each * len(sources)

    run(paths[: 2 * pipeline.batch_size], 7 + each)
    return each * len(paths) / seconds(lambda: run(paths, 70 + each), device)


def curves(folder, device, count, report):
    paths, _ = prepare(folder, device, count, report, tars=False)
    encoder = load(folder, device)
    batch_size = 256 if device == "cuda" else 32
    for number in sorted(DECODERS | {cpu_count()} if device == "cuda" else {1, cpu_count()}):
        pipeline = Pipeline(encoder, batch_size=batch_size, decoders=number)
        part = paths[: max(2 * batch_size, min(count, number * count // 16))]
        report(f"decoders_{number}", rate(pipeline, part, device, number))
    for number in (3, 6, 12) if device == "cuda" else ():
        with patch.object(feeding_images, "GPU_AHEAD", (number, number)):
            pipeline = Pipeline(encoder, batch_size=batch_size, decoders=cpu_count())
            report(f"ahead_{number}", rate(pipeline, paths, device, 200 + number))
    for size in (64, 128, 256, 512, 1024) if device == "cuda" else (8, 32):
        report(f"batch_{size}", rate(Pipeline(encoder, batch_size=size, decoders=cpu_count()), paths, device, size))
    for each in (2, 5, 10) if device == "cuda" else (2,):
        pipeline = Pipeline(encoder, batch_size=batch_size, decoders=cpu_count())
        report(f"captions_{each}", several(pipeline, paths[: max(2 * batch_size, count // 2)], each, device))


def pixels(folder, device, count, report, *, options=PIXELS, size=(640, 480)):
    paths, _ = prepare(folder, device, count, report, tars=False, size=size)
    for chosen in options:
        name = ",".join(f"{key}={value}" for key, value in chosen.items()) or "plain"
        encoder = load(folder, device, **chosen)
        pipeline = Pipeline(encoder, decoders=cpu_count())
        report(f"decode_cores {name}", cores_rate(paths[: max(64, count // 4)], encoder.preprocessing))
        report(f"stream_msd {name}", rate(pipeline, paths, device, 1))


def large(folder, device, count, report):
    pixels(folder, device, count // 2, report, options=LARGE_PIXELS, size=(1280, 960))


def workers(folder, device, count, report):
    rows = SHARD_ROWS if device == "cuda" else 32
    paths, captions = prepare(folder, device, min(count, 4 * rows), report, tars=False)
    make_tars(folder, paths, captions, rows)
    make_lists(folder, paths, captions, rows)
    encoder = load(folder, device)
    report("encoder_peak", peak(encoder, 256 if device == "cuda" else 32, device, 8 if device == "cuda" else 1))
    report("decode_cores", cores_rate(paths, encoder.preprocessing))
    del encoder
    for kind, pattern in (("tars", "*.tar"), ("lists", "list-*.jsonl")):
        for number in WORKERS:
            shards = sorted(folder.glob(pattern))
            rate, start = workers_rate(folder, device, shards, folder / f"{kind}-by-{number}", number)
            report(f"{kind}_{number}_workers", rate)
            report(f"seconds_{kind}_{number}_workers_start", start)


def workers_rate(folder, device, shards, output, count, **options):
    """Return rows per second of `msdscore score SHARDS -o DIR --workers N` while all workers are busy.

    Also return the seconds until each worker has finished its first shard (start of processes, loading of encoders).
    The last shards are not counted either, to compensate for work that was done before the first measurement.
    """
    from msdscore.run.folder import ShardJob
    from msdscore.run.shards import ShardOptions
    from msdscore.run.workers import score_on_workers
    from msdscore.scoring.spec import ScorerSpec

    output.mkdir()
    jobs = [ShardJob(str(shards[number % len(shards)]), str(output / f"{number}.parquet")) for number in range(SHARDS)]
    spec, arrived, start = (
        ScorerSpec(encoder=str(folder / "clip"), device=device, dtype=dtype_on(device), options=options),
        [],
        time.perf_counter(),
    )
    for result in score_on_workers(spec, jobs, ShardOptions(), workers=count):
        assert result.error is None, result.error
        arrived.append((time.perf_counter(), result.rows))
    first, last = count - 1, SHARDS - 1 - 2 * count
    spent = arrived[last][0] - arrived[first][0]
    return sum(rows for _, rows in arrived[first + 1 : last + 1]) / spent, arrived[first][0] - start


def stages(folder, device, count, report):
    """Return wall time and CPU time of the working thread per request, in milliseconds."""
    paths, captions = prepare(folder, device, count, report, tars=False)
    encoder = load(folder, device)
    msd = {}
    for decoders in (0, cpu_count()):
        pipeline = Pipeline(encoder, decoders=decoders)
        outputs = stream_batches(pipeline, requests(paths[:300], captions[:300], pipeline.batch_size))
        msd[decoders] = [score.msd for _, scores in outputs for score in scores]
    report("threads_against_decoders", max(abs(a - b) for a, b in zip(*msd.values(), strict=True)))
    spent = defaultdict(list)
    fetching = core_device.fetching
    with ExitStack() as stack:
        waits = patch.object(core_device, "fetching", lambda *tensors: timed(spent["wait"], fetching(*tensors)))
        stack.enter_context(waits)
        for owner, name in STAGES:
            stack.enter_context(patch.object(owner, name, timed(spent[name], getattr(owner, name))))
        stream(pipeline, paths[: 2 * pipeline.batch_size], captions)
        for values in spent.values():
            values.clear()
        report("stream_msd", rate_of(pipeline, paths, device))
    for name, values in spent.items():
        for kind, column in zip(("clock", "processor"), zip(*values, strict=True), strict=True):
            report(f"ms_{kind}_{name}", 1e3 * sum(column) / len(column))


def rate_of(pipeline, paths, device, seed=11):
    captions = make_captions(len(paths), seed=seed)
    return len(paths) / seconds(lambda: stream(pipeline, paths, captions), device)


def timed(spent, work):
    def call(*args, **kwargs):
        clock, processor = time.perf_counter(), time.thread_time()
        try:
            return work(*args, **kwargs)
        finally:
            spent.append((time.perf_counter() - clock, time.thread_time() - processor))

    return call


STAGES = (
    (DecodingProcesses, "decode"),
    (Embedder, "texts"),
    (Embedder, "images"),
    (Pipeline, "measure"),
    (scoring_pipeline, "numbers_of"),
    (Pipeline, "score"),
)
PARTS = {"curves": curves, "pixels": pixels, "large": large, "stages": stages, "workers": workers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--images", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report, _ = reporter(arguments.json)
    with tempfile.TemporaryDirectory() as folder:
        count = arguments.images or (4096 if arguments.device == "cuda" else 128)
        PARTS[arguments.part](Path(folder), arguments.device, count, report)


if __name__ == "__main__":
    main()
