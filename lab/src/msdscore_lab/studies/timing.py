"""Latency of a pair by stage and caption length, one pair at a time.

Columns and buckets are those of the paper's table of latency (features, EM/KL, CLIPScore, MSD, Soft-MSD; up to 16,
17 to 126 and more tokens, and overall). With the form `paper`, captions in the last bucket have the components of long
captions, (5, 3).
"""

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import torch

from msdscore.core.arrays import Device, is_gpu, to_numpy
from msdscore.core.divergence import soften, total
from msdscore.forms.base import numbers_of
from msdscore.forms.paper import Paper
from msdscore.intervals import bootstrap_mean
from msdscore.io.images import ImageSource
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import captioned_images
from msdscore_lab.benchmarks.run.plan import BY_LENGTH
from msdscore_lab.benchmarks.run.runner import Progress
from msdscore_lab.studies.context import Study, every_nth
from msdscore_lab.studies.table import Column, Plot, Row, Table

BUCKETS = {"up to 16": 16, "17 to 126": 126, "more than 126": math.inf}  # tokens, as in the paper's table
STAGES = ("decode", "image encoder", "text encoder", "EM/KL", "cosine", "gate")
# The paper's columns as sums of stages.
PAPER_COLUMNS = {
    "features": STAGES[:3],
    "EM/KL": STAGES[3:4],
    "CLIPScore": (*STAGES[:3], "cosine"),
    "MSD": STAGES[:4],
    "Soft-MSD": (*STAGES[:4], "gate"),
}
SourcePair = tuple[ImageSource, str]
Timed = tuple[float, ...]  # milliseconds of the stages of a pair
T = TypeVar("T")


def timing(study: Study) -> list[Table]:
    """Milliseconds per pair by caption length, for every caption of the images."""
    pairs = [
        (image_source(entry.image), text)
        for entry in every_nth(captioned_images(study.root), study.limit)
        for text in entry.captions
    ]
    pipeline = replace(study.spec, cache=None).build()
    device = pipeline.encoder.device
    kind = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    machine = f"{torch.cuda.get_device_name(device) if is_gpu(device) else kind}, torch {torch.__version__}"
    stages = [Column(stage, "", ".2f") for stage in (*STAGES[:3], *PAPER_COLUMNS)]
    plot = Plot(x="tokens", y=[stage.name for stage in stages], title="one pair at a time",
                x_label="tokens of the caption", y_label="milliseconds")  # fmt: skip
    by_length = study.spec.form in BY_LENGTH and isinstance(pipeline.form, Paper)
    form = replace(pipeline.form, components=(5, 3)) if by_length else pipeline.form
    with study.progress("timing") as show:
        rows = times(pipeline, pairs, show, long=Pipeline(pipeline.encoder, form))
    return [Table(
        name="buckets",
        title="Milliseconds per pair, mean with 95 % interval",
        columns=[Column("tokens"), Column("pairs"), *stages],
        rows=rows,
        notes=["one pair at a time, features are the first three stages", f"measured on {machine}"],
        signature=pipeline.signature,
        facts={"machine": machine},
        plots=[plot],
    )]  # fmt: skip


def times(
    pipeline: Pipeline, pairs: Sequence[SourcePair], progress: Progress, *, long: Pipeline | None = None
) -> list[Row]:
    """Time every pair separately; the first pair is also the warm-up.

    `long` scores the pairs of the last bucket.
    """
    long = long or pipeline
    buckets: dict[str, list[Timed]] = {name: [] for name in BUCKETS}
    for index, pair in enumerate([pairs[0], *pairs]):
        length, milliseconds = _time(pipeline, long, pair)
        if index:
            buckets[next(name for name, max_tokens in BUCKETS.items() if length <= max_tokens)].append(milliseconds)
        progress(index, len(pairs))
    buckets["overall"] = list(chain.from_iterable(buckets.values()))
    return [_row(name, timed) for name, timed in buckets.items() if timed]


def _time(pipeline: Pipeline, long: Pipeline, pair: SourcePair) -> tuple[int, Timed]:
    """Return the number of tokens of the caption, and the milliseconds of every stage."""
    source, caption = pair
    timed = partial(_milliseconds, device=pipeline.encoder.device)
    decode, decoded = timed(lambda: pipeline.decode([source]))
    image, images = timed(lambda: pipeline.embedder.images(decoded).require())
    text, texts = timed(lambda: pipeline.embedder.texts([caption]).require())
    length = int(to_numpy(texts.vectors.token_counts)[0])
    used = long if length > BUCKETS["17 to 126"] else pipeline
    scoring, row = timed(lambda: numbers_of(used.measure(images, texts, [0], [0]), used.form)[0])
    cosine, _ = timed(lambda: total(images.vectors.pooled * texts.vectors.pooled).item())
    one = np.array([row.values["similarity"]]), np.array([row.values["msd"]]), np.zeros(1, dtype=np.int64)
    softened, _ = timed(lambda: soften(*one, temperature=pipeline.form.temperature))
    return length, (decode, image, text, scoring, cosine, softened)


def _row(tokens: str, timed: Sequence[Timed]) -> Row:
    stages = {stage: [milliseconds[index] for milliseconds in timed] for index, stage in enumerate(STAGES)}
    sums = {name: [sum(stage_times) for stage_times in zip(*(stages[stage] for stage in parts), strict=True)]
            for name, parts in PAPER_COLUMNS.items()}  # fmt: skip
    return {
        "tokens": tokens,
        "pairs": len(timed),
        **{name: bootstrap_mean(values) for name, values in {**stages, **sums}.items()},
    }


def _milliseconds(work: Callable[[], T], device: Device) -> tuple[float, T]:
    """Return the time until the device has finished the work, and its result."""
    start = time.perf_counter()
    result = work()
    if is_gpu(device):
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - start), result
