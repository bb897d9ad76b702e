"""Elo ratings: a plain loop, published resampling, recovery of the order of strengths."""

from typing import Any

import numpy as np
import pytest

from msdscore.errors import InputError
from msdscore_lab.stats.elo import bootstrap_elo, games, replay


def _loop(first: Any, second: Any, outcome: Any, k: Any = 4.0) -> Any:
    """Compute Elo one battle at a time."""
    ratings: dict[str, float] = {}
    for a, b, score in zip(first, second, outcome, strict=True):
        ra, rb = ratings.get(a, 1000.0), ratings.get(b, 1000.0)
        expected = 1 / (1 + 10 ** ((rb - ra) / 400))
        ratings[a], ratings[b] = ra + k * (score - expected), rb - k * (score - expected)
    return ratings


def _battles(n: Any = 300, systems: Any = 6, seed: Any = 0, ties: Any = 0.2) -> Any:
    rng = np.random.default_rng(seed)
    names = [f"s{i}" for i in range(systems)]
    strength = np.linspace(1.5, -1.5, systems)
    a = rng.integers(0, systems, n)
    b = (a + rng.integers(1, systems, n)) % systems
    wins = rng.random(n) < 1 / (1 + np.exp(strength[b] - strength[a]))
    outcome = np.where(rng.random(n) < ties, 0.5, wins)
    return [names[i] for i in a], [names[i] for i in b], outcome


def in_order(played):
    return replay(played, np.arange(len(played.outcome))[None])[0]


def test_elo_equals_a_plain_loop() -> None:
    played = _battles()
    expected = _loop(*played)
    table = dict(zip(games(*played).systems, in_order(games(*played)), strict=True))
    assert table == pytest.approx(expected, abs=1e-9)


def test_elo_preserves_the_sum_and_ties_of_equals_change_nothing() -> None:
    assert in_order(games(*_battles())).mean() == pytest.approx(1000)
    assert in_order(games(["a"], ["b"], [0.5])).tolist() == [1000, 1000]


def test_bootstrap_equals_the_published_resampling() -> None:
    pandas = pytest.importorskip("pandas")
    played = _battles(n=60)
    frame = pandas.DataFrame({"first": played[0], "second": played[1], "outcome": played[2]})
    generator = np.random.RandomState(42)  # used by pandas after numpy.random.seed(42)
    tables = []
    for _ in range(25):
        sample = frame.sample(frac=1.0, replace=True, random_state=generator)
        tables.append(_loop(sample["first"], sample["second"], sample["outcome"]))
    medians = pandas.DataFrame(tables).median().sort_values(ascending=False)
    ratings = bootstrap_elo(games(*played), samples=25)
    assert ratings.systems == tuple(medians.index)
    assert ratings.values.tolist() == pytest.approx(medians.tolist(), abs=1e-9)


def test_bootstrap_omits_systems_without_battles() -> None:
    ratings = bootstrap_elo(games(["a", "a", "a"], ["b", "b", "c"], [1, 1, 1]), samples=50)
    column = ratings.draws[:, ratings.systems.index("c")]
    assert np.isnan(column).any()
    assert ratings.values[ratings.systems.index("c")] == pytest.approx(np.nanmedian(column))


def test_bootstrap_ranks_by_strength_and_is_repeatable() -> None:
    played = games(*_battles(n=2000, ties=0.1))
    ratings = bootstrap_elo(played, samples=40)
    assert ratings.systems == ("s0", "s1", "s2", "s3", "s4", "s5")
    assert np.array_equal(ratings.draws, bootstrap_elo(played, samples=40).draws)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(InputError, match=r"must be 1, 0\.5 or 0"):
        games(["a"], ["b"], [2])
    with pytest.raises(InputError, match="at least one battle"):
        games([], [], [])
    with pytest.raises(InputError, match="columns of one length"):
        games(["a"], ["b", "c"], [1])
