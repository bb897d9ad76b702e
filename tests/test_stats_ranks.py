"""Correlations against scipy, with weights, and against published values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from msdscore.errors import InputError
from msdscore_lab.stats import ranks
from msdscore_lab.stats.ranks import auc, kendall_b, kendall_c, pearson, prepare, spearman

_SCIPY = {
    "tau_b": lambda x, y: scipy_stats.kendalltau(x, y, variant="b").statistic,
    "tau_c": lambda x, y: scipy_stats.kendalltau(x, y, variant="c").statistic,
    "spearman": lambda x, y: scipy_stats.spearmanr(x, y).statistic,
    "pearson": lambda x, y: scipy_stats.pearsonr(x, y).statistic,
}
_COLUMN = st.lists(st.integers(0, 6), min_size=4, max_size=40)


def _columns(seed: Any, n: Any, levels: Any) -> Any:
    rng = np.random.default_rng(seed)
    ratings = rng.integers(1, levels + 1, n)
    return ratings + rng.normal(0, 1.5, n).round(1), ratings


@pytest.mark.parametrize("method", sorted(_SCIPY))
@pytest.mark.parametrize(("n", "levels"), [(5, 2), (60, 4), (400, 25), (3000, 4)])
def test_equals_scipy(method: Any, n: Any, levels: Any) -> None:
    x, y = _columns(n, n, levels)
    assert ranks.MEASURES[method](prepare(x, y), None) == pytest.approx(_SCIPY[method](x, y), abs=1e-12)


@pytest.mark.parametrize("method", sorted(_SCIPY))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_integer_weights_equal_repetition(method: Any, data: Any) -> None:
    x = data.draw(_COLUMN)
    y = data.draw(st.lists(st.integers(0, 6), min_size=len(x), max_size=len(x)))
    w = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x))), dtype=float)
    expanded = prepare(np.repeat(x, w.astype(int)), np.repeat(y, w.astype(int)))
    measure = ranks.MEASURES[method]
    assert measure(prepare(x, y), w) == pytest.approx(measure(expanded, None), abs=1e-12, nan_ok=True)


def test_sorting_path_equals_table_path(monkeypatch: Any) -> None:
    x, y = _columns(3, 300, 50)
    columns = prepare(x, y)
    weights = np.random.default_rng(0).integers(0, 3, 300).astype(float)
    table = kendall_b(columns, weights), kendall_c(columns, weights)
    monkeypatch.setattr(ranks, "_TABLE_CELLS", 0)
    assert (kendall_b(columns, weights), kendall_c(columns, weights)) == pytest.approx(table, abs=1e-12)


def test_invariances() -> None:
    x, y = _columns(8, 200, 5)
    for measure in (kendall_b, kendall_c, spearman):
        value = measure(prepare(x, y))
        assert measure(prepare(np.exp(x), 3 * y + 1)) == pytest.approx(value, abs=1e-12)
        assert measure(prepare(-x, y)) == pytest.approx(-value, abs=1e-12)
        assert measure(prepare(y, x)) == pytest.approx(value, abs=1e-12)


def test_missing_pairs_are_counted_and_dropped() -> None:
    x = [1.0, 2.0, np.nan, 4.0, 5.0]
    y = [1.0, np.nan, 3.0, 3.0, 9.0]
    columns = prepare(x, y)
    assert (len(columns), columns.missing, spearman(columns)) == (3, 2, 1.0)


def test_constant_columns_have_no_correlation() -> None:
    columns = prepare([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    correlations = [measure for name, measure in ranks.MEASURES.items() if name != "auc"]
    assert all(np.isnan(measure(columns, None)) for measure in correlations)


def test_empty_columns_have_no_correlation() -> None:
    columns = prepare([], [])
    correlations = [measure for name, measure in ranks.MEASURES.items() if name != "auc"]
    assert all(np.isnan(measure(columns, None)) for measure in correlations)


def test_columns_must_match() -> None:
    with pytest.raises(InputError, match=r"got shapes \(2,\) and \(3,\)"):
        prepare([1, 2], [1, 2, 3])


def test_infinite_scores_are_ranked() -> None:
    assert kendall_b(prepare([-np.inf, 0, np.inf], [1, 2, 3])) == 1.0


@pytest.mark.parametrize(("published", "discordant"), [(0.802, 9), (0.846, 7), (0.736, 12), (0.780, 10), (0.582, 19)])
def test_published_caparena_taus_are_rankings_of_fourteen_models(published: Any, discordant: Any) -> None:
    """Every published model-level tau is (91 − 2d)/91: fourteen systems without ties, d discordant pairs."""
    order = list(range(14))
    swaps = discordant
    for i in range(14):  # each swap of neighbours adds exactly one discordant pair
        for j in range(13 - i):
            if swaps and order[j] < order[j + 1]:
                order[j], order[j + 1] = order[j + 1], order[j]
                swaps -= 1
    assert swaps == 0
    assert round(kendall_b(prepare(range(14), order)), 3) == pytest.approx(published)


def test_pearson_of_a_nonlinear_relation() -> None:
    assert pearson(prepare([1, 2, 3, 4], [1, 8, 27, 64])) < 1.0 == spearman(prepare([1, 2, 3], [1, 8, 27]))


def test_auc_counts_ties_half_and_supports_weights() -> None:
    rng = np.random.default_rng(4)
    scores, labels = rng.integers(0, 6, 60), rng.integers(0, 2, 60)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc(prepare(scores, labels)) == pytest.approx(np.mean(pairs))
    weights = rng.integers(0, 3, 60).astype(float)
    listed = np.repeat(np.arange(60), weights.astype(int))
    assert auc(prepare(scores, labels), weights) == pytest.approx(auc(prepare(scores[listed], labels[listed])))
    assert auc(prepare([1.0, 1.0], [0, 1])) == 0.5
    assert np.isnan(auc(prepare([1.0, 2.0], [1, 1])))
    with pytest.raises(InputError, match="AUC needs labels of two values"):
        auc(prepare([1.0, 2.0, 3.0], [0, 1, 2]))
