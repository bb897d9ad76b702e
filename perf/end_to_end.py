"""End-to-end throughput against the encoder's peak, the decode rate, plain cosine and torchmetrics.

python perf/end_to_end.py                    on a GPU: CLIP ViT-L/14 in bfloat16 with random weights, about 150 seconds
python perf/end_to_end.py --device cpu       a small CLIP on the CPU

Images are generated JPEG files of 640 x 480 pixels, captions have 8 to 14 words. Results are in pairs per second unless
stated otherwise, after warm-up (kernels compiled, decoding processes started). End-to-end runs alternate, three times
each, and the rate is over all of them. The decode rate of the cores is measured before and after, because it depends on
other load. `own_ms` is the CPU time per pair, over all threads, of the process that feeds the GPU;
`encoder_peak_launching` is the peak with the attention kernels that scoring allows.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from functools import partial
from os import cpu_count
from pathlib import Path
from unittest.mock import patch

import torch
from against_torchmetrics import clip_scores
from synthetic_clip import LARGE, SMALL, TAR_ROWS, make_captions, make_checkpoint, make_lists, make_rows

from msdscore.core.embeddings import unit
from msdscore.encoders.base import Embeddings
from msdscore.encoders.preprocessing import read_pixels
from msdscore.encoders.registry import load_encoder
from msdscore.io.images import ImageLimits
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import Batch, score_batches
from msdscore_torch.gpu.launching import without_cudnn_attention


class Pooled:
    """The encoder without local vectors: patches and tokens are not projected or normalised."""

    def __init__(self, encoder):
        self._encoder = encoder

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    @torch.no_grad()
    def encode_images(self, images):
        from msdscore_torch.vision.device import stack_pixels

        model = self._encoder._model
        pixels = stack_pixels(images, self._encoder.preprocessing, self.device).to(self._encoder.precision)
        return _pooled(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output))

    @torch.no_grad()
    def encode_texts(self, texts):
        from msdscore.encoders.tokens import pack, tokenise_all
        from msdscore_torch.backbone import as_tensors
        from msdscore_torch.gpu.device import sent

        model = self._encoder._model
        batch = as_tensors(pack(tokenise_all(self._encoder._tokenizer, texts), self._encoder._text_settings))
        states = model.text_model(input_ids=sent(batch.ids, self.device))
        return _pooled(model.text_projection(states.pooler_output))


def _pooled(vectors):
    pooled = unit(vectors)
    mask = torch.ones(len(pooled), 1, dtype=torch.bool, device=pooled.device)
    return Embeddings(pooled.unsqueeze(1), mask, pooled, (None,) * len(pooled), (True,) * len(pooled))


class Cosine(Pipeline):
    """A pipeline that only computes the cosine of pooled vectors."""

    def launch(self, decoded, captions, owner, *, worst=0, references=()):
        from msdscore_torch.gpu.device import fetching, sent

        images, texts = self.embed_images(decoded), self.embed_texts(captions)
        sides = (images, owner), (texts, range(len(owner)))
        first, second = (sent(torch.tensor([side.row(item) for item in of]), self.encoder.device) for side, of in sides)
        fetch = fetching((images.vectors.pooled[first] * texts.vectors.pooled[second]).sum(dim=1))
        return lambda: fetch()[0].tolist()


def seconds(work, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def timed(work, device):
    """Return wall time and CPU time of this process."""
    start = time.process_time()
    return seconds(work, device), time.process_time() - start


def peak(encoder, batch, device, repeats):
    """Return pairs per second of the towers and projections only, on inputs that are already on the device."""
    model = encoder._model
    pixels = torch.randn(batch, 3, 224, 224, device=device, dtype=encoder.precision)
    ids = torch.randint(0, 500, (batch, 13), device=device)
    ids[:, -1] = encoder._text_settings.suffix[0]

    @torch.no_grad()
    def encode():
        image_output, text_output = model.vision_model(pixel_values=pixels), model.text_model(input_ids=ids)
        model.visual_projection(image_output.last_hidden_state), model.text_projection(text_output.last_hidden_state)

    encode()
    return batch * repeats / seconds(lambda: [encode() for _ in range(repeats)], device)


def requests(sources, captions, size):
    for first in range(0, len(sources), size):
        part = captions[first : first + size]
        yield Batch(sources[first : first + size], part, range(len(part)))


def stream(pipeline, sources, captions):
    return sum(len(scores) for scores in score_batches(pipeline, requests(sources, captions, pipeline.batch_size)))


def run_file(pipeline, folder, output):
    """Run `msdscore score rows.jsonl -o scores.parquet` without loading the encoder."""
    from msdscore.rows.files import open_rows
    from msdscore.run.rows import RunOptions, score_rows

    with open_rows(str(folder / "rows.jsonl")) as rows:
        result = score_rows(pipeline, rows, output, RunOptions(overwrite=True))
    assert result.failed == 0, result.reasons
    return result.rows


def run_shards(pipeline, folder, output, *, pattern="*.tar"):
    """Run `msdscore score *.tar -o DIR` without loading the encoder."""
    from msdscore.run.shards import ShardOptions
    from msdscore.run.workers import plan_jobs, score_jobs
    from msdscore.scoring.spec import ScorerSpec

    spec = ScorerSpec(encoder=str(folder / "clip"), device=str(pipeline.encoder.device))
    with patch.object(ScorerSpec, "build", lambda spec: copy(pipeline)):
        jobs = plan_jobs([str(folder / pattern)], str(output))
        results = list(score_jobs(spec, jobs, ShardOptions(overwrite=True)))
    assert not any(result.failed or result.error for result in results)
    return sum(result.rows for result in results)


def cores_rate(paths, steps):
    """Return images per second that all cores decode and preprocess, one process each, without other load."""
    prepare = partial(_decode, steps=steps)
    with ProcessPoolExecutor(cpu_count()) as pool:
        list(pool.map(prepare, paths[:256], chunksize=4))
        return len(paths) / seconds(lambda: list(pool.map(prepare, paths, chunksize=16)), "cpu")


def _decode(path, steps):
    read_pixels(path, steps=steps, limits=ImageLimits())  # not returned, so that the transfer is not measured


def decoders_rate(pipeline, paths):
    """Return images per second of our decoding processes, including the transfer, and the seconds until the first."""
    size = pipeline.batch_size
    parts = [paths[first : first + size] for first in range(0, len(paths), size)]
    with (
        ThreadPoolExecutor(8) as threads,
        pipeline.decoder.start_processes(threads) as processes,
    ):
        start = seconds(lambda: processes.decode(parts[0][:8]), "cpu")
        processes.decode(parts[0])
        with ThreadPoolExecutor(4) as readers:
            done = readers.map(lambda part: len(processes.decode(part)), parts)
            return len(paths) / seconds(lambda: sum(done), "cpu"), start


def threads_rate(pipeline, paths):
    with ThreadPoolExecutor(cpu_count()) as pool:
        return len(paths) / seconds(lambda: pipeline.decode(paths, pool=pool), "cpu")


def torchmetrics_rate(folder, paths, captions, device):
    """Return pairs per second of CLIPScore by torchmetrics, with as many decoding threads."""
    score = clip_scores(folder, device=device)
    score(paths[:64], captions[:64])
    return len(paths) / seconds(lambda: score(paths, captions), device)


@contextmanager
def optional(report, name):
    """Skip the block if a library is missing."""
    try:
        yield
    except ImportError as error:
        report(name, f"skipped: {error}")


def streams(report, pipelines, paths, device, name="stream", *, turns):
    """Run the pipelines alternately, each time with new captions; report rates over all runs."""
    spent = {kind: [] for kind in pipelines}
    for turn in range(turns):
        for kind, pipeline in pipelines.items():
            captions = make_captions(len(paths), seed=1 + turn)
            spent[kind].append(timed(partial(stream, pipeline, paths, captions), device))
    for kind, passes in spent.items():
        report_rate(report, f"{name}_{kind}", len(paths), passes)


def report_rate(report, name, count, passes):
    """Report pairs per second over all runs, and the CPU time of this process per pair."""
    clock, own = (sum(column) for column in zip(*passes, strict=True))
    report(name, count * len(passes) / clock)
    report(f"own_ms_{name}", 1e3 * own / count / len(passes))


def prepare(folder, device, count, report, **options):
    """Create a checkpoint, files and a pipeline."""
    sizes = LARGE if device == "cuda" else SMALL
    report("seconds_checkpoint", seconds(lambda: make_checkpoint(folder / "clip", device, sizes), device))
    start = time.perf_counter()
    paths, captions = make_rows(folder, count, **options)
    report("seconds_files", time.perf_counter() - start)
    return paths, captions


def dtype_on(device):
    return "bfloat16" if device == "cuda" else "float32"


def load(folder, device, **options):
    return load_encoder(str(folder / "clip"), device=device, dtype=dtype_on(device), **options)


def measure(folder, device, count, turns, report):
    paths, captions = prepare(folder, device, count, report)
    make_lists(folder, paths, captions, TAR_ROWS)
    start = time.perf_counter()
    encoder = load(folder, device)
    report("seconds_load", time.perf_counter() - start)
    size, decoders = (256, None) if device == "cuda" else (32, cpu_count())
    pipeline, cosine = Pipeline(encoder, decoders=decoders), Cosine(Pooled(encoder), decoders=decoders)
    report("encoder_peak", peak(encoder, size, device, 8 if device == "cuda" else 4))
    with without_cudnn_attention():
        report("encoder_peak_launching", peak(encoder, size, device, 8 if device == "cuda" else 4))
    decoding = [cores_rate(paths, encoder.preprocessing)]
    report("decode_cores_before", decoding[0])
    rate, start = decoders_rate(pipeline, paths)
    report("decoders_alone", rate)
    report("seconds_decoders_start", start)
    warm_up = max(2 * size, 64)
    report("seconds_first_msd", seconds(lambda: stream(pipeline, paths[:warm_up], captions[:warm_up]), device))
    stream(cosine, paths[:warm_up], captions[:warm_up])
    streams(report, {"msd": pipeline, "cosine": cosine}, paths, device, turns=turns)
    lists = partial(run_shards, pattern="list-*.jsonl")
    outputs = {"tars_to_parquet": run_shards, "lists_to_parquet": lists, "one_file_to_parquet": run_file}
    for name, work in outputs.items():
        with optional(report, name):
            run = partial(work, pipeline, folder, folder / f"{name}.parquet")
            if name == "tars_to_parquet":  # warm-up: starts the process that reads tars
                run(pattern=min(tar.name for tar in folder.glob("*.tar")))
            report_rate(report, name, count, [timed(run, device) for _ in range(turns)])
    decoding.append(cores_rate(paths, encoder.preprocessing))
    report("decode_cores_after", decoding[1])
    report("decode_cores", 2 / sum(1 / rate for rate in decoding))
    with optional(report, "torchmetrics"):
        part = max(64, min(1024, count // 16))
        report("torchmetrics", torchmetrics_rate(folder / "clip", paths[:part], captions[:part], device))
    pipeline = Pipeline(encoder, batch_size=pipeline.batch_size, decoders=0)
    few = paths[: max(64, min(2048, count // 4))]
    report("decode_threads", threads_rate(pipeline, few))
    streams(report, {"msd": pipeline}, few, device, "threads", turns=1)


def conclude(results):
    limit = min(results["encoder_peak"], results["decode_cores"])
    limiting = "the encoder's peak" if limit == results["encoder_peak"] else "the decode rate of the cores"
    for name in [key for key in results if key.startswith(("stream", "threads_", "tars", "lists", "one_file"))]:
        if not isinstance(results[name], str):
            print(f"{name}: {100 * results[name] / limit:.1f} % of {limiting}")
    if "stream_msd" in results:
        print(f"MSD against cosine: {100 * (results['stream_cosine'] / results['stream_msd'] - 1):+.1f} % time")
    if not isinstance(results.get("torchmetrics", ""), str):
        print(f"against torchmetrics' CLIPScore: {results['stream_msd'] / results['torchmetrics']:.1f} times faster")


def reporter(path):
    """Return a function that prints and stores a result, and the stored results; they survive an interruption."""
    results, start = {}, time.perf_counter()

    def report(name, value):
        results[name] = value
        shown = value if isinstance(value, str) else f"{value:10.2f}"
        print(f"{time.perf_counter() - start:6.1f} s  {name:<26} {shown}", flush=True)
        if path:
            path.write_text(json.dumps(results, indent=1), encoding="utf-8")

    return report, results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--images", type=int)
    parser.add_argument("--turns", type=int, default=3, help="number of runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = arguments.images or (8192 if arguments.device == "cuda" else 128)
    report, results = reporter(arguments.json)
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.device, count, arguments.turns, report)
    conclude(results)


if __name__ == "__main__":
    main()
