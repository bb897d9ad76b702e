"""Runs of the pipeline over generated files and their measurement, shared by the programs about GPUs."""

import json
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from functools import partial
from os import cpu_count
from unittest.mock import patch

import torch
from synthetic_clip import LARGE, SMALL, make_checkpoint, make_rows

from msdscore.core.embeddings import unit
from msdscore.encoders.base import Embeddings
from msdscore.encoders.preprocessing import read_pixels
from msdscore.encoders.registry import load_encoder
from msdscore.io.images import ImageLimits
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import Batch, stream_batches


class Pooled:
    """The encoder without local vectors: patches and tokens are not projected or normalised."""

    def __init__(self, encoder):
        self._encoder = encoder

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    @torch.no_grad()
    def encode_images(self, images):
        from msdscore_torch.vision.device import stack_pixels

        model = self._encoder.model
        pixels = stack_pixels(images, self._encoder.preprocessing, self.device).to(self._encoder.precision)
        return _pooled(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output))

    @torch.no_grad()
    def encode_texts(self, texts):
        from msdscore.encoders.tokens import pack
        from msdscore_torch.backbone import as_tensors
        from msdscore_torch.gpu.device import sent
        from msdscore_torch.tokenizers import tokenise_all

        model = self._encoder.model
        batch = as_tensors(pack(tokenise_all(self._encoder.tokenizer, texts), self._encoder.text_settings))
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

        images, texts = self.embedder.images(decoded), self.embedder.texts(captions)
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
    model = encoder.model
    pixels = torch.randn(batch, 3, 224, 224, device=device, dtype=encoder.precision)
    ids = torch.randint(0, 500, (batch, 13), device=device)
    ids[:, -1] = encoder.text_settings.suffix[0]

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
    return sum(len(scores) for _, scores in stream_batches(pipeline, requests(sources, captions, pipeline.batch_size)))


def run_file(pipeline, folder, output):
    """Run `msdscore score rows.jsonl -o scores.parquet` without loading the encoder."""
    from msdscore.rows.files import open_rows
    from msdscore.run.options import RunOptions
    from msdscore.run.rows import score_file

    with open_rows(str(folder / "rows.jsonl")) as rows:
        result = score_file(pipeline, rows, output, RunOptions(overwrite=True))
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
    from against_torchmetrics import clip_scores  # of today's metric; the others also run with earlier versions

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
