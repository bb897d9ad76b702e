import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import reference
from msdscore.core.mixture import sample, spread
from point_sets import ragged


def similarities_of(side):
    solid = torch.where(side.mask.unsqueeze(-1), side.points, 0.0)
    gram = solid @ solid.mT
    return lambda index: gram.gather(1, index.unsqueeze(-1).expand(-1, -1, gram.shape[2]))


@given(size=st.integers(1, 12), extra=st.integers(0, 6), key=st.integers(0, 2**63 - 1), seed=st.integers(0, 9))
def test_draws_depend_only_on_the_item(size, extra, key, seed):
    alone = sample(torch.ones(1, size, dtype=torch.bool), torch.tensor([key]), seed=seed, components=3)
    mask = torch.zeros(3, size + extra, dtype=torch.bool)
    mask[:, :size] = True
    among = sample(mask, torch.tensor([5, key, 77]), seed=seed, components=3)
    assert torch.equal(alone[0], among[1])
    assert len(set(alone[0, :3].tolist())) == 3 or size < 3
    assert alone.min() >= 0
    assert alone.max() < size


def test_draws_are_uniform_over_points_and_independent_between_components():
    draws = sample(torch.ones(9000, 6, dtype=torch.bool), torch.arange(9000), seed=1, components=2)
    pairs = np.bincount((draws[:, 0] * 6 + draws[:, 1]).numpy(), minlength=36).reshape(6, 6)
    observed = pairs[~np.eye(6, dtype=bool)]
    assert pairs.trace() == 0
    # 30 cells, 300 expected each: uniform draws pass with probability 0.999, and the seed is fixed.
    assert stats.chisquare(observed).pvalue > 1e-3


def test_reserves_and_starts_of_few_points_are_drawn_with_replacement():
    """As in the paper: with replacement if N < K, and a dead component restarts at a random token."""
    reserve = sample(torch.ones(9000, 6, dtype=torch.bool), torch.arange(9000), seed=1, components=2)
    few = sample(torch.ones(9000, 2, dtype=torch.bool), torch.arange(9000), seed=1, components=3)
    for first, second, points in ((reserve[:, 2], reserve[:, 3], 6), (few[:, 0], few[:, 2], 2),
                                  (reserve[:, 0], reserve[:, 2], 6)):  # fmt: skip
        counts = np.bincount((first * points + second).numpy(), minlength=points**2)
        assert stats.chisquare(counts).pvalue > 1e-3


def test_seeds_give_different_draws():
    mask, keys = torch.ones(50, 20, dtype=torch.bool), torch.arange(50)
    assert not torch.equal(sample(mask, keys, seed=0, components=2), sample(mask, keys, seed=1, components=2))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 100))
def test_spread_equals_the_reference_farthest_first(sizes, seed):
    side = ragged(sizes, 5, seed=seed, extra=2)
    result = spread(similarities_of(side), side.mask, count=6)
    for row, size in enumerate(sizes):
        points = side.points[row, :size].numpy()
        assert result[row].tolist() == reference.farthest_first(points, 6)


def test_near_ties_select_the_lower_index():
    points = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0 + 1e-7, -1e-6]]], dtype=torch.float64)
    side_mask = torch.ones(1, 3, dtype=torch.bool)
    gram = points @ points.mT
    jitter = gram.clone()
    jitter[0, 0, 2] -= 1e-5
    for matrix in (gram, jitter):
        rows = lambda index, matrix=matrix: matrix.gather(1, index.unsqueeze(-1).expand(-1, -1, 3))
        assert spread(rows, side_mask, count=2).tolist() == [[0, 1]]
