"""Pairwise judgements: ties, thresholds, and paired tests against scipy and closed forms."""

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from msdscore.errors import InputError
from msdscore_lab.stats.pairs import (
    credits_of,
    decide_beyond,
    decide_matched,
    mcnemar,
    mcnemar_exact,
)

_NAN = float("nan")


def test_ties_are_wrong_or_half() -> None:
    positive, negative = [1.0, 2.0, 3.0, _NAN], [0.0, 2.0, 4.0, 1.0]
    np.testing.assert_array_equal(credits_of(positive, negative), [1.0, 0.0, 0.0, _NAN])
    np.testing.assert_array_equal(credits_of(positive, negative, ties="half"), [1.0, 0.5, 0.0, _NAN])


def test_two_equal_infinities_are_a_tie() -> None:
    assert credits_of([np.inf, np.inf, 0.0], [np.inf, 0.0, -np.inf], ties="half").tolist() == [0.5, 1.0, 1.0]


def test_columns_must_match() -> None:
    with pytest.raises(InputError, match="over the same pairs"):
        credits_of([1.0], [1.0, 2.0])


def test_fixed_epsilon_is_exclusive() -> None:
    assert decide_beyond([1e-4, -1e-4, 1.1e-4, -2e-4, 0.0], 1e-4).tolist() == [0, 0, 1, -1, 0]


@pytest.mark.parametrize("n_ties", [0, 1, 7, 49])
def test_matched_threshold_gives_the_human_tie_count(n_ties: Any) -> None:
    differences = np.random.default_rng(0).normal(size=50)
    decided = decide_matched(differences, n_ties)
    assert (decided == 0).sum() == n_ties
    assert np.abs(differences[decided == 0]).max(initial=0) < np.abs(differences[decided != 0]).min()


def test_equal_sizes_at_the_threshold_are_decided() -> None:
    assert decide_matched([0.1, -0.2, 0.2, 0.3], 2).tolist() == [0, -1, 1, 1]


def test_exact_zeros_stay_ties() -> None:
    assert decide_matched([0.0, 0.0, 0.5], 0).tolist() == [0, 0, 1]
    assert decide_matched([0.0, 0.0], 2).tolist() == [0, 0]


def test_as_many_ties_as_pairs_leave_none_decided() -> None:
    assert decide_matched([0.1, 0.2], 2).tolist() == [0, 0]


def test_threshold_rejects_nan() -> None:
    with pytest.raises(InputError, match="without NaN"):
        decide_matched([0.1, _NAN], 1)


def _right(b: Any, c: Any, both: Any = 5) -> Any:
    return [1] * b + [0] * c + [1] * both, [0] * b + [1] * c + [1] * both


@pytest.mark.parametrize(("b", "c"), [(10, 2), (30, 14), (6, 5), (4, 4)])
def test_mcnemar_closed_form(b: Any, c: Any) -> None:
    result = mcnemar(*_right(b, c))
    statistic = max(abs(b - c) - 1, 0) ** 2 / (b + c)
    assert result.statistic == pytest.approx(statistic)
    assert result.p_value == pytest.approx(scipy_stats.chi2.sf(statistic, 1))
    assert result.n == b + c


@pytest.mark.parametrize(("b", "c"), [(10, 2), (30, 14), (6, 5), (1, 0), (4, 4)])
def test_exact_mcnemar_is_a_binomial_test(b: Any, c: Any) -> None:
    result = mcnemar_exact(*_right(b, c))
    assert result.p_value == pytest.approx(scipy_stats.binomtest(b, b + c, 0.5).pvalue)


def test_judges_without_disagreement_do_not_differ() -> None:
    assert mcnemar([1, 0], [1, 0]).p_value == mcnemar_exact([1, 0], [1, 0]).p_value == 1.0


def test_exact_and_corrected_mcnemar_control_their_level() -> None:
    rng = np.random.default_rng(1)
    rejected = {"exact": 0, "edwards": 0}
    for _ in range(400):
        first, second = rng.random((2, 150)) < 0.7
        rejected["exact"] += mcnemar_exact(first, second).p_value <= 0.05
        rejected["edwards"] += mcnemar(first, second).p_value <= 0.05
    # Both are conservative: about 3.5 % for some 63 discordant pairs, with a simulation error of about 1 %.
    assert 0.01 < rejected["exact"] / 400 < 0.06
    assert 0.01 < rejected["edwards"] / 400 < 0.06


def test_clustered_mcnemar_equals_mcnemar_for_single_pairs_and_controls_its_level() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.random(80) < 0.7, rng.random(80) < 0.5
    b, c = int((first & ~second).sum()), int((second & ~first).sum())
    alone = mcnemar(first, second, np.arange(80))
    assert alone.statistic == pytest.approx((b - c) ** 2 / (b + c))
    rejected = {"plain": 0, "clustered": 0}
    clusters = np.repeat(np.arange(40), 8)
    for _ in range(300):
        better = rng.random((40, 2)).repeat(8, axis=0) + rng.normal(0, 0.05, (320, 2)) > 0.5  # images decide
        rejected["plain"] += mcnemar(*better.T).p_value < 0.05
        rejected["clustered"] += mcnemar(better[:, 0], better[:, 1], clusters).p_value < 0.05
    assert rejected["plain"] > 75
    assert rejected["clustered"] < 30
    assert mcnemar(first, first, np.arange(80)).p_value == 1.0
    with pytest.raises(InputError, match="over the same pairs"):
        mcnemar(first, second, np.arange(79))
