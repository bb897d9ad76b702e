"""Bootstrap intervals over items or images; `scipy.stats.bootstrap` cannot resample clusters."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from msdscore.intervals import (
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

WeightedStatistic = Callable[[Floats], float]


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
    codes, units = cluster_codes(n, clusters)
    draws = np.array([statistic(w[codes]) for block in weight_draws(units, how) for w in block])
    return percentile_interval(statistic(np.ones(n)), draws, method_name("bootstrap", clusters), units, how)


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
