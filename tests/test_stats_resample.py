"""Resampling: coverage of intervals and uniformity of p-values by simulation, closed forms, clusters."""

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from msdscore.errors import ConfigError, InputError
from msdscore.intervals import Resampling, bootstrap_mean
from msdscore_lab.stats.ranks import kendall_c, prepare
from msdscore_lab.stats.resample import (
    bootstrap,
    bootstrap_both,
    bootstrap_share,
    compare_all_pairs,
    holm,
    paired_difference,
    permutation_test,
    swap_test,
)

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
    for module in ("msdscore.intervals", "msdscore_lab.stats.resample"):
        monkeypatch.setattr(f"{module}.BLOCK", 120)
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


def test_paired_difference_is_the_interval_of_the_differences() -> None:
    rng = np.random.default_rng(7)
    first, second = rng.random(100), rng.random(100)
    assert paired_difference(first, second, how=_QUICK) == bootstrap_mean(first - second, how=_QUICK)


def _null_p_values(test: Any, runs: Any = 300, n: Any = 60) -> Any:
    rng = np.random.default_rng(8)
    return np.array([test(*rng.normal(size=(2, n)), run) for run in range(runs)])


@pytest.mark.parametrize(
    "test",
    [
        lambda a, b, seed: permutation_test(a, b, how=Resampling(samples=199, seed=seed)).p_value,
        lambda a, b, seed: bootstrap_both(_mean_of(a - b), len(a), how=Resampling(samples=199, seed=seed))[1].p_value,
    ],
    ids=["permutation", "bootstrap"],
)
def test_p_values_are_uniform_under_the_null(test: Any) -> None:
    p = _null_p_values(test)
    assert scipy_stats.kstest(p, "uniform").pvalue > 0.001
    assert (p <= 0.05).mean() < 0.1


def test_swap_test_is_calibrated_and_has_power() -> None:
    rng = np.random.default_rng(9)
    p_values = []
    for seed in range(40):
        ratings = rng.integers(1, 5, 40)
        first, second = ratings + rng.normal(size=40), (ratings + rng.normal(size=40)) * 100
        p_values.append(_swap(first, second, ratings, seed))
    assert scipy_stats.kstest(p_values, "uniform").pvalue > 0.001
    assert _swap(ratings + rng.normal(size=40) / 10, rng.normal(size=40), ratings, 0) < 0.05


def _swap(first: Any, second: Any, ratings: Any, seed: Any) -> Any:
    how = Resampling(samples=59, seed=seed)
    return swap_test(lambda s: kendall_c(prepare(s, ratings)), first, second, how=how).p_value


def test_permutation_test_is_exact_for_few_items() -> None:
    first = np.array([1.2, 0.4, 2.2, 1.9, 0.3, 1.0])
    second = np.array([0.2, 0.9, 1.1, 1.0, 0.1, 0.8])
    result = permutation_test(first, second)
    known = scipy_stats.permutation_test(
        (first, second), lambda a, b: (a - b).mean(), permutation_type="samples", n_resamples=np.inf
    )
    assert result.method == "permutation, exact"
    assert result.p_value == pytest.approx(known.pvalue)
    assert result.statistic == pytest.approx(known.statistic)


def test_permutation_by_image_is_more_conservative_than_by_item() -> None:
    rng = np.random.default_rng(10)
    effect = rng.normal(0.2, 1, 20).repeat(10)
    by_item = permutation_test(effect, np.zeros(200))
    by_image = permutation_test(effect, np.zeros(200), clusters=np.arange(20).repeat(10))
    assert by_image.p_value > by_item.p_value
    assert (by_image.n, by_image.method) == (20, "cluster permutation")


def test_a_sampled_p_value_is_never_zero() -> None:
    better = np.arange(1.0, 101.0)
    assert permutation_test(better, np.zeros(100), how=_QUICK).p_value == 1 / 301
    assert bootstrap_both(_mean_of(better), 100, how=_QUICK)[1].p_value == 2 / 301


def test_identical_systems_are_never_different() -> None:
    same = np.random.default_rng(11).random(50)
    assert permutation_test(same, same).p_value == 1.0
    assert bootstrap_both(_mean_of(same - same), 50, how=_QUICK)[1].p_value == 1.0


def test_undefined_difference_is_not_significant() -> None:
    constant, ratings = np.zeros(20), np.arange(20) % 4

    def tau(scores: Any) -> float:
        return kendall_c(prepare(scores, ratings))

    assert np.isnan(swap_test(tau, constant, constant, how=_QUICK).p_value)
    columns = prepare(constant, ratings)
    assert np.isnan(bootstrap_both(lambda w: kendall_c(columns, w), 20, how=_QUICK)[1].p_value)
    same = ratings.astype(float)
    assert swap_test(tau, same, same, how=_QUICK).p_value == 1.0


def test_holm_ignores_missing_p_values() -> None:
    np.testing.assert_allclose(holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])


def test_holm_equals_the_step_down_procedure() -> None:
    assert holm([0.001, 0.5, 0.02]).tolist() == pytest.approx([0.003, 0.5, 0.04])
    assert holm([0.4, 0.5]).tolist() == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []


def test_holm_controls_the_family_wise_error() -> None:
    rng = np.random.default_rng(12)
    wrong = [(holm(rng.random(10)) <= 0.05).any() for _ in range(2000)]
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.02)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="samples .*got 0"):
        Resampling(samples=0)
    with pytest.raises(ConfigError, match="level.*got 95"):
        Resampling(level=95)
    with pytest.raises(InputError, match="nothing to resample"):
        bootstrap_mean([])
    with pytest.raises(InputError, match="got 2 labels for 3 items"):
        bootstrap_mean([1, 2, 3], clusters=["a", "b"])
    with pytest.raises(InputError, match="over the same items"):
        paired_difference([1, 2], [1])


def test_all_pairs_of_equal_systems_are_rarely_significant() -> None:
    rng = np.random.default_rng(0)
    false = []
    for run in range(300):
        found = compare_all_pairs([rng.normal(size=(40, 3))], how=Resampling(samples=300, seed=run))[0]
        excluded = np.array([pair.low > 0 or pair.high < 0 for pair in found.differences])
        np.testing.assert_array_equal(excluded, found.p_values < 0.05)
        false.append(excluded.any())
    assert np.mean(false) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_one_pair_agrees_with_the_t_test() -> None:
    values = np.random.default_rng(4).normal(size=(150, 2)) + np.array([0.0, 0.25])
    found = compare_all_pairs([values, values], how=Resampling(samples=20_000))
    assert found[0].p_values[0] == pytest.approx(scipy_stats.ttest_rel(*values.T).pvalue, abs=0.005)
    assert found[0].p_values == found[1].p_values


def test_constant_differences_and_single_units() -> None:
    base = np.arange(6.0) * 0.1
    constant = compare_all_pairs([np.stack([base, base, base + 0.3], axis=1)], how=_QUICK)[0]
    assert constant.p_values.tolist() == pytest.approx([1.0, 1 / 301, 1 / 301])
    assert [(rank.value, rank.low, rank.high) for rank in constant.ranks()] == [(2.5, 2, 3), (2.5, 2, 3), (1, 1, 1)]
    assert [rank.value for rank in constant.ranks(lower_is_better=True)] == [1.5, 1.5, 3]
    single = compare_all_pairs([np.array([[1.0, 2.0]])], how=_QUICK)[0]
    assert np.isnan([single.p_values[0], single.differences[0].low, single.ranks()[0].low]).all()
