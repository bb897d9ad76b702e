"""Ratings of systems from battles: online Elo with bootstrap medians, and Bradley–Terry with ties as half wins."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

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

    @property
    def rounded(self) -> dict[str, int]:
        """Integer ratings by system, as printed by leaderboards."""
        return {name: int(value + 0.5) for name, value in zip(self.systems, self.values, strict=True)}


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


def bradley_terry(played: Games) -> Ratings:
    r"""Maximum-likelihood log-odds strengths with a tie as half a win to each side; they sum to 0.

    >>> table = bradley_terry(games(["a"] * 4, ["b"] * 4, [1, 1, 1, 0]))
    >>> table.systems, round(float(table.values[0] - table.values[1]), 4)  # log(3/1)
    (('a', 'b'), 1.0986)
    """
    _check_finite(played)
    optimize: Any = import_module("scipy.optimize")

    def loss_and_gradient(theta: Floats) -> tuple[float, Floats]:
        margin = theta[played.first] - theta[played.second]
        loss = np.logaddexp(0, margin) - played.outcome * margin
        slope = 1 / (1 + np.exp(-margin)) - played.outcome
        gradient: Floats = np.zeros(len(theta))
        np.add.at(gradient, played.first, slope)
        np.subtract.at(gradient, played.second, slope)
        return float(loss.sum()), gradient

    fitted = optimize.minimize(
        loss_and_gradient,
        np.zeros(len(played.systems)),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-14, "gtol": 1e-9, "maxiter": 10_000},
    )
    strengths: Floats = fitted.x - fitted.x.mean()
    return _best_first(played.systems, strengths, np.empty((0, len(strengths))))


def _best_first(systems: Sequence[str], values: Floats, draws: Floats) -> Ratings:
    order = np.argsort(-values, kind="stable")
    return Ratings(tuple(systems[index] for index in order), values[order], draws[:, order])


def _check_finite(played: Games) -> None:
    """Raise `InputError` if the likelihood has no finite maximum: a group of systems always wins against the rest."""
    sparse: Any = import_module("scipy.sparse")
    csgraph: Any = import_module("scipy.sparse.csgraph")
    won, lost = played.outcome > 0, played.outcome < 1
    rows = np.concatenate([played.first[won], played.second[lost]])
    columns = np.concatenate([played.second[won], played.first[lost]])
    size = len(played.systems)
    graph = sparse.coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    parts, _ = csgraph.connected_components(graph, directed=True, connection="strong")
    if parts > 1:
        raise InputError(
            f"Bradley–Terry has no finite answer: the {size} systems form {parts} groups of which one "
            "never loses to another; rate them by Elo, or add battles"
        )
