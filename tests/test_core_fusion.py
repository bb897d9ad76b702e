import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from msdscore.core import paper
from msdscore.forms.paper import Paper
from msdscore.lab.metrics.encoded import rank_agg_preference

similarity_sets = st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=6), min_size=1, max_size=5)


def test_length_gate_equals_the_values_of_the_paper():
    beta = paper.length_gate(torch.tensor([10, 20, 30, 75]), center=20.0, width=3.0)
    assert beta.tolist() == pytest.approx([0.9655, 0.5, 0.0344, 0.0], abs=1e-4)


@pytest.mark.parametrize(("gate", "beta"), [("coverage", 1.0), ("support", 0.0), ("fixed", 0.25)])
def test_gates_without_length_have_a_constant_weight(gate, beta):
    assert Paper(gate=gate, beta=0.25).betas(torch.tensor([4, 40])).tolist() == [beta, beta]


@given(sets=similarity_sets, temperature=st.sampled_from([0.05, 0.2, 1.0]))
def test_uncertainty_equals_the_formula(sets, temperature):
    values = torch.tensor([value for one in sets for value in one], dtype=torch.float64)
    group = torch.repeat_interleave(torch.arange(len(sets)), torch.tensor([len(one) for one in sets])) * 7
    result = paper.set_uncertainty(values, group, temperature=temperature)
    expected = [reference.uncertainty(one, temperature) for one in sets for _ in one]
    assert result.tolist() == pytest.approx(expected, abs=1e-12)


@given(values=st.lists(st.floats(-1, 1), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_uncertainty_does_not_depend_on_the_order_of_rows(values, seed):
    similarity = torch.tensor(values, dtype=torch.float32)
    group = torch.arange(len(values)) % 2
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    plain = paper.set_uncertainty(similarity, group, temperature=0.2)
    assert torch.equal(paper.set_uncertainty(similarity[order], group[order], temperature=0.2), plain[order])


def test_a_single_candidate_has_uncertainty_one_and_soft_msd_is_msd():
    similarity, divergence = torch.tensor([0.31]), torch.tensor([1.7])
    u = paper.set_uncertainty(similarity, torch.tensor([4]), temperature=0.2)
    assert u.item() == 1.0
    msd = similarity - 0.1 * divergence
    assert torch.equal(paper.soften(similarity, msd, torch.tensor([4]), temperature=0.2)[1], msd)


def test_uncertainty_is_one_for_ties_and_zero_for_a_clear_winner():
    u = paper.set_uncertainty(torch.tensor([0.2, 0.2, 9.0, -9.0]), torch.tensor([0, 0, 1, 1]), temperature=0.2)
    assert u.tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-12)


def test_rank_aggregation_uses_divergence_only_within_the_margin():
    similarity = np.array([[0.300, 0.290], [0.300, 0.297], [0.300, 0.300]])
    divergence = np.array([[9.0, 1.0], [9.0, 1.0], [2.0, 2.0]])
    assert rank_agg_preference(similarity, divergence, margin=0.005).tolist() == [1.0, -1.0, 0.0]
