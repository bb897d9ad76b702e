"""Captioners side by side: mean scores with intervals, and differences to the best on shared pictures."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from msdscore.report.reading import Floats, Results
from msdscore.stats.resample import Interval, Resampling, bootstrap_mean

METRICS = ("msd", "soft_msd", "similarity", "coverage", "support", "information", "match")
LOWER_IS_BETTER = frozenset(("coverage", "support"))
HOW = Resampling(samples=500)  # enough for ends of intervals on a screen; a page of 50,000 rows has 50 of them


@dataclass(frozen=True, slots=True)
class Standing:
    """One captioner in one metric; `behind` is its difference to the best on the `shared` pictures of both."""

    system: str
    captions: int
    mean: Interval
    behind: Interval | None
    shared: int


def standings(results: Results, metric: str) -> list[Standing]:
    """All captioners, the best first; whole pictures are resampled."""
    if results.systems is None:
        return []
    systems, pictures = np.array(results.systems), np.array(results.pictures)
    values = results.numbers[metric]
    good = ~np.isnan(values)
    means: dict[str, Interval] = {}
    for name in sorted(set(results.systems)):
        own = good & (systems == name)
        if own.any():
            means[name] = bootstrap_mean(values[own], clusters=_labels(pictures[own]), how=HOW)
    order = sorted(means, key=lambda name: means[name].value if metric in LOWER_IS_BETTER else -means[name].value)
    by_picture = {name: _by_picture(values, good & (systems == name), pictures) for name in order}
    return [_standing(name, order[0], means[name], by_picture, int((good & (systems == name)).sum())) for name in order]


def _standing(
    name: str, best: str, mean: Interval, by_picture: Mapping[str, Mapping[str, float]], captions: int
) -> Standing:
    own, first = by_picture[name], by_picture[best]
    shared = [picture for picture in own if picture and picture in first]
    if name == best or not shared:
        return Standing(name, captions, mean, None, len(shared))
    gap = [own[picture] - first[picture] for picture in shared]
    return Standing(name, captions, mean, bootstrap_mean(gap, how=HOW), len(shared))


def _by_picture(values: Floats, chosen: np.ndarray, pictures: np.ndarray) -> dict[str, float]:
    """The mean of a captioner's captions of every picture."""
    names, codes = np.unique(pictures[chosen], return_inverse=True)
    sums, sizes = np.bincount(codes, weights=values[chosen]), np.bincount(codes)
    return dict(zip(names.tolist(), (sums / sizes).tolist(), strict=True))


def _labels(pictures: np.ndarray) -> list[str]:
    """Cluster labels; rows whose picture has no name stand alone."""
    return [name or f"\0{number}" for number, name in enumerate(pictures.tolist())]
