"""Batches for metrics, as the runner builds them."""

from dataclasses import replace

import numpy as np
from PIL import Image

from msdscore.errors import ImageError
from msdscore.scorer import Scorer
from msdscore_lab.benchmarks.run.cases import make_vectors
from msdscore_lab.metrics.base import Cases


def make_batch(
    images: list[Image.Image | None],
    cases: list[tuple[int, tuple[str, ...]]],
    *,
    references: list[tuple[str, ...]] | None = None,
    control: list[bool] | None = None,
    whole: bool = True,
    names: tuple[str, ...] = (),
) -> Cases:
    """Return a batch of (image index, candidate captions)."""
    texts = tuple(dict.fromkeys(text for _, captions in cases for text in captions))
    owner = np.array([image for image, _ in cases], dtype=np.int64)
    return Cases(
        ids=tuple(f"item/{number}" for number in range(len(cases))),
        texts=texts,
        captions=np.array([[texts.index(text) for text in captions] for _, captions in cases], dtype=np.int64),
        images=tuple(images),
        owner=owner,
        group=owner,
        control=np.array(control or [False] * len(cases)),
        references=tuple(references or [()] * len(cases)),
        whole=whole,
        names=names,
    )


def with_vectors(batch: Cases, scorer: Scorer, *, mixtures: bool = True) -> Cases:
    decoded = [ImageError("no image") if one is None else scorer.pipeline.decode([one])[0] for one in batch.images]
    vectors, _ = make_vectors(batch, decoded, scorer.pipeline, mixtures=mixtures)
    return replace(batch, vectors=vectors)
