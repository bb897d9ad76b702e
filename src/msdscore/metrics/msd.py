"""The score of this package and its parts, read off what was measured once."""

from collections.abc import Callable

import numpy as np
import torch

from msdscore.core import paper
from msdscore.errors import ConfigError
from msdscore.metrics.base import Cases, CaseScores, Floats, Loaded, Vectors
from msdscore.scoring.measurement import soften

RANK_MARGIN = 0.005  # tau_r, paper


def _column(name: str) -> Callable[[], Loaded]:
    """The loader of a metric that is one of the numbers of every pair."""
    return lambda: Loaded(lambda batch: CaseScores(vectors_of(batch).column(name)))


load_cosine = _column("similarity")  # of the pooled vectors
load_coverage = _column("coverage")  # KL(image‖text)
load_support = _column("support")  # KL(text‖image)
load_precision = _column("precision")  # evidence form: is what is said true of the image?
load_information = _column("information")  # evidence form: how much does it tell about the image?
load_divergence = _column("divergence")  # both divergences, weighed by the gate of the settings
load_msd = _column("msd")


def load_soft_msd(set: str = "item") -> Loaded:  # noqa: A002, the option is named for its user
    """MSD gated by uncertainty; a candidate set is the captions of one item, or all those of one image."""
    if set not in ("item", "image"):
        raise ConfigError(f"set must be 'item' or 'image', got {set!r}")

    def score(batch: Cases) -> CaseScores:
        group = np.arange(len(batch)) if set == "item" else batch.group
        return CaseScores(_soften(vectors_of(batch), group))

    return Loaded(score, f"set:{set}")


def load_rank_agg(margin: str = f"{RANK_MARGIN}") -> Loaded:
    """Similarity decides where the gap exceeds `margin`, else the smaller divergence."""
    gap = float(margin)

    def score(batch: Cases) -> CaseScores:
        vectors = vectors_of(batch)
        sides = (torch.from_numpy(vectors.column(name)) for name in ("similarity", "divergence"))
        preference = paper.rank_agg_preference(*sides, margin=gap).numpy()
        unknown = np.isnan(vectors.column("similarity")).any(axis=1)
        preference = np.where(unknown, np.nan, preference)
        return CaseScores(np.stack([preference, -preference], axis=1) / 2)

    return Loaded(score, f"margin:{gap:g}")


def vectors_of(batch: Cases) -> Vectors:
    """The embeddings of a batch whose metric needs an encoder."""
    assert batch.vectors is not None, "the runner makes vectors for every metric that needs an encoder"
    return batch.vectors


def _soften(vectors: Vectors, group: np.ndarray) -> Floats:
    """Soft-MSD of all candidates that have a pair, in float64."""
    similarity, msd = vectors.column("similarity"), vectors.column("msd")
    known = ~np.isnan(similarity)
    sets = np.broadcast_to(group[:, None], similarity.shape)[known]
    values = np.full(similarity.shape, np.nan)
    values[known] = soften(similarity[known].tolist(), msd[known].tolist(), sets.tolist(), vectors.config)[1]
    return values
