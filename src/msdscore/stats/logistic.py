"""The probability of a truth from one number: a logistic curve, or any rising one."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_STEPS = 100
_RIDGE = 1e-4  # keeps the slope finite where the two sides do not overlap


def fit_logistic(values: npt.NDArray[np.float64], truth: npt.NDArray[np.bool_]) -> tuple[float, float]:
    r"""Slope a > 0 and center c of :math:`\sigma(a (x - c))`, both sides counted as equally frequent.

    >>> slope, center = fit_logistic(np.array([0.0, 1.0, 1.2, 3.0]), np.array([False, False, True, True]))
    >>> slope > 0, 1.0 < center < 1.3
    (True, True)
    """
    scale = float(values.std()) or 1.0
    middle = float(values.mean())
    x = np.stack([(values - middle) / scale, np.ones(len(values))], axis=1)
    y = truth.astype(np.float64)
    share = np.where(truth, 0.5 / max(y.mean(), 1e-9), 0.5 / max(1 - y.mean(), 1e-9)) / len(y)
    w = np.zeros(2)
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -40, 40)))
        gradient = x.T @ (share * (p - y)) + _RIDGE * np.array([w[0], 0.0])
        curve = (x * (share * np.maximum(p * (1 - p), 1e-9))[:, None]).T @ x + _RIDGE * np.eye(2)
        step = np.linalg.solve(curve, gradient)
        w -= step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    slope = max(float(w[0]), 1e-6)
    return slope / scale, middle - scale * float(w[1]) / slope


def fit_rising(
    values: npt.NDArray[np.float64], truth: npt.NDArray[np.bool_], *, groups: int = 24
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a rising curve of log-odds, both sides counted as equally frequent.

    Values are parted into groups of equal weight; neighbours whose shares do not rise are put together until all do
    (isotonic regression). Each group is worth half a value of either side more than it has, so that odds stay finite.

    >>> values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    >>> points, odds = fit_rising(values, np.array([False, False, True, False, True, True]), groups=6)
    >>> points
    (0.5, 2.5, 4.5)
    >>> [round(value, 2) for value in odds]
    [-1.61, 0.0, 1.61]
    """
    order = np.argsort(values, kind="stable")
    x, own = values[order], truth[order]
    sides = max(int(own.sum()), 1), max(int((~own).sum()), 1)
    weight = np.where(own, 0.5 / sides[0], 0.5 / sides[1])
    place = np.minimum((groups * (weight.cumsum() - weight / 2) / weight.sum()).astype(np.int64), groups - 1)
    blocks: list[Floats] = []  # weight, weight of the true ones, sum of the values by weight, number of values
    for number in np.unique(place):
        here = place == number
        blocks.append(np.array([weight[here].sum(), weight[here & own].sum(), weight[here] @ x[here], here.sum()]))
        while len(blocks) > 1 and blocks[-2][1] / blocks[-2][0] >= blocks[-1][1] / blocks[-1][0]:
            last = blocks.pop()
            blocks[-1] = blocks[-1] + last
    odds = [_log_odds(block) for block in blocks]
    points = [float(block[2] / block[0]) for block in blocks]
    if len(points) == 1:  # nothing rises: a curve that is as good as flat
        return (points[0], points[0] + 1.0), (odds[0], odds[0] + _RIDGE)
    # Small groups can level what rose before half a value was added.
    rising = np.maximum.accumulate(odds) + _RIDGE * np.arange(len(odds))
    return tuple(points), tuple(rising.tolist())


def _log_odds(block: Floats) -> float:
    half = 0.5 * block[0] / block[3]
    return float(np.log((block[1] + half) / (block[0] - block[1] + half)))
