"""Pairwise judgements: ties, thresholds, and paired tests against scipy and closed forms."""

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from msdscore.errors import InputError
from msdscore_lab.stats.pairs import credits_of, decide_beyond, decide_matched, mcnemar

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


@pytest.mark.parametrize(("b", "c"), [(10, 2), (30, 14), (6, 5), (4, 4), (0, 0)])
def test_mcnemar_closed_form(b: Any, c: Any) -> None:
    p = mcnemar([1] * b + [0] * c + [1] * 5, [0] * b + [1] * c + [1] * 5)
    statistic = max(abs(b - c) - 1, 0) ** 2 / max(b + c, 1)
    assert p == pytest.approx(scipy_stats.chi2.sf(statistic, 1))
