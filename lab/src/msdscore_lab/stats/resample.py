"""Intervals and tests by resampling: bootstrap over items or images, permutations, Holm's correction.

`scipy.stats.bootstrap` cannot resample clusters and has no expanded percentiles; `scipy.stats.permutation_test` takes
about 60 times as long for the means of 7,500 pairs, because it permutes items instead of the signs of cluster sums.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from msdscore.errors import InputError
from msdscore.intervals import (
    BLOCK,
    DEFAULT,
    Clusters,
    Floats,
    Interval,
    Resampling,
    bootstrap_mean,
    cluster_codes,
    method_name,
    percentile_interval,
    weight_draws,
)
from msdscore_lab.stats.ranks import mid_ranks, rank_groups

WeightedStatistic = Callable[[Floats], float]


@dataclass(frozen=True, slots=True)
class Test:
    """The outcome of a significance test; `n` is the number of informative units."""

    __test__ = False  # pytest must not collect it

    statistic: float
    p_value: float
    method: str
    n: int


def bootstrap(
    statistic: WeightedStatistic, n: int, *, clusters: Clusters = None, how: Resampling = DEFAULT
) -> Interval:
    """Expanded percentile interval of a statistic of item weights; with `clusters`, whole clusters are drawn.

    Plain percentile intervals are too narrow for few units; expanded ones are wider, as a t-interval is wider than a
    normal one (Hesterberg, The American Statistician 69, 2015). The interval of a single unit is NaN.

    >>> values = np.array([0.0, 1.0, 1.0, 1.0])
    >>> bootstrap(lambda w: float(w @ values / w.sum()), 4).value
    0.75
    """
    return bootstrap_both(statistic, n, clusters=clusters, how=how)[0]


def bootstrap_share(values: ArrayLike, *, clusters: Clusters = None, how: Resampling = DEFAULT) -> Interval:
    """`bootstrap` of a share of items; if all items agree, the exact binomial interval.

    >>> print(bootstrap_share([1.0] * 10))
    1.0000 [0.6915, 1.0000]
    """
    x = np.asarray(values, dtype=np.float64)
    interval = bootstrap_mean(x, clusters=clusters, how=how)
    if x[0] not in (0.0, 1.0) or (x != x[0]).any():
        return interval
    bound = ((1 - how.level) / 2) ** (
        1 / interval.n
    )  # share at which all n units agree with probability (1 - level) / 2
    low, high = (bound, 1.0) if x[0] == 1 else (0.0, 1 - bound)
    return replace(interval, low=low, high=high, method=method_name("exact binomial", clusters))


def paired_difference(
    first: ArrayLike, second: ArrayLike, *, clusters: Clusters = None, how: Resampling = DEFAULT
) -> Interval:
    """Bootstrap interval of mean(first) − mean(second) over the same items."""
    return bootstrap_mean(_differences(first, second), clusters=clusters, how=how)


def bootstrap_both(
    statistic: WeightedStatistic, n: int, *, clusters: Clusters = None, how: Resampling = DEFAULT
) -> tuple[Interval, Test]:
    """Interval and test of a statistic from the same resamples."""
    codes, units = cluster_codes(n, clusters)
    value = statistic(np.ones(n))
    draws = np.array([statistic(w[codes]) for block in weight_draws(units, how) for w in block])
    valid = draws[~np.isnan(draws)]
    tail = min(int((valid <= 0).sum()), int((valid >= 0).sum()))
    # An undefined statistic, such as the correlation of a constant, cannot be tested.
    p_value = float("nan") if np.isnan(value) else min(1.0, 2 * (tail + 1) / (len(valid) + 1))
    name = method_name("bootstrap", clusters)
    return percentile_interval(value, draws, name, units, how), Test(value, p_value, name, units)


def permutation_test(
    first: ArrayLike, second: ArrayLike, *, clusters: Clusters = None, how: Resampling = DEFAULT
) -> Test:
    """Paired two-sided test of equal means: the two systems are swapped at random in each item or cluster.

    The test is exact if there are at most `samples` swaps; otherwise p = (1 + hits)/(1 + samples).
    """
    difference = _differences(first, second)
    codes, _ = cluster_codes(len(difference), clusters)
    sums = np.bincount(codes, weights=difference)
    observed = sums.sum()
    nonzero = sums[sums != 0]
    exact = len(nonzero) < 30 and 2 ** len(nonzero) <= how.samples
    if exact:
        flipped = (1 - 2 * ((np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero))) & 1)) @ nonzero
    else:
        rng, block = np.random.default_rng(how.seed), max(1, BLOCK // max(1, len(nonzero)))
        rows = [min(block, how.samples - start) for start in range(0, how.samples, block)]
        flipped = np.concatenate([(1 - 2 * rng.integers(0, 2, size=(count, len(nonzero)))) @ nonzero for count in rows])
    # The tolerance treats sums that differ only by rounding as equal.
    hits = int((np.abs(flipped) >= abs(observed) - 1e-12 * np.abs(sums).sum()).sum())
    p_value = hits / len(flipped) if exact else (1 + hits) / (1 + len(flipped))
    name = "permutation, exact" if exact else "permutation"
    return Test(float(observed / len(difference)), float(p_value), method_name(name, clusters), len(nonzero))


def swap_test(
    statistic: Callable[[Floats], float],
    first: ArrayLike,
    second: ArrayLike,
    *,
    clusters: Clusters = None,
    how: Resampling = DEFAULT,
) -> Test:
    """Paired permutation test for any statistic of a score column, such as a correlation with ratings.

    Both columns are first replaced by normalised ranks, since raw scores may have different scales.
    """
    columns = (np.asarray(values, dtype=np.float64) for values in (first, second))
    a, b = (mid_ranks(rank_groups(values), np.ones(len(values))) / len(values) for values in columns)
    codes, units = cluster_codes(len(a), clusters)
    observed = statistic(a) - statistic(b)
    if np.isnan(observed):
        return Test(observed, float("nan"), method_name("permutation", clusters), units)
    rng = np.random.default_rng(how.seed)
    hits = 0
    for _ in range(how.samples):
        swap = (rng.random(units) < 0.5)[codes]
        change = statistic(np.where(swap, b, a)) - statistic(np.where(swap, a, b))
        hits += not abs(change) < abs(observed) - 1e-12  # an undefined swap counts as a non-rejection
    p_value = (1 + hits) / (1 + how.samples)
    return Test(float(observed), p_value, method_name("permutation", clusters), units)


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down adjusted p-values, in input order; NaN (no test) stays NaN and is not counted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")[: int((~np.isnan(p)).sum())]
    stepped = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _differences(first: ArrayLike, second: ArrayLike) -> Floats:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"expected two columns over the same items, got shapes {a.shape} and {b.shape}")
    return a - b
