"""Bootstrap confidence intervals of means, over items or over whole clusters such as images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msdscore.errors import ConfigError, InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Clusters = Sequence[object] | NDArray[np.generic] | None

# Weight vectors are drawn in blocks of about this many numbers, so that memory stays small for any set size.
BLOCK = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """How an interval is computed: `samples` resamples drawn from `seed`, two-sided `level`.

    Percentiles are `expanded` to the coverage of a t-interval; plain ones, as in the paper, are too narrow for few
    images.
    """

    samples: int = 1000
    seed: int = 0
    level: float = 0.95
    expanded: bool = True

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"samples must be at least 1, got {self.samples}")
        if not 0 < self.level < 1:
            raise ConfigError(f"level must lie between 0 and 1, got {self.level}")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its interval; `n` counts the resampled units (items, or images when clustered)."""

    value: float
    low: float
    high: float
    level: float
    method: str
    n: int
    seed: int

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


DEFAULT = Resampling()


def bootstrap_mean(values: ArrayLike, *, clusters: Clusters = None, how: Resampling = DEFAULT) -> Interval:
    """Return the expanded percentile interval of a mean; with `clusters`, whole clusters are drawn.

    Plain percentiles are too narrow for few units; they are taken further out, as a t-interval is wider than a normal
    one (Hesterberg, The American Statistician 69, 2015). One unit has no interval: its ends are NaN.

    >>> bootstrap_mean([1.0, 1.0, 1.0])
    Interval(value=1.0, low=1.0, high=1.0, level=0.95, method='bootstrap', n=3, seed=0)
    """
    x = np.asarray(values, dtype=np.float64)
    codes, units = cluster_codes(len(x), clusters)
    sums, sizes = np.bincount(codes, weights=x), np.bincount(codes).astype(np.float64)
    draws = np.concatenate([(w @ sums) / (w @ sizes) for w in weight_draws(units, how)])
    return percentile_interval(float(x.mean()), draws, method_name("bootstrap", clusters), units, how)


def cluster_codes(n: int, clusters: Clusters) -> tuple[Ints, int]:
    """Return the cluster index of every item, and the number of clusters."""
    if n == 0:
        raise InputError("nothing to resample: expected at least one item, got none")
    if clusters is None:
        return np.arange(n), n
    labels = np.asarray(clusters)
    if len(labels) != n:
        raise InputError(f"expected one cluster label per item, got {len(labels)} labels for {n} items")
    names, codes = np.unique(labels, return_inverse=True)
    return codes.astype(np.int64), len(names)


def weight_draws(units: int, how: Resampling) -> Iterator[Floats]:
    """Yield blocks of weight vectors: how often each unit is drawn in `units` draws with replacement."""
    rng = np.random.default_rng(how.seed)
    block = max(1, BLOCK // units)
    for start in range(0, how.samples, block):
        rows = min(block, how.samples - start)
        picks = rng.integers(0, units, size=(rows, units)) + units * np.arange(rows)[:, None]
        counts = np.bincount(picks.ravel(), minlength=rows * units)
        yield counts.reshape(rows, units).astype(np.float64)


def percentile_interval(value: float, draws: Floats, method: str, units: int, how: Resampling) -> Interval:
    """Return the interval of the resampled values; its ends are NaN for a single unit."""
    finite = draws[~np.isnan(draws)]
    low = high = float("nan")
    if len(finite) and units > 1:
        tail = (1 - how.level) / 2
        tail = _expanded(tail, units) if how.expanded else tail
        low, high = (float(edge) for edge in np.quantile(finite, [tail, 1 - tail]))
    return Interval(value, low, high, how.level, method, units, how.seed)


def _expanded(tail: float, units: int) -> float:
    r"""Return the tail whose normal quantile is that of a t-interval, :math:`\Phi(-\sqrt{n/(n-1)}\,t_{n-1})`."""
    freedom, z = units - 1, NormalDist().inv_cdf(1 - tail)
    # Cornish and Fisher's expansion of the t quantile: within 0.5 % from three degrees of freedom on.
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return NormalDist().cdf(-t * (units / freedom) ** 0.5)


def method_name(method: str, clusters: Clusters) -> str:
    """Return the name of a method, prefixed if whole clusters are resampled."""
    return method if clusters is None else f"cluster {method}"
