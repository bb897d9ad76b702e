"""CLIPScore, RefCLIPScore and LongCLIPScore on the pooled vectors of any encoder."""

from collections.abc import Mapping, Sequence

import numpy as np

from msdscore.encoders.base import TokenLayout
from msdscore.errors import ConfigError
from msdscore.metrics.base import Cases, CaseScores, Floats, Loaded, Vectors
from msdscore.metrics.msd import vectors_of

WEIGHT = 2.5  # w, CLIPScore paper
PREFIX = "A photo depicts "  # CLIPScore paper


def load_clipscore(prefix: str = PREFIX) -> Loaded:
    """2.5·max(cos, 0) of the image and the prefixed caption."""
    return Loaded(lambda batch: CaseScores(_clipscore(vectors_of(batch), prefix)), _choices(prefix))


def load_longclipscore(prefix: str = PREFIX) -> Loaded:
    """The same, refused where the encoder cannot read a caption at once."""

    def score(batch: Cases) -> CaseScores:
        vectors = vectors_of(batch)
        _require_one_window(vectors)
        return CaseScores(_clipscore(vectors, prefix))

    return Loaded(score, _choices(prefix))


def load_refclipscore(prefix: str = PREFIX) -> Loaded:
    """Harmonic mean of CLIPScore and max(cos, 0) with the nearest reference; NaN where there is none."""

    def score(batch: Cases) -> CaseScores:
        vectors = vectors_of(batch)
        alone = _clipscore(vectors, prefix)
        texts = _pooled(vectors, vectors.readable, prefix)
        # A candidate without a pair has pair −1 and takes any vector: its CLIPScore is NaN already.
        captions = texts[np.append(vectors.pair_texts, 0)[vectors.pair_of]] if len(texts) else np.zeros((0, 0, 0))
        known = sorted({text for case in batch.references for text in case})
        rows = dict(zip(known, _pooled(vectors, known, prefix), strict=True))
        return CaseScores(harmonic(alone, nearest_reference(captions, batch.references, rows)) if len(texts) else alone)

    return Loaded(score, _choices(prefix))


def harmonic(first: Floats, second: Floats) -> Floats:
    """Harmonic mean, 0 where both are 0.

    >>> harmonic(np.array([1.0, 0.0]), np.array([3.0, 0.0])).tolist()
    [1.5, 0.0]
    """
    total = first + second
    mean: Floats = np.where(total == 0, 0.0, 2 * first * second / np.where(total == 0, 1.0, total))
    return mean


def nearest_reference(captions: Floats, references: Sequence[Sequence[str]], rows: Mapping[str, Floats]) -> Floats:
    """max(cos, 0) of each candidate (cases, candidates, dim) with its case's references; NaN without any.

    `rows` holds the unit vector of every reference text.
    """
    nearest = np.full(captions.shape[:2], np.nan)
    for case, texts in enumerate(references):
        if texts:
            known = np.stack([rows[text] for text in texts])
            nearest[case] = np.maximum((captions[case] @ known.T).max(axis=-1), 0.0)
    return nearest


def _clipscore(vectors: Vectors, prefix: str) -> Floats:
    images = vectors.images.pooled.double().cpu().numpy()
    texts = _pooled(vectors, vectors.readable, prefix)
    cosine = (images[vectors.pair_images] * texts[vectors.pair_texts]).sum(axis=1)
    return vectors.spread(WEIGHT * np.maximum(cosine, 0.0))


def _pooled(vectors: Vectors, texts: Sequence[str], prefix: str) -> Floats:
    if not texts:
        return np.zeros((0, vectors.images.pooled.shape[1]))
    pooled: Floats = vectors.embed([prefix + text for text in texts]).pooled.double().cpu().numpy()
    return pooled


def _require_one_window(vectors: Vectors) -> None:
    most = max((layout.windows for layout in vectors.texts.layout if isinstance(layout, TokenLayout)), default=1)
    if most > 1:
        raise ConfigError(
            f"longclipscore needs an encoder that reads a caption at once, this one took {most} windows; "
            "choose a LongCLIP encoder"
        )


def _choices(prefix: str) -> str:
    return f"w:{WEIGHT:g}|prefix:{prefix.strip() or 'none'}"
