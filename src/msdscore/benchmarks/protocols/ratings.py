"""Figures of rating benchmarks: correlations of scores with what people said."""

from collections.abc import Sequence

import numpy as np

from msdscore.benchmarks.base import Rated
from msdscore.benchmarks.protocols.figure import Figure, Figures, Floats, Sheet
from msdscore.stats.ranks import MEASURES, prepare

NAMES = {"tau_c": "kendall_c", "tau_b": "kendall_b", "spearman": "spearman", "pearson": "pearson"}
_TAUS = ("tau_c", "tau_b")


def expert(sheet: Sheet[Rated]) -> Figures:
    """Flickr8k-Expert: tau-c over the single ratings first; the averaged ratings, often mixed up, say so."""
    single = (_single(sheet, name) for name in ("tau_c", "tau_b", "spearman", "pearson"))
    return (*single, *(_averaged(sheet, name) for name in _TAUS))


def crowdflower(sheet: Sheet[Rated]) -> Figures:
    """Flickr8k-CF: tau-b with the share of yes votes first."""
    return tuple(_single(sheet, name) for name in ("tau_b", "tau_c", "spearman", "pearson"))


def composite(sheet: Sheet[Rated]) -> Figures:
    """Composite: tau-c over the pooled sources first, then tau-c of each source."""
    pooled = [_single(sheet, name) for name in ("tau_c", "tau_b", "spearman", "pearson")]
    sources = np.array([item.subset for item in sheet.items], dtype=np.str_)
    for source in dict.fromkeys(sources.tolist()):
        pooled.append(_single(sheet.take(sources == source), "tau_c", f"/{source}"))
    return tuple(pooled)


def observations(items: Sequence[Rated]) -> tuple[Floats, np.ndarray]:
    """Every single rating, and the number of the item it belongs to."""
    ratings = [item.ratings for item in items]
    owner = np.repeat(np.arange(len(ratings)), [len(found) for found in ratings])
    return np.array([rating for found in ratings for rating in found], dtype=np.float64), owner


def _single(sheet: Sheet[Rated], name: str, suffix: str = "") -> Figure:
    """Every rating of an item is an observation of its own, against the item's one score."""
    return _correlation(sheet, name + suffix, NAMES[name], *observations(sheet.items))


def _averaged(sheet: Sheet[Rated], name: str) -> Figure:
    means = np.array([np.mean(item.ratings) for item in sheet.items], dtype=np.float64)
    return _correlation(sheet, f"{name}/averaged", NAMES[name], means, np.arange(len(means)))


def _correlation(sheet: Sheet[Rated], name: str, method: str, ratings: Floats, owner: np.ndarray) -> Figure:
    scores = sheet.scores[:, 0]
    columns = prepare(scores[owner], ratings)
    kept_owner, measure = owner[columns.kept], MEASURES[method]
    scored = scores[~np.isnan(scores)]
    ties = len(scored) - len(np.unique(scored))
    return sheet.figure(
        name, lambda w: measure(columns, w[kept_owner]), len(columns), ties=ties, missing=columns.missing
    )
