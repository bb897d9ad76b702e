"""Tolerance of a reproduced value, derived from the published value itself.

- *Rounding*: half a unit of the last printed digit.
- *Repeated* values (same weights, items and protocol): the value is computed again from scores rounded to half
  precision, which published scripts use. The tolerance is rounding plus twice that change, plus one item, since JPEG
  decoders differ.
- *Redrawn* values (other random starts, draws or weights): rounding plus 1.96 standard errors of the statistic, by
  bootstrap over images, or binomial for a fraction without an interval.

A redrawn value outside its tolerance is significantly different on a dataset of this size.
"""

from collections.abc import Sequence
from math import isfinite, sqrt

import numpy as np
import numpy.typing as npt

from msdscore.intervals import Resampling
from msdscore_lab.benchmarks.base import Item
from msdscore_lab.benchmarks.protocols.counting import Figure, evaluate
from msdscore_lab.benchmarks.registry import benchmark

Z = 1.96  # standard errors of a 95 % interval
_ONCE = Resampling(samples=1)


def rounding(digits: int) -> float:
    """Return half a unit of the last printed decimal.

    >>> rounding(1)
    0.05
    """
    return 0.5 * 10.0**-digits


def redrawn(
    value: float, ends: tuple[float | None, float | None], n: int, *, digits: int, scale: float = 100.0
) -> float:
    """Return the tolerance of a value that depends on a random draw, in printed units; `ends` is its 95 % interval.

    >>> round(redrawn(0.5, (None, None), 2500, digits=1), 2)  # binomial: a standard error of one point
    2.01
    >>> round(redrawn(0.5, (0.46, 0.54), 2500, digits=1), 2)
    4.05
    """
    low, high = ends
    if low is not None and high is not None and isfinite(low) and isfinite(high):
        half = (high - low) / 2
    else:
        half = Z * sqrt(max(value * (1 - value), 0.0) / n) if n and 0 <= value <= 1 else 0.0
    return rounding(digits) + scale * half


def repeated(figure: Figure, halved: Figure | None, *, digits: int) -> float:
    """Return the tolerance of a value that only depends on precision; `halved` is computed from half-precision scores.

    >>> round(repeated(Figure("accuracy", 0.7, None, 1000), Figure("accuracy", 0.699, None, 1000), digits=2), 3)
    0.305
    """
    change = 0.0 if halved is None or not isfinite(halved.value) else abs(halved.value - figure.value)
    return rounding(digits) + figure.scale * (2 * change + 1 / max(figure.n, 1))


def halved(
    name: str, items: Sequence[Item], scores: npt.NDArray[np.float64], protocol: str, sign: int
) -> dict[str, Figure]:
    """Return the statistics of a benchmark by name, computed from scores in half precision."""
    rounded = sign * scores.astype(np.float16).astype(np.float64)
    figures = evaluate(benchmark(name), items, rounded, protocol=protocol, how=_ONCE)
    return {figure.name: figure for figure in figures}
