"""Rivals of the local divergence on the same patches and tokens: max-similarity and entropic transport."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from msdscore.errors import ConfigError, require
from msdscore.metrics.base import Cases, CaseScores, Floats, Loaded, Vectors
from msdscore.metrics.msd import vectors_of

SINKHORN_REG = 0.05  # of cosine distances, which lie between 0 and 2
_STEPS, _PRECISION = 1000, 1e-6


def load_max_sim() -> Loaded:
    r"""Mean over the caption's tokens of the largest cosine with a patch, :math:`\frac{1}{M}\sum_j\max_i x_i y_j`."""
    return Loaded(lambda batch: CaseScores(_over_pairs(vectors_of(batch), _max_sim)))


def load_calibrated_max_sim() -> Loaded:
    """Max-similarity less what each token finds in a background image on average, component means for patches."""

    def score(batch: Cases) -> CaseScores:
        vectors = vectors_of(batch)
        raw = _over_pairs(vectors, _max_sim)
        return CaseScores(raw - vectors.spread(_background_sim(vectors)[vectors.pair_texts]))

    return Loaded(score)


def load_sinkhorn(reg: str = f"{SINKHORN_REG}") -> Loaded:
    """Transport cost of 1 − cosine between uniform tokens and patches, with entropic regularisation `reg`."""
    strength = float(reg)
    if not strength > 0:
        raise ConfigError(f"reg must be positive, got {reg}")
    ot: Any = require("ot", extra="ot")

    def cost(cosines: Tensor) -> float:
        distance = (1 - cosines).double().cpu().numpy()
        sides = (np.full(size, 1 / size) for size in distance.shape)
        plan = ot.sinkhorn(
            *sides, distance, strength, method="sinkhorn_log", numItermax=_STEPS, stopThr=_PRECISION, warn=False
        )
        return float((plan * distance).sum())

    return Loaded(lambda batch: CaseScores(_over_pairs(vectors_of(batch), cost)), f"reg:{strength:g}|it:{_STEPS}")


def _max_sim(cosines: Tensor) -> float:
    return float(cosines.max(dim=0).values.double().mean())


def _background_sim(vectors: Vectors) -> Floats:
    """For every text the mean over background images of its max-similarity with them."""
    if vectors.background is None:
        raise ConfigError("max-sim-cal needs a background; choose settings with calibration=background")
    items, components, dim = vectors.background.shape
    means = vectors.background.reshape(items * components, dim)
    found = np.zeros(len(vectors.texts))
    for row, (points, mask) in enumerate(zip(vectors.texts.points, vectors.texts.mask, strict=True)):
        cosines = (means @ points[mask].to(means).mT).unflatten(0, (items, components))
        found[row] = float(cosines.amax(dim=1).double().mean())
    return found


def _over_pairs(vectors: Vectors, measure: Callable[[Tensor], float]) -> Floats:
    """A measure of the patch-by-token cosines of every pair, one product per image."""
    values = np.full(len(vectors.pair_images), np.nan)
    for pairs, cosines in _cosines(vectors):
        values[pairs] = [measure(one) for one in cosines]
    return vectors.spread(values)


def _cosines(vectors: Vectors) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Pairs of each image, with the cosines of its real patches and their real tokens."""
    texts = [points[mask] for points, mask in zip(vectors.texts.points, vectors.texts.mask, strict=True)]
    order = np.argsort(vectors.pair_images, kind="stable")
    starts = np.flatnonzero(np.diff(vectors.pair_images[order], prepend=-1))
    for pairs in np.split(order, starts[1:]) if len(order) else []:
        image = int(vectors.pair_images[pairs[0]])
        patches = vectors.images.points[image][vectors.images.mask[image]]
        mine = [texts[row] for row in vectors.pair_texts[pairs].tolist()]
        product = patches.float() @ torch.cat(mine).float().mT
        yield pairs.tolist(), list(product.split([len(tokens) for tokens in mine], dim=1))
