"""Pairwise judgements: accuracy, three-way agreement with tie thresholds, paired tests."""

from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from msdscore.errors import InputError
from msdscore.intervals import Floats, Ints

TieRule = Literal["wrong", "half"]


def credits_of(positive: ArrayLike, negative: ArrayLike, *, ties: TieRule = "wrong") -> Floats:
    """Return the credit of each pair: 1 if the positive scores higher, 0 or 0.5 for a tie, NaN for a NaN score.

    >>> credits_of([2.0, 1.0, 1.0], [1.0, 1.0, float("nan")], ties="half")
    array([1. , 0.5, nan])
    """
    a, b = np.asarray(positive, dtype=np.float64), np.asarray(negative, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"expected two columns over the same pairs, got shapes {a.shape} and {b.shape}")
    values = np.where(a == b, 0.5 if ties == "half" else 0.0, a > b)
    values[np.isnan(a) | np.isnan(b)] = np.nan
    return values


def decide_beyond(differences: ArrayLike, epsilon: float) -> Ints:
    """Return the sign of each difference, 0 (a tie) if its size does not exceed `epsilon`.

    >>> decide_beyond([0.2, -0.2, 0.1], 0.1).tolist()
    [1, -1, 0]
    """
    d = np.asarray(differences, dtype=np.float64)
    return np.where(np.abs(d) > epsilon, np.sign(d), 0).astype(np.int64)


def decide_matched(differences: ArrayLike, n_ties: int) -> Ints:
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


def mcnemar(first_right: ArrayLike, second_right: ArrayLike) -> float:
    r"""Return the p-value of McNemar's test with Edwards' correction, as in the paper.

    The statistic is :math:`(|b - c| - 1)^2/(b + c)`, b and c the discordant pairs. The test assumes that pairs of one
    image are independent, and rejects too often; `stats.differences` does not.

    >>> round(mcnemar([1] * 10 + [0] * 2, [0] * 10 + [1] * 2), 4)
    0.0433
    """
    first, second = np.asarray(first_right, dtype=bool), np.asarray(second_right, dtype=bool)
    b, c = int((first & ~second).sum()), int((second & ~first).sum())
    scipy_stats: Any = import_module("scipy.stats")
    return float(scipy_stats.chi2.sf(max(abs(b - c) - 1, 0) ** 2 / (b + c), 1)) if b + c else 1.0
