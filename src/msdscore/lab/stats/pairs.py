"""Pairwise judgements: accuracy, three-way agreement with tie thresholds, paired tests."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from msdscore.errors import InputError, require
from msdscore.lab.stats.resample import Test

Floats = NDArray[np.float64]
Signs = NDArray[np.int64]
TieRule = Literal["wrong", "half"]


def credits_of(positive: ArrayLike, negative: ArrayLike, *, ties: TieRule = "wrong") -> Floats:
    """Return the credit of each pair: 1 if the positive scores strictly higher, zero or half for a tie, NaN for a NaN.

    >>> credits_of([2.0, 1.0, 1.0], [1.0, 1.0, float("nan")], ties="half")
    array([1. , 0.5, nan])
    """
    a, b = np.asarray(positive, dtype=np.float64), np.asarray(negative, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"expected two columns over the same pairs, got shapes {a.shape} and {b.shape}")
    values = np.where(a == b, 0.5 if ties == "half" else 0.0, a > b)
    values[np.isnan(a) | np.isnan(b)] = np.nan
    return values


def decide_beyond(differences: ArrayLike, epsilon: float) -> Signs:
    """Return the sign of each difference, 0 (a tie) if its size does not exceed `epsilon`.

    >>> decide_beyond([0.2, -0.2, 0.1], 0.1).tolist()
    [1, -1, 0]
    """
    d = np.asarray(differences, dtype=np.float64)
    return np.where(np.abs(d) > epsilon, np.sign(d), 0).astype(np.int64)


def decide_matched(differences: ArrayLike, n_ties: int) -> Signs:
    """Return the sign of each difference with about `n_ties` ties: those below the (n_ties + 1)-th smallest size.

    Differences at the threshold are not ties, as in CapArena and PoSh, except a difference of exactly zero.

    >>> decide_matched([0.3, -0.1, 0.2, -0.4], 2).tolist()
    [1, 0, 0, -1]
    """
    d = np.asarray(differences, dtype=np.float64)
    if n_ties < 0 or np.isnan(d).any():
        raise InputError("a tie threshold needs differences without NaN and a tie count of at least 0")
    threshold = np.sort(np.abs(d))[n_ties] if n_ties < len(d) else np.inf
    return np.where(np.abs(d) >= threshold, np.sign(d), 0).astype(np.int64)


def mcnemar(first_right: ArrayLike, second_right: ArrayLike) -> Test:
    r"""McNemar's test with Edwards' correction, :math:`(|b - c| - 1)^2/(b + c)`, b and c the discordant pairs.

    >>> round(mcnemar([1] * 10 + [0] * 2, [0] * 10 + [1] * 2).statistic, 4)
    4.0833
    """
    b, c = _discordant(first_right, second_right)
    return _chi_square(max(abs(b - c) - 1, 0) ** 2, b + c, "McNemar, Edwards", b + c)


def mcnemar_clustered(first_right: ArrayLike, second_right: ArrayLike, clusters: ArrayLike) -> Test:
    r"""McNemar's test for pairs that come in clusters, :math:`(\sum_k d_k)^2/\sum_k d_k^2`, d = b − c of cluster k.

    With one pair per cluster it is McNemar's test without correction (Yang, Sun and Hardin, Statistics in Medicine 29,
    2010). The plain test takes pairs of one image for independent and rejects too often.
    """
    a, b = np.asarray(first_right, dtype=bool), np.asarray(second_right, dtype=bool)
    if a.shape != b.shape or len(np.asarray(clusters)) != len(a):
        raise InputError(f"expected two columns and clusters over the same pairs, got {a.shape} and {b.shape}")
    codes = np.unique(np.asarray(clusters), return_inverse=True)[1]
    gains = np.bincount(codes, weights=a.astype(np.float64) - b)
    return _chi_square(float(gains.sum() ** 2), float((gains**2).sum()), "McNemar, clustered", int((gains != 0).sum()))


def mcnemar_exact(first_right: ArrayLike, second_right: ArrayLike) -> Test:
    """McNemar's test in its exact form; the statistic is the share of discordant pairs that the first wins."""
    b, c = _discordant(first_right, second_right)
    if b + c == 0:
        return Test(0.5, 1.0, "McNemar, exact", 0)
    scipy_stats: Any = require("scipy.stats", extra="stats")
    return Test(b / (b + c), float(scipy_stats.binomtest(b, b + c).pvalue), "McNemar, exact", b + c)


def _discordant(first_right: ArrayLike, second_right: ArrayLike) -> tuple[int, int]:
    a, b = np.asarray(first_right, dtype=bool), np.asarray(second_right, dtype=bool)
    if a.shape != b.shape:
        raise InputError(f"expected two columns over the same pairs, got shapes {a.shape} and {b.shape}")
    return int((a & ~b).sum()), int((b & ~a).sum())


def _chi_square(above: float, below: float, method: str, n: int) -> Test:
    """Return the test of a chi-square quotient with one degree of freedom; p is 1 without discordant pairs."""
    if n == 0:
        return Test(0.0, 1.0, method, 0)
    scipy_stats: Any = require("scipy.stats", extra="stats")
    return Test(above / below, float(scipy_stats.chi2.sf(above / below, 1)), method, n)
