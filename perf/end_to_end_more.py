"""More end-to-end measurements on a GPU: cheaper preprocessing, and several processes.

python perf/end_to_end_more.py pixels     resize=device and jpeg=smallest, 640 x 480 pixels
python perf/end_to_end_more.py large      jpeg=reduced and jpeg=smallest, 1280 x 960 pixels
python perf/end_to_end_more.py workers    tars, and lists of files, on one, two and three processes that share the GPU

Same checkpoint, images and captions as in `gpu_gate.py`; results are in pairs per second after warm-up, one run.
"""

import argparse
import tempfile
import time
from os import cpu_count
from pathlib import Path

from runs import cores_rate, dtype_on, load, peak, prepare, reporter, seconds, stream
from synthetic_clip import make_captions, make_lists, make_tars

from msdscore.scoring.pipeline import Pipeline

WORKERS = (1, 2, 3)  # processes that share the GPU
SHARD_ROWS, SHARDS = 1024, 24  # their inputs
PIXELS = ({}, {"resize": "device"}, {"jpeg": "smallest"})
LARGE_PIXELS = ({}, {"jpeg": "reduced"}, {"jpeg": "smallest"})


def rate(pipeline, paths, device, seed):
    warm = paths[: 2 * pipeline.batch_size]
    stream(pipeline, warm, make_captions(len(warm), seed=seed))
    return rate_of(pipeline, paths, device, seed + 1000)


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


def rate_of(pipeline, paths, device, seed=11):
    captions = make_captions(len(paths), seed=seed)
    return len(paths) / seconds(lambda: stream(pipeline, paths, captions), device)


PARTS = {"pixels": pixels, "large": large, "workers": workers}


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
