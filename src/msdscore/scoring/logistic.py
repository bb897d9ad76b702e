"""Logistic regression by Newton's method."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_NEWTON_STEPS = 100
_RIDGE = 1e-6  # of standardised features: bounds the slopes if the two classes do not overlap


def fit_logistic(features: Floats, truth: Flags, *, balanced: bool = True) -> tuple[float, ...]:
    """Return the coefficients of the log-odds of `truth`; the first feature is the constant 1.

    With `balanced`, both sides count as equally frequent. Coefficients are rounded to six digits.

    >>> values = np.array([0.0, 1.0, 1.2, 3.0])
    >>> constant, slope = fit_logistic(np.stack([np.ones(4), values], axis=1), np.array([False, False, True, True]))
    >>> slope > 0, 1.0 < -constant / slope < 1.3
    (True, True)
    """
    mean, scale = features.mean(axis=0), features.std(axis=0)
    mean[0], scale[scale == 0] = 0.0, 1.0
    x, y = (features - mean) / scale, truth.astype(np.float64)
    share = np.full(len(y), 1 / len(y))
    if balanced:
        share = np.where(truth, 0.5 / max(y.mean(), 1e-9), 0.5 / max(1 - y.mean(), 1e-9)) / len(y)
    ridge = _RIDGE * np.eye(x.shape[1])
    w = np.zeros(x.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -40, 40)))
        gradient = x.T @ (share * (p - y)) + ridge @ w
        curve = (x * (share * np.maximum(p * (1 - p), 1e-9))[:, None]).T @ x + ridge
        step = np.linalg.solve(curve, gradient)
        w -= step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    plain = w / scale
    plain[0] = w[0] - float(plain[1:] @ mean[1:])
    return tuple(float(f"{value:.6g}") for value in plain)
