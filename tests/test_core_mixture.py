"""EM: closed form, reference loop, invariances, monotone likelihood, recovery, gradients, dtypes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from msdscore.core.mixture import DirectSpace, FitSettings, GramSpace, Mixture, fit, log_density, start_points
from point_sets import directions, ragged

SPACES = [GramSpace, DirectSpace]


def seeds_of(side, count, init="spread", seed=0):
    solid = torch.where(side.mask.unsqueeze(-1), side.points, 0.0)
    settings = FitSettings(components=count // 2, init=init, seed=seed)
    return start_points(GramSpace(solid).similarities, side.mask, side.keys, settings)


@pytest.mark.parametrize("space", SPACES)
def test_one_component_is_the_mean_direction(space):
    side = ragged([6], 4)
    mixture = fit(side.points, side.mask, side.keys, FitSettings(components=1), space=space)
    mean = side.points[0, :6].sum(dim=0)
    assert torch.allclose(mixture.means[0, 0], mean / mean.norm(), atol=1e-12)
    assert mixture.log_weights.item() == pytest.approx(0.0, abs=1e-15)


def test_two_opposite_points_closed_form():
    points = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    mixture = fit(points, mask, torch.zeros(1, dtype=torch.int64), FitSettings(components=2, kappa=5.0))
    assert torch.allclose(mixture.means, points, atol=1e-9)
    expected = math.log(0.5 * math.exp(5.0) + 0.5 * math.exp(-5.0))
    assert log_density(mixture, points)[0].tolist() == pytest.approx([expected, expected], abs=1e-9)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("init", ["spread", "sample"])
@given(
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    seed=st.integers(0, 50),
    kappa=st.sampled_from([1.0, 20.0, 60.0]),
)
@settings(max_examples=20)
def test_agrees_with_the_reference(space, init, sizes, seed, kappa):
    side = ragged(sizes, 6, seed=seed, extra=3)
    options = FitSettings(components=3, kappa=kappa, init=init, seed=seed)
    mixture = fit(side.points, side.mask, side.keys, options, space=space)
    seeds = seeds_of(side, 6, init, seed)
    for row, size in enumerate(sizes):
        points = side.points[row, :size].numpy()
        means, weights = reference.fit(points, seeds[row].tolist(), kappa)
        # float64, twenty steps: rounding errors grow with kappa but are far below the tolerance of 1e-9 of the divergences.
        assert mixture.means[row].numpy() == pytest.approx(means, abs=1e-9)
        density = log_density(mixture, side.points)[row, :size].numpy()
        assert density == pytest.approx(reference.log_density(points, (means, weights), kappa), abs=1e-9)


@given(seed=st.integers(0, 200), size=st.integers(2, 20), components=st.integers(1, 4))
@settings(max_examples=30)
def test_likelihood_never_decreases(seed, size, components):
    side = ragged([size], 7, seed=seed)
    likelihoods = [
        log_density(
            fit(side.points, side.mask, side.keys, FitSettings(components=components, iterations=steps)),
            side.points,
        )[0, :size].sum()
        for steps in range(8)
    ]
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(likelihoods))


@given(seed=st.integers(0, 50))
@settings(max_examples=15)
def test_density_is_invariant_to_rotation(seed):
    generator = torch.Generator().manual_seed(seed)
    side = ragged([9, 4], 5, seed=seed)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator, dtype=torch.float64)).Q
    options = FitSettings(components=3, init="sample")
    plain = log_density(fit(side.points, side.mask, side.keys, options), side.points)
    turned = side.points @ rotation
    after = log_density(fit(turned, side.mask, side.keys, options), turned)
    assert torch.allclose(plain[side.mask], after[side.mask], atol=1e-9)


def test_planted_components_are_recovered():
    generator = torch.Generator().manual_seed(3)
    dim, kappa, shares = 16, 60.0, torch.tensor([0.5, 0.3, 0.2])
    centres = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q[:3]
    label = torch.repeat_interleave(torch.arange(3), (shares * 600).long())
    # For large kappa a vMF is near a Gaussian of variance 1/kappa around its mean, projected to the sphere.
    points = centres[label] + torch.randn(600, dim, generator=generator, dtype=torch.float64) / math.sqrt(kappa)
    points = torch.nn.functional.normalize(points, dim=-1).unsqueeze(0)
    mask = torch.ones(1, 600, dtype=torch.bool)
    mixture = fit(points, mask, torch.zeros(1, dtype=torch.int64), FitSettings(components=3, kappa=kappa))
    cosines = mixture.means[0] @ centres.T
    order = cosines.argmax(dim=0)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert cosines.amax(dim=0).min() > 0.99
    assert torch.allclose(mixture.log_weights[0].exp()[order], shares.double(), atol=0.02)


@pytest.mark.parametrize("space", SPACES)
def test_dead_components_restart_as_in_the_reference(space):
    # Three tight clusters and a component between them, which has no mass at this kappa.
    generator = torch.Generator().manual_seed(0)
    centre = directions(generator, 1, 8)
    points = torch.nn.functional.normalize(
        centre + 1e-9 * torch.randn(5, 8, generator=generator, dtype=torch.float64), dim=-1
    )
    far = torch.nn.functional.normalize(
        -centre + 1e-3 * torch.randn(1, 8, generator=generator, dtype=torch.float64), dim=-1
    )
    points = torch.cat([points, far]).unsqueeze(0)
    mask = torch.ones(1, 6, dtype=torch.bool)
    keys = torch.zeros(1, dtype=torch.int64)
    options = FitSettings(components=3, kappa=300.0, iterations=6)
    seeds = seeds_of(type("Side", (), {"points": points, "mask": mask, "keys": keys}), 6)
    means, weights = reference.fit(points[0].numpy(), seeds[0].tolist(), 300.0, 6)
    mixture = fit(points, mask, keys, options, space=space)
    assert mixture.means[0].numpy() == pytest.approx(means, abs=1e-7)
    assert mixture.log_weights[0].exp().numpy() == pytest.approx(weights, abs=1e-9)


def test_gradients_flow_through_unrolled_em():
    side = ragged([5, 3], 4)
    options = FitSettings(components=2, kappa=4.0, iterations=3, init="sample")

    def density(points):
        return log_density(fit(points, side.mask, side.keys, options), points)[side.mask]

    clean = torch.where(side.mask.unsqueeze(-1), side.points, 0.0).requires_grad_()
    assert torch.autograd.gradcheck(density, (clean,), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision_inputs_are_close_to_float64(dtype):
    side = ragged([30, 12], 64, seed=4)
    narrow = side.points.to(dtype)
    options = FitSettings(components=3, init="sample")
    result = log_density(fit(narrow, side.mask, side.keys, options), narrow.float())
    exact = log_density(fit(narrow.double(), side.mask, side.keys, options), narrow.double())
    assert result.dtype == torch.float32
    assert (result - exact)[side.mask].abs().max() < 1e-4


def test_take_selects_mixtures():
    mixture = Mixture(torch.arange(12.0).reshape(3, 2, 2), torch.zeros(3, 2), 20.0)
    assert len(mixture.take(torch.tensor([2, 0]))) == 2
    assert mixture.take(torch.tensor([2])).means[0, 0].tolist() == [8.0, 9.0]
