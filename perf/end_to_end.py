"""From files to scores: the whole way against the encoder's own peak, the decode rate, plain cosine and torchmetrics.

python perf/end_to_end.py                    on a GPU: CLIP ViT-L/14 in bfloat16 with random weights, some 3 minutes
python perf/end_to_end.py --device cpu       a small CLIP on the CPU

Pictures are JPEG files of 640 x 480 pixels made on the spot, captions have 8 to 14 words. Every figure is in pairs per
second unless it says otherwise. With `decoders`, other processes decode; `own_ms` is the processor time, over all
threads, of the process that feeds the GPU.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from os import cpu_count
from pathlib import Path

import torch
from against_torchmetrics import clip_scores
from made_up_clip import LARGE, SMALL, make_checkpoint, make_rows

from msdscore.core.sphere import unit
from msdscore.encoders.base import Embeddings
from msdscore.encoders.registry import load_encoder
from msdscore.io.images import open_image
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import Request, score_requests

WORKERS = (4, 8)  # processes that share the GPU


class Pooled:
    """The same encoder for cosine similarity alone: no patch and no token is projected or normalised."""

    def __init__(self, encoder):
        self._encoder = encoder

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    @torch.no_grad()
    def encode_images(self, images):
        from msdscore.encoders.vision.preprocessing import stack_pixels

        parts, model = self._encoder._parts, self._encoder._parts.model
        pixels = stack_pixels(images, parts.preprocessing, self.device).to(self._encoder.precision)
        return _pooled(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output))

    @torch.no_grad()
    def encode_texts(self, texts):
        from msdscore.encoders.text.tokens import pack, tokenise

        parts, model = self._encoder._parts, self._encoder._parts.model
        batch = pack([tokenise(parts.backend, text) for text in texts], parts.reading)
        attention = batch.attention.to(self.device).long()
        states = model.text_model(input_ids=batch.ids.to(self.device), attention_mask=attention)
        return _pooled(model.text_projection(states.pooler_output))


def _pooled(vectors):
    pooled = unit(vectors)
    mask = torch.ones(len(pooled), 1, dtype=torch.bool, device=pooled.device)
    return Embeddings(pooled.unsqueeze(1), mask, pooled, (None,) * len(pooled))


class Cosine(Pipeline):
    """The same pipeline that compares nothing but pooled vectors."""

    def score(self, decoded, captions, owner, *, worst=0):
        images, texts = self.embed_images(decoded), self.embed_texts(captions)
        rows = torch.tensor([texts.row(item) for item in range(len(owner))], device=self.encoder.device)
        return (images.vectors.pooled[list(owner)] * texts.vectors.pooled[rows]).sum(dim=1).tolist()


def seconds(work, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(encoder, batch, device, repeats):
    """Pairs per second of the towers and projections alone, on pixels and ids that lie on the device."""
    model = encoder._parts.model
    pixels = torch.randn(batch, 3, 224, 224, device=device, dtype=encoder.precision)
    ids = torch.randint(0, 500, (batch, 13), device=device)
    ids[:, -1] = encoder._parts.reading.suffix[0]

    @torch.no_grad()
    def encode():
        seen, read = model.vision_model(pixel_values=pixels), model.text_model(input_ids=ids)
        model.visual_projection(seen.last_hidden_state), model.text_projection(read.last_hidden_state)

    encode()
    return batch * repeats / seconds(lambda: [encode() for _ in range(repeats)], device)


def requests(sources, captions, size):
    for first in range(0, len(sources), size):
        some = captions[first : first + size]
        yield Request(sources[first : first + size], some, range(len(some)))


def stream(pipeline, sources, captions):
    return sum(len(found) for found in score_requests(pipeline, requests(sources, captions, pipeline.batch_size)))


def run_file(pipeline, folder, output):
    """`msdscore score rows.jsonl -o scores.parquet`, less the loading of the encoder."""
    from msdscore.engine.local import RunOptions, score_rows
    from msdscore.io.inputs.rows import open_rows

    with open_rows(str(folder / "rows.jsonl")) as rows:
        made = score_rows(pipeline, rows, output, RunOptions(overwrite=True))
    assert made.failed == 0, made.reasons
    return made.rows


def run_tars(pipeline, folder, output):
    """`msdscore score *.tar -o DIR`, less the loading of the encoder."""
    from msdscore.engine.shard import score_shard

    output.mkdir(exist_ok=True)
    tars = sorted(folder.glob("*.tar"))
    results = [score_shard(pipeline, tar, output / f"{tar.stem}.parquet") for tar in tars]
    assert not sum(result.failed for result in results)
    return sum(result.rows for result in results)


def workers_rate(folder, output, count):
    """`msdscore score *.tar -o DIR --workers N` from where every worker has finished a shard on, in rows per second."""
    from msdscore.engine.jobs import ShardJob
    from msdscore.engine.shard import ShardOptions
    from msdscore.engine.workers import score_on_workers
    from msdscore.scoring.spec import ScorerSpec

    output.mkdir()
    tars = sorted(folder.glob("*.tar"))
    jobs = [ShardJob(str(tar), str(output / f"{turn}-{tar.stem}.parquet")) for turn in range(3) for tar in tars]
    spec, arrived = ScorerSpec(encoder=str(folder / "clip"), dtype="bfloat16"), []
    for result in score_on_workers(spec, jobs, ShardOptions(), workers=count):
        assert result.error is None, result.error
        arrived.append((time.perf_counter(), result.rows))
    return sum(rows for _, rows in arrived[count:]) / (arrived[-1][0] - arrived[count - 1][0])


def decode_rates(pipeline, paths):
    """Pictures per second of reading, decoding and preparing: by the threads that a run uses, and by processes."""
    with ThreadPoolExecutor(cpu_count()) as pool:
        threads = len(paths) / seconds(lambda: pipeline.decode(paths, pool=pool), "cpu")
    prepare = partial(_decode, steps=pipeline.encoder._parts.preprocessing)
    with ProcessPoolExecutor(cpu_count()) as pool:
        list(pool.map(prepare, paths[:64], chunksize=4))
        processes = len(paths) / seconds(lambda: list(pool.map(prepare, paths, chunksize=16)), "cpu")
    return threads, processes


def _decode(path, steps):
    from msdscore.encoders.vision.preprocessing import prepare_picture

    torch.set_num_threads(1)
    prepare_picture(open_image(path), steps)  # not sent back: that would be another work


def torchmetrics_rate(folder, paths, captions, device):
    """CLIPScore per pair by torchmetrics, decoded by as many threads."""
    score = clip_scores(folder, device=device)
    score(paths[:64], captions[:64])
    return len(paths) / seconds(lambda: score(paths, captions), device)


def measure(folder, device, count, said):
    sizes = LARGE if device == "cuda" else SMALL
    make_checkpoint(folder / "clip", device, sizes)
    paths, captions = make_rows(folder, count)
    dtype = "bfloat16" if device == "cuda" else "float32"
    encoder = load_encoder(str(folder / "clip"), device=device, dtype=dtype)
    pipeline = Pipeline(encoder)
    cosine = Cosine(Pooled(encoder))
    # Rates below are of warm pipelines: kernels compiled, libraries initialised.
    some = max(2 * pipeline.batch_size, 64)
    for one in (pipeline, cosine):
        stream(one, paths[:some], captions[:some])
    if device == "cuda":
        said("encoder_peak", peak(encoder, 256, device, 8))
        said("encoder_peak_batch_1024", peak(encoder, 1024, device, 2))
    else:
        said("encoder_peak", peak(encoder, 32, device, 4))
    few = paths[: max(64, count // 4)]
    threads, processes = decode_rates(pipeline, few)
    said("decode_threads", threads)
    said("decode_processes", processes)
    for name, one in (("cosine", cosine), ("msd", pipeline)):
        taken = time.process_time()
        said(f"stream_{name}", max(count / seconds(lambda: stream(one, paths, captions), device) for _ in range(2)))  # noqa: B023
        said(f"own_ms_per_pair_{name}_threads", 1e3 * (time.process_time() - taken) / count / 2)
    for name, one in (("cosine", cosine), ("msd", pipeline)):
        one.decoders = cpu_count()
        taken = time.process_time()
        said(f"stream_{name}_decoders", count / seconds(lambda: stream(one, paths, captions), device))  # noqa: B023
        said(f"own_ms_per_pair_{name}", 1e3 * (time.process_time() - taken) / count)
    for name, work in (("files_to_parquet", run_file), ("tars_to_parquet", run_tars)):
        try:
            said(name, count / seconds(lambda: work(pipeline, folder, folder / f"{name}.parquet"), device))  # noqa: B023
        except ImportError as error:
            said(name, f"left out: {error}")
    if device == "cuda":
        for number in WORKERS:
            try:
                said(f"tars_{number}_workers", workers_rate(folder, folder / f"by-{number}", number))
            except ImportError as error:
                said(f"tars_{number}_workers", f"left out: {error}")
    try:
        part = max(64, count // 16)
        said("torchmetrics", torchmetrics_rate(folder / "clip", paths[:part], captions[:part], device))
    except ImportError as error:
        said("torchmetrics", f"left out: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--pictures", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    count = arguments.pictures or (8192 if arguments.device == "cuda" else 128)
    found, begun = {}, time.perf_counter()

    def said(name, value):
        found[name] = value
        shown = value if isinstance(value, str) else f"{value:10.1f}"
        print(f"{time.perf_counter() - begun:6.1f} s  {name:<26} {shown}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")

    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.device, count, said)
    limit = min(found["encoder_peak"], found["decode_processes"])
    what = "the encoder's peak" if limit == found["encoder_peak"] else "the decode rate"
    for name in [one for one in found if one.startswith(("stream", "files", "tars"))]:
        if not isinstance(found[name], str):
            print(f"{name}: {100 * found[name] / limit:.1f} % of {what}")
    print(f"MSD against cosine: {100 * (found['stream_cosine'] / found['stream_msd'] - 1):+.1f} % time")
    if not isinstance(found["torchmetrics"], str):
        print(f"against torchmetrics' CLIPScore: {found['stream_msd'] / found['torchmetrics']:.1f} times as fast")


if __name__ == "__main__":
    main()
