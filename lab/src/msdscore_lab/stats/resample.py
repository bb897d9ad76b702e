"""Intervals and tests by resampling: bootstrap over items or images, permutations, Holm's correction.

`scipy.stats.bootstrap` cannot resample clusters and has no expanded percentiles; `scipy.stats.permutation_test` takes
about 60 times as long for the means of 7,500 pairs, because it permutes items instead of the signs of cluster sums.
"""

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True)
class AllPairs:
    """Means of several systems on the same units, and all their pairs in the order of `itertools.combinations`.

    `differences` and `p_values` are simultaneous over the pairs: p < 1 − level exactly if the interval excludes 0.
    """

    means: tuple[Interval, ...]
    differences: tuple[Interval, ...]
    errors: Floats  # standard errors of the differences
    p_values: Floats

    def ranks(self, *, lower_is_better: bool = False) -> tuple[Interval, ...]:
        """Return the rank of each system, 1 for the best mean; ties share their mean rank.

        An interval begins behind the systems that are significantly better, and ends before those that are
        significantly worse.
        """
        size, sign = len(self.means), -1.0 if lower_is_better else 1.0
        means, better = sign * np.array([mean.value for mean in self.means]), np.zeros((size, size), dtype=np.bool_)
        for first, second, interval in zip(*np.triu_indices(size, 1), self.differences, strict=True):
            if interval.low > 0 or interval.high < 0:
                ahead = (first, second) if sign * interval.value > 0 else (second, first)
                better[ahead] = True
        ranks = []
        for at, mean in enumerate(self.means):
            value = int((means > means[at]).sum()) + (int((means == means[at]).sum()) + 1) / 2
            low, high = 1.0 + int(better[:, at].sum()), float(size - int(better[at].sum()))
            rank = replace(mean, value=value, method=_SIMULTANEOUS)
            ranks.append(replace(rank, low=low, high=high) if mean.n > 1 else rank)
        return tuple(ranks)


def compare_all_pairs(tables: Sequence[Floats], *, how: Resampling = DEFAULT) -> list[AllPairs]:
    r"""Compare all pairs of systems in each table (units, systems) by one bootstrap over units.

    With :math:`t = (d^* - d)/s^*` of a pair in a resample, p is the share of resamples in which the largest
    :math:`|t|` of all pairs reaches the observed :math:`|d|/s` (the single-step maximum of Westfall and Young, 1993);
    the interval is :math:`d \pm c\,s` with the critical value c of the same resamples.

    >>> values = np.arange(20.0) % 7
    >>> found = compare_all_pairs([np.stack([values, values + 2 + values % 2], axis=1)])[0]
    >>> bool(found.p_values[0] < 0.05), found.differences[0].high < 0, [rank.value for rank in found.ranks()]
    (True, True, [2.0, 1.0])
    """
    units = len(tables[0])
    residuals = [_residuals(table) for table in tables]
    means: list[list[Floats]] = [[] for _ in tables]
    largest: list[list[Floats]] = [[] for _ in tables]
    for weights in weight_draws(units, how):
        for at, (table, differences) in enumerate(zip(tables, residuals, strict=True)):
            means[at].append(weights @ table / units)
            shift, square = weights @ differences / units, weights @ differences**2 / units
            t_values = np.abs(shift) / _standard_errors(square, shift, units)
            largest[at].append(t_values.max(axis=1, initial=0.0))
    return [
        _all_pairs(table, differences, np.concatenate(drawn), np.sort(np.concatenate(t_values)), how)
        for table, differences, drawn, t_values in zip(tables, residuals, means, largest, strict=True)
    ]


def _residuals(table: Floats) -> Floats:
    """Return the differences of all pairs of columns less their means; rounding errors are 0."""
    first, second = np.triu_indices(table.shape[1], 1)
    centred = table - table.mean(axis=0)
    residuals: Floats = centred[:, first] - centred[:, second]
    residuals[np.abs(residuals) < 1e-12 * np.abs(table).max(initial=0.0)] = 0.0
    return residuals


def _all_pairs(table: Floats, residuals: Floats, drawn: Floats, largest: Floats, how: Resampling) -> AllPairs:
    """Return means, differences and p-values from the means and the sorted largest |t| of the resamples."""
    units, means = len(table), table.mean(axis=0)
    first, second = np.triu_indices(len(means), 1)
    differences, errors = means[first] - means[second], _standard_errors((residuals**2).mean(axis=0), 0.0, units)
    p_values = (1.0 + how.samples - np.searchsorted(largest, np.abs(differences) / errors)) / (1 + how.samples)
    # The largest |t| that is not significant, so that |d| > c·s exactly if p < 1 − level.
    rejected = int(np.ceil((1 - how.level) * (1 + how.samples) - 1))
    critical = float(largest[-rejected]) if rejected > 0 else np.inf
    sides = np.where(errors > _LEAST, critical * errors, 0.0)
    if units < 2:
        p_values, sides = np.full_like(differences, np.nan), np.full_like(differences, np.nan)
    return AllPairs(
        tuple(
            percentile_interval(float(mean), drawn[:, at], method_name("bootstrap", None), units, how)
            for at, mean in enumerate(means)
        ),
        tuple(
            Interval(float(value), float(value - side), float(value + side), how.level, _SIMULTANEOUS, units, how.seed)
            for value, side in zip(differences, sides, strict=True)
        ),
        errors,
        p_values,
    )


def _standard_errors(squares: Floats, means: Floats | float, units: int) -> Floats:
    """Return standard errors from second moments and means; those without a variance are tiny, not 0."""
    variances = squares - np.square(means)
    variances = np.where(variances < 1e-12 * squares, 0.0, variances)
    return np.maximum(np.sqrt(variances / max(units - 1, 1)), _LEAST)


_SIMULTANEOUS = "simultaneous bootstrap-t"
_LEAST = 1e-150  # standard error that stands for 0, so that 0/0 is 0 and any difference is infinitely many errors


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
