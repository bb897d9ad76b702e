"""Ratings of systems from battles: online Elo with bootstrap medians."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from msdscore.errors import InputError
from msdscore.intervals import Floats, Ints

# CapArena's Elo: k, the scale and base of the odds, the initial rating, and the seed of the resamples.
K, _SCALE, _BASE, _START, SEED = 4.0, 400.0, 10.0, 1000.0, 42


@dataclass(frozen=True, slots=True)
class Games:
    """Battles as arrays: `first` and `second` index `systems`; `outcome` is 1, 0 or 0.5 for the first."""

    systems: tuple[str, ...]
    first: Ints
    second: Ints
    outcome: Floats


@dataclass(frozen=True, slots=True)
class Ratings:
    """Ratings of `systems`, best first; `draws` are the ratings of each resample (samples, systems), if any."""

    systems: tuple[str, ...]
    values: Floats
    draws: Floats


def games(first: Sequence[str], second: Sequence[str], outcome: ArrayLike) -> Games:
    """Convert a list of battles to arrays; systems are sorted by name."""
    results = np.asarray(outcome, dtype=np.float64)
    if not len(first) == len(second) == len(results):
        raise InputError(f"battles need columns of one length, got {len(first)}, {len(second)}, {len(results)}")
    if not len(first):
        raise InputError("ratings need at least one battle, got none")
    if not np.isin(results, (0.0, 0.5, 1.0)).all():
        raise InputError("a battle's outcome must be 1, 0.5 or 0 for the first system")
    names, sides = np.unique([*first, *second], return_inverse=True)
    return Games(tuple(names.tolist()), sides[: len(first)], sides[len(first) :], results)


def replay(played: Games, orders: Ints, k: float = K) -> Floats:
    """Compute Elo tables of many battle orders, vectorised over the orders.

    >>> replay(games(["a"], ["b"], [1.0]), np.array([[0]])).tolist()
    [[1002.0, 998.0]]
    """
    rows = np.arange(len(orders))
    ratings = np.full((len(orders), len(played.systems)), _START)
    for battle in orders.T:
        a, b = played.first[battle], played.second[battle]
        gap = (ratings[rows, b] - ratings[rows, a]) / _SCALE
        change = k * (played.outcome[battle] - 1 / (1 + _BASE**gap))
        ratings[rows, a] += change
        ratings[rows, b] -= change
    return ratings


def bootstrap_elo(played: Games, samples: int = 1000) -> Ratings:
    """Return the median Elo over resampled battle lists, best first, as in CapArena.

    The legacy generator draws the same resamples as `DataFrame.sample` after `numpy.random.seed(seed)`, so
    medians equal the published script's. A system that is not in a resample has the rating NaN in it.
    """
    n, generator = len(played.outcome), np.random.RandomState(SEED)
    orders = np.stack([generator.randint(0, n, size=n) for _ in range(samples)])
    tables = replay(played, orders)
    is_present, rows = np.zeros(tables.shape, dtype=bool), np.arange(len(orders))[:, None]
    is_present[rows, played.first[orders]] = is_present[rows, played.second[orders]] = True
    tables[~is_present] = np.nan
    medians = np.array(
        [np.median(ratings) if len(ratings := column[~np.isnan(column)]) else np.nan for column in tables.T]
    )
    return _best_first(played.systems, medians, tables)


def _best_first(systems: Sequence[str], values: Floats, draws: Floats) -> Ratings:
    order = np.argsort(-values, kind="stable")
    return Ratings(tuple(systems[index] for index in order), values[order], draws[:, order])
