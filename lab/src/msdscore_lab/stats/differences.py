"""Paired differences of systems on the same images: one method behind intervals, p-values and ranks.

In each of many draws, the signs of the differences of every image are flipped at random, as if the two systems were
swapped there. With several differences, the largest :math:`|t|` of a draw counts (the single-step maximum of Westfall
and Young, 1993), so that p-values and intervals hold for all differences together.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from msdscore.intervals import (
    BLOCK,
    DEFAULT,
    Floats,
    Interval,
    Resampling,
    method_name,
    percentile_interval,
    weight_draws,
)

_DRAWS, _DRAWN = (20_000, 200_000), 10**8  # draws by default, and images whose sign is drawn in all of them
_ROUNDING = 1e-9  # between equal t of two draws
_METHOD = "t of sign flips"


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences that are tested together: p < 1 − level exactly if the interval excludes 0.

    `errors` are standard errors. The ends of an interval are NaN if there are too few images for any significance.
    """

    intervals: tuple[Interval, ...]
    p_values: Floats
    errors: Floats


def default_draws(images: int) -> int:
    """Return the number of draws that take some seconds, so many that a seed rarely decides about significance.

    >>> default_draws(200), default_draws(2_000), default_draws(30_000)
    (200000, 50000, 20000)
    """
    return min(max(_DRAWS[0], _DRAWN // images), _DRAWS[1])


def compare_means(families: Sequence[Floats], *, how: Resampling = DEFAULT) -> list[Differences]:
    r"""Test whether the means of columns (images, differences) are 0; NaN: the image is not part of the difference.

    With :math:`T = \sum v_i / \sqrt{\sum v_i^2}` over the n images of a column and its values after random flips of
    their signs, p is the share of draws in which the largest :math:`|T|` of a family reaches the observed one. The
    interval has all means that the same critical value c does not reject, :math:`\bar v \pm c\,s/\sqrt{n - c^2}` with s
    the standard deviation: a t-interval whose quantile is that of the draws. All patterns of signs are used instead if
    they are fewer than the draws.

    >>> found = compare_means([np.stack([np.arange(10.0) + 1, np.arange(10.0) - 4], axis=1)])[0]
    >>> [interval.low > 0 for interval in found.intervals], (found.p_values < 0.05).tolist()
    ([True, False], [True, False])
    """
    tables = [np.nan_to_num(columns) for columns in families]
    norms = [np.sqrt((table**2).sum(axis=0)) for table in tables]
    scaled = [table / np.where(norm > 0, norm, 1.0) for table, norm in zip(tables, norms, strict=True)]
    largest: list[list[Floats]] = [[] for _ in families]
    exact = 2 ** min(len(tables[0]), 62) <= how.samples
    for signs in _all_signs(len(tables[0])) if exact else _random_signs(len(tables[0]), how):
        for table, drawn in zip(scaled, largest, strict=True):
            drawn.append(np.abs(signs @ table).max(axis=1, initial=0.0))
    return [
        _differences(columns, table, np.sort(np.concatenate(drawn)), how, exact=exact)
        for columns, table, drawn in zip(families, scaled, largest, strict=True)
    ]


def _differences(columns: Floats, scaled: Floats, largest: Floats, how: Resampling, *, exact: bool) -> Differences:
    """Return the differences of a family from the sorted largest |T| of the draws; the observed data is one draw."""
    observed, units = np.abs(scaled.sum(axis=0)), (~np.isnan(columns)).sum(axis=0)
    more, alpha = int(not exact), 1 - how.level
    total = len(largest) + more
    p_values = (more + len(largest) - np.searchsorted(largest, observed - _ROUNDING)) / total
    # The largest |T| that is not significant; without any that could be, all means remain possible.
    at = min(int(total - alpha * total), len(largest) - 1)
    critical = float(largest[at]) + _ROUNDING if more < alpha * total else np.inf
    intervals, errors = [], []
    for column, count in zip(columns.T, units.tolist(), strict=True):
        values = column[~np.isnan(column)]
        mean, spread = (float(values.mean()), float(values.std())) if count else (np.nan, np.nan)
        side = critical * spread / math.sqrt(count - critical**2) if count > critical**2 else np.nan
        intervals.append(Interval(mean, mean - side, mean + side, how.level, _METHOD, count, how.seed))
        errors.append(spread / math.sqrt(count - 1) if count > 1 else np.nan)
    return Differences(tuple(intervals), np.where(units > 1, p_values, np.nan), np.array(errors))


def _all_signs(units: int) -> Iterator[Floats]:
    bits = np.arange(2**units)[:, None] >> np.arange(units) & 1
    yield (1 - 2 * bits).astype(np.float64)


def _random_signs(units: int, how: Resampling) -> Iterator[Floats]:
    generator, block = np.random.default_rng(how.seed), max(1, BLOCK // units)
    for start in range(0, how.samples, block):
        bits = generator.integers(0, 2, size=(min(block, how.samples - start), units), dtype=np.int8)
        yield (1 - 2 * bits).astype(np.float64)


def pseudo_values(statistic: Callable[[Floats], float], units: NDArray[np.str_]) -> Floats:
    r"""Return the jackknife's pseudo-values of a statistic of item weights, one per distinct unit in sorted order.

    Their mean is the statistic :math:`\theta`: :math:`v_i = \theta + (n - 1)(\bar\theta_{-} - \theta_{-i})` with
    :math:`\theta_{-i}` the statistic without the items of unit i. Those of a mean of equally frequent units are the
    units' means. A unit that changes nothing is not part of the statistic (NaN), unless none does.

    >>> values = np.array([1.0, 2.0, 6.0])
    >>> pseudo_values(lambda w: float(w @ values / w.sum()), np.array(["a", "b", "c"])).tolist()
    [1.0, 2.0, 6.0]
    """
    names, codes = np.unique(units, return_inverse=True)
    value = statistic(np.ones(len(units)))
    without = np.array([statistic((codes != code).astype(np.float64)) for code in range(len(names))])
    part = without != value
    part = part if part.any() else np.ones_like(part)
    changes = without[part].mean() - without[part]
    found = np.full(len(names), np.nan)
    found[part] = value + (part.sum() - 1) * changes if np.isfinite(changes).all() else np.nan
    return found


def mean_values(columns: Sequence[Floats], units: NDArray[np.str_]) -> Floats:
    """Return the pseudo-values (units, columns) of the means of several columns of items."""
    return np.stack([pseudo_values(partial(weighted_mean, column), units) for column in columns], axis=1)


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Return the weighted mean; NaN if all weights are 0."""
    return float(weights @ values / weights.sum()) if weights.any() else math.nan


def draws_for(units: NDArray[np.str_], seed: int) -> Resampling:
    """Return the default number of draws for the distinct units."""
    return Resampling(samples=default_draws(len(np.unique(units))), seed=seed)


def bootstrap_means(columns: Floats, *, how: Resampling = DEFAULT) -> list[Interval]:
    """Return the bootstrap interval of the mean of each column (units, columns), from the same resamples."""
    units = len(columns)
    draws = np.concatenate([weights @ columns / units for weights in weight_draws(units, how)])
    return [
        percentile_interval(float(mean), draws[:, at], method_name("bootstrap", None), units, how)
        for at, mean in enumerate(columns.mean(axis=0))
    ]


def all_pairs(table: Floats) -> Floats:
    """Return the differences of all pairs of columns, in the order of `itertools.combinations`."""
    first, second = np.triu_indices(table.shape[1], 1)
    differences: Floats = table[:, first] - table[:, second]
    differences[np.abs(differences) < _ROUNDING * np.abs(table).max(initial=0.0)] = 0.0
    return differences


def ranks_of(means: Sequence[Interval], pairs: Differences, *, lower_is_better: bool = False) -> list[Interval]:
    """Return the rank of each system, 1 for the best mean; ties share their mean rank.

    `pairs` are the differences of all pairs of systems. An interval begins behind the systems that are significantly
    better, and ends before those that are significantly worse.
    """
    size, sign = len(means), -1.0 if lower_is_better else 1.0
    values, better = sign * np.array([mean.value for mean in means]), np.zeros((size, size), dtype=np.bool_)
    for first, second, interval in zip(*np.triu_indices(size, 1), pairs.intervals, strict=True):
        if interval.low > 0 or interval.high < 0:
            better[(first, second) if sign * interval.value > 0 else (second, first)] = True
    ranks = []
    for at, mean in enumerate(means):
        value = int((values > values[at]).sum()) + (int((values == values[at]).sum()) + 1) / 2
        low, high = 1.0 + int(better[:, at].sum()), float(size - int(better[at].sum()))
        rank = replace(mean, value=value, method=_METHOD)
        ranks.append(replace(rank, low=low, high=high) if mean.n > 1 else rank)
    return ranks
