"""A logistic curve through one number, fitted by Newton's method."""

import numpy as np
import numpy.typing as npt

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
