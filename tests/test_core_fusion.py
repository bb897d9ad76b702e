import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from msdscore.core import divergence
from msdscore.forms.paper import Paper
from msdscore_lab.metrics.encoded import rank_agg_preference

similarity_sets = st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=6), min_size=1, max_size=5)


def test_length_gate_equals_the_values_of_the_paper():
    beta = divergence.length_gate(np.array([10.0, 20.0, 30.0, 75.0]), center=20.0, width=3.0)
    assert beta.tolist() == pytest.approx([0.9655, 0.5, 0.0344, 0.0], abs=1e-4)


@pytest.mark.parametrize(("gate", "beta"), [("coverage", 1.0), ("support", 0.0), ("fixed", 0.25)])
def test_gates_without_length_have_a_constant_weight(gate, beta):
    assert Paper(gate=gate, beta=0.25).betas(np.array([4, 40])).tolist() == [beta, beta]


@given(sets=similarity_sets, temperature=st.sampled_from([0.05, 0.2, 1.0]))
def test_uncertainty_equals_the_formula(sets, temperature):
    values = np.array([value for one in sets for value in one])
    group = np.repeat(np.arange(len(sets)), [len(one) for one in sets]) * 7
    result = divergence.set_uncertainty(values, group, temperature=temperature)
    expected = [reference.uncertainty(one, temperature) for one in sets for _ in one]
    assert result.tolist() == pytest.approx(expected, abs=1e-12)


@given(values=st.lists(st.floats(-1, 1), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_uncertainty_does_not_depend_on_the_order_of_rows(values, seed):
    similarity = np.array(values)
    group = np.arange(len(values)) % 2
    order = np.random.default_rng(seed).permutation(len(values))
    plain = divergence.set_uncertainty(similarity, group, temperature=0.2)
    assert np.array_equal(divergence.set_uncertainty(similarity[order], group[order], temperature=0.2), plain[order])


def test_a_single_candidate_has_uncertainty_one_and_soft_msd_is_msd():
    similarity, msd = np.array([0.31]), np.array([0.14])
    u = divergence.set_uncertainty(similarity, np.array([4]), temperature=0.2)
    assert u.item() == 1.0
    assert np.array_equal(divergence.soften(similarity, msd, np.array([4]), temperature=0.2)[1], msd)


def test_uncertainty_is_one_for_ties_and_zero_for_a_clear_winner():
    u = divergence.set_uncertainty(np.array([0.2, 0.2, 9.0, -9.0]), np.array([0, 0, 1, 1]), temperature=0.2)
    assert u.tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-12)


def test_rank_aggregation_uses_divergence_only_within_the_margin():
    similarity = np.array([[0.300, 0.290], [0.300, 0.297], [0.300, 0.300]])
    divergence = np.array([[9.0, 1.0], [9.0, 1.0], [2.0, 2.0]])
    assert rank_agg_preference(similarity, divergence, margin=0.005).tolist() == [1.0, -1.0, 0.0]
