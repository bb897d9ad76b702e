"""Resampling: coverage of intervals and uniformity of p-values by simulation, closed forms, clusters."""

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Resampling, bootstrap_mean
from msdscore_lab.stats.differences import (
    all_pairs,
    bootstrap_means,
    compare_means,
    mean_values,
    pseudo_values,
    ranks_of,
)
from msdscore_lab.stats.ranks import kendall_c, prepare
from msdscore_lab.stats.resample import bootstrap, bootstrap_share

_QUICK = Resampling(samples=300, seed=1)


def _mean_of(values: Any) -> Any:
    return lambda w: float(w @ values / w.sum())


def test_intervals_of_a_mean_cover_it_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(0)
    runs = 400
    inside = 0
    for _ in range(runs):
        interval = bootstrap_mean((rng.random(200) < 0.7).astype(float), how=_QUICK)
        inside += interval.low <= 0.7 <= interval.high
    # 400 runs have a standard deviation of 1.1 %; the tolerance is three of them, plus a margin for n = 200.
    assert inside / runs == pytest.approx(0.95, abs=0.04)


def test_plain_percentiles_equal_the_resampled_means() -> None:
    values = np.arange(8.0)
    draws = np.random.default_rng(1).integers(0, 8, size=(300, 8))
    plain = bootstrap_mean(values, how=Resampling(samples=300, seed=1, expanded=False))
    assert (plain.low, plain.high) == pytest.approx(tuple(np.quantile(values[draws].mean(axis=1), [0.025, 0.975])))
    wider = bootstrap_mean(values, how=_QUICK)
    assert wider.low < plain.low
    assert wider.high > plain.high


def test_intervals_of_five_images_are_wide_enough() -> None:
    rng = np.random.default_rng(13)
    runs, clusters = 400, np.repeat(np.arange(5), 6)
    inside = 0
    for _ in range(runs):
        values = rng.normal(0, 1, 5).repeat(6) + rng.normal(0, 0.5, 30)
        interval = bootstrap_mean(values, clusters=clusters, how=Resampling(samples=1000, seed=1))
        inside += interval.low <= 0 <= interval.high
    assert inside / runs >= 0.91  # plain percentiles: 0.84


def test_one_unit_has_no_interval() -> None:
    lone = bootstrap_mean([1.0, 0.0], clusters=["a", "a"])
    assert lone.value == 0.5
    assert np.isnan([lone.low, lone.high]).all()


def test_fraction_of_zero_or_one_has_an_interval() -> None:
    known = scipy_stats.binomtest(12, 12).proportion_ci(method="exact")
    found = bootstrap_share(np.ones(24), clusters=np.arange(24) // 2)
    assert (found.low, found.high) == pytest.approx((known.low, known.high))
    assert bootstrap_share(np.zeros(12)).high == pytest.approx(1 - known.low)
    mixed = np.array([1.0, 1, 0, 1])
    assert bootstrap_share(mixed) == bootstrap_mean(mixed)


def test_only_cluster_intervals_cover_when_items_of_an_image_agree() -> None:
    rng = np.random.default_rng(1)
    runs, images, each = 200, 60, 8
    clusters = np.repeat(np.arange(images), each)
    inside = {"items": 0, "images": 0}
    for _ in range(runs):
        values = rng.normal(0, 1, images).repeat(each) + rng.normal(0, 0.5, images * each)
        for name, labels in (("items", None), ("images", clusters)):
            interval = bootstrap_mean(values, clusters=labels, how=_QUICK)
            inside[name] += interval.low <= 0 <= interval.high
    assert inside["images"] / runs == pytest.approx(0.95, abs=0.05)
    assert inside["items"] / runs < 0.75


def test_general_and_matrix_bootstrap_agree() -> None:
    values = np.random.default_rng(2).normal(size=50)
    clusters = [f"image{i % 9}" for i in range(50)]
    fast = bootstrap_mean(values, clusters=clusters, how=_QUICK)
    slow = bootstrap(_mean_of(values), 50, clusters=clusters, how=_QUICK)
    assert (fast.low, fast.high, fast.value) == pytest.approx((slow.low, slow.high, slow.value), abs=1e-12)
    assert (fast.n, fast.method, fast.seed) == (9, "cluster bootstrap", 1)


def test_interval_of_a_mean_matches_the_normal_one() -> None:
    values = np.random.default_rng(3).normal(size=2000)
    interval = bootstrap_mean(values, how=Resampling(samples=4000))
    half = 1.96 * values.std(ddof=1) / np.sqrt(2000)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.06)  # 4000 resamples: about 2 %


def test_interval_depends_only_on_the_seed(monkeypatch: Any) -> None:
    values = np.random.default_rng(4).normal(size=40)
    first = bootstrap_mean(values, how=_QUICK)
    assert bootstrap_mean(values, how=_QUICK) == first
    assert bootstrap_mean(values, how=Resampling(samples=300, seed=2)) != first
    monkeypatch.setattr("msdscore.intervals.BLOCK", 120)
    blocks = bootstrap_mean(values, how=_QUICK)
    # A matrix product may sum in another order for other numbers of rows.
    assert (blocks.low, blocks.high) == pytest.approx((first.low, first.high), abs=1e-12)


def test_a_wider_level_gives_a_wider_interval() -> None:
    values = np.random.default_rng(5).normal(size=100)
    narrow = bootstrap_mean(values, how=Resampling(level=0.5))
    wide = bootstrap_mean(values, how=Resampling(level=0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_bootstrap_of_a_correlation() -> None:
    rng = np.random.default_rng(6)
    ratings = rng.integers(1, 5, 300)
    columns = prepare(ratings + rng.normal(size=300), ratings)
    interval = bootstrap(lambda w: kendall_c(columns, w), 300, how=_QUICK)
    assert interval.low < interval.value < interval.high
    assert interval.high - interval.low < 0.2


def test_undefined_resamples_are_ignored() -> None:
    columns = prepare([1.0, 2.0], [1.0, 2.0])  # half of all resamples contain only one item
    interval = bootstrap(lambda w: kendall_c(columns, w), 2, how=_QUICK)
    assert (interval.low, interval.high) == (1.0, 1.0)


def test_p_values_of_a_difference_are_those_of_permutations() -> None:
    values = np.array([1.0, -0.5, 1.1, 0.9, 0.2, 0.2])
    known = scipy_stats.permutation_test(
        (values, np.zeros(6)), lambda a, b: (a - b).mean(), permutation_type="samples", n_resamples=np.inf
    )
    assert compare_means([values[:, None]])[0].p_values[0] == pytest.approx(known.pvalue)


def test_one_difference_has_the_interval_and_the_p_value_of_the_t_test() -> None:
    values = np.random.default_rng(4).normal(0.25, 1.4, size=150)
    (found,) = compare_means([values[:, None]], how=Resampling(samples=20_000))
    known = scipy_stats.ttest_1samp(values, 0)
    ends = known.confidence_interval()
    assert found.p_values[0] == pytest.approx(known.pvalue, abs=0.005)
    assert (found.intervals[0].low, found.intervals[0].high) == pytest.approx((ends.low, ends.high), abs=0.02)


@pytest.mark.parametrize("images", [6, 12, 40])
def test_equal_systems_rarely_differ_and_interval_and_test_agree(images: int) -> None:
    rng = np.random.default_rng(images)
    false = []
    for run in range(300):
        columns = all_pairs(rng.gamma(1.0, size=(images, 3)))  # skewed, as scores are
        found = compare_means([columns], how=Resampling(samples=300, seed=run))[0]
        excluded = np.array([pair.low > 0 or pair.high < 0 for pair in found.intervals])
        np.testing.assert_array_equal(excluded, found.p_values < 0.05)
        false.append(excluded.any())
    assert np.mean(false) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_intervals_of_a_correlation_and_of_a_ratio_cover_it() -> None:
    rng = np.random.default_rng(5)
    inside = {"tau": 0, "share": 0}
    for run in range(200):
        how = Resampling(samples=300, seed=run)
        ratings, images = rng.integers(1, 5, 120), np.repeat(np.arange(40), [1, 2, 3, 6] * 10).astype(str)
        sides = [prepare(ratings + 2 * rng.normal(size=120), ratings) for _ in range(2)]
        names = np.arange(120).astype(str)
        gaps = pseudo_values(lambda w, s=sides: kendall_c(s[0], w) - kendall_c(s[1], w), names)  # type: ignore[misc]
        right = (rng.random(40)[np.unique(images, return_inverse=True)[1]] < 0.5).astype(float)  # images decide
        for name, column, true in (("tau", gaps[:, None], 0.0), ("share", mean_values([right - 0.5], images), 0.0)):
            (interval,) = compare_means([column], how=how)[0].intervals
            inside[name] += interval.low <= true <= interval.high
    assert min(inside.values()) >= 0.90 * 200


def test_units_without_an_effect_are_not_part_of_a_statistic() -> None:
    values = np.array([1.0, 2.0, 6.0, 9.0])
    found = pseudo_values(lambda w: float(w[:3] @ values[:3] / w[:3].sum()), np.array(list("abcd")))
    np.testing.assert_allclose(found, [1, 2, 6, np.nan])
    assert compare_means([found[:, None]])[0].intervals[0].n == 3


def test_nearly_constant_differences_of_few_images_are_judged_exactly() -> None:
    right = np.r_[np.ones(98), np.zeros(2)][:, None]
    assert compare_means([right], how=_QUICK)[0].p_values[0] == 1 / 301
    assert compare_means([np.ones((8, 1))], how=_QUICK)[0].p_values[0] == 2 / 2**8
    few = compare_means([np.ones((3, 1))], how=_QUICK)[0]
    assert few.p_values[0] == 2 / 2**3
    assert np.isnan(few.intervals[0].low)
    same = compare_means([np.zeros((9, 1))], how=_QUICK)[0]
    assert (same.p_values[0], same.intervals[0].low, same.intervals[0].high) == (1.0, 0.0, 0.0)
    assert np.isnan(compare_means([np.ones((1, 1))], how=_QUICK)[0].p_values[0])


def test_undefined_difference_is_not_significant() -> None:
    columns = prepare(np.zeros(20), np.arange(20) % 4)
    found = pseudo_values(lambda w: kendall_c(columns, w), np.arange(20).astype(str))
    assert np.isnan(compare_means([found[:, None]], how=_QUICK)[0].p_values[0])


def test_ranks_follow_from_the_pairs() -> None:
    base = np.arange(12.0) * 0.1
    table = np.stack([base, base, base + 0.3], axis=1)
    pairs = compare_means([all_pairs(table)], how=_QUICK)[0]
    means = bootstrap_means(table, how=_QUICK)
    assert pairs.p_values.tolist() == pytest.approx([1.0, 1 / 301, 1 / 301])
    assert [(r.value, r.low, r.high) for r in ranks_of(means, pairs)] == [(2.5, 2, 3), (2.5, 2, 3), (1, 1, 1)]
    assert [rank.value for rank in ranks_of(means, pairs, lower_is_better=True)] == [1.5, 1.5, 3]


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="samples .*got 0"):
        Resampling(samples=0)
    with pytest.raises(ConfigError, match="level.*got 95"):
        Resampling(level=95)
    with pytest.raises(InputError, match="nothing to resample"):
        bootstrap_mean([])
    with pytest.raises(InputError, match="got 2 labels for 3 items"):
        bootstrap_mean([1, 2, 3], clusters=["a", "b"])
