"""Other mixtures against mpmath (normaliser), scikit-learn and a plain loop (fits)."""

import math
from pathlib import Path
from tempfile import mkdtemp

import mpmath
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import ive
from sklearn.mixture import GaussianMixture

from msdscore.core.divergence import compare_mixtures
from msdscore.core.mixture import FitSettings, log_density
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, UnknownNameError
from msdscore.forms.paper import Paper
from msdscore.scorer import Scorer
from msdscore_lab.studies.ablations.mixtures import (
    FAMILIES,
    LEAST_KAPPA,
    LEAST_VARIANCE,
    MOST_KAPPA,
    SHRINKAGE,
    PaperMixture,
    concentration,
    fit_lifted,
    lifted,
    log_bessel,
    log_normaliser,
    log_uniform,
    with_mixture,
)
from point_sets import point_set, ragged, take
from test_core_mixture import seeds_of
from tiny_clip import make_tiny_clip

KINDS = tuple(FAMILIES)


def tiny_clip():
    return load_encoder(str(make_tiny_clip(Path(mkdtemp()) / "clip")))


def make_image():
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dim", [3, 4, 16, 63, 122, 256, 768, 4096])
def test_normaliser_equals_mpmath(dim):
    kappas = [1e-3, 0.1, 1.0, 20.0, 300.0, 5e3, 1e5]
    with mpmath.workdps(40):
        order = mpmath.mpf(dim) / 2 - 1
        exact = [
            order * mpmath.log(k) - (order + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(mpmath.besseli(order, k))
            for k in kappas
        ]
    assert log_normaliser(double(*kappas), dim).tolist() == pytest.approx(
        [float(e) for e in exact], rel=1e-12, abs=1e-9
    )


def test_bessel_function_of_order_one_half_equals_hyperbolic_sine():
    kappa = double(0.01, 1.0, 30.0)
    expected = (2 / (math.pi * kappa)).sqrt().log() + kappa.sinh().log()
    assert torch.allclose(log_bessel(0.5, kappa), expected, atol=1e-10)


@pytest.mark.parametrize("dim", [3, 768, 4096])
def test_density_with_zero_concentration_is_uniform(dim):
    assert log_normaliser(double(LEAST_KAPPA), dim).item() == pytest.approx(log_uniform(dim), abs=1e-6)


def test_concentration_is_clamped_to_the_tested_range():
    assert concentration(double(0.0, 1.0, 2.0), 768).tolist() == [LEAST_KAPPA, MOST_KAPPA, MOST_KAPPA]
    assert concentration(double(0.5), 10).item() == pytest.approx((0.5 * 10 - 0.125) / 0.75)


def fitted(side, kind, **options):
    settings = FitSettings(components=3, **options)
    return fit_lifted(lifted(side, kind), settings, kind), settings


def diverge(images, texts, image_of, text_of, kind, components=(3, 2)):
    sides = lifted(images, kind), lifted(texts, kind)
    fits = [FitSettings(components=count) for count in components]
    mixtures = tuple(fit_lifted(side, fit, kind) for side, fit in zip(sides, fits, strict=True))
    return compare_mixtures(*sides, mixtures, image_of, text_of)


def log_densities(mixture, side, kind):
    return log_density(mixture, lifted(side, kind).points)


@pytest.mark.parametrize("iterations", [1, 4, 20])
def test_diagonal_gaussian_mixture_equals_scikit_learn(iterations):
    side = ragged([60, 40], 5, seed=3)
    mixture, settings = fitted(side, "gaussian-diagonal", iterations=iterations)
    seeds = seeds_of(side, 6, "spread")
    ours = log_densities(mixture, side, "gaussian-diagonal")
    for item in range(2):
        points = side.points[item][side.mask[item]].numpy()
        theirs = GaussianMixture(
            3,
            covariance_type="diag",
            tol=0.0,
            max_iter=iterations,
            reg_covar=LEAST_VARIANCE,
            weights_init=np.full(3, 1 / 3),
            means_init=points[seeds[item, :3]],
            precisions_init=np.full((3, 5), settings.kappa),
        )
        with pytest.warns(UserWarning, match="did not converge"):
            theirs.fit(points)
        # Ours omits the constant of all Gaussians of this dimension.
        expected = theirs.score_samples(points) + 2.5 * math.log(2 * math.pi)
        assert ours[item][side.mask[item]].numpy() == pytest.approx(expected, abs=1e-8)


def plain_em(points, seeds, kind, *, kappa=20.0, iterations=20):
    """Run EM on one item in numpy, from the definitions."""
    size, dim = points.shape
    means, weights = points[seeds[:3]].copy(), np.full(3, 1 / 3)
    spread = np.full((3, dim), 1 / kappa)
    sharpness = np.full(3, kappa)

    def densities():
        if kind == "vmf-adaptive":
            bessel = np.log(ive(dim / 2 - 1, sharpness)) + sharpness
            constant = (dim / 2 - 1) * np.log(sharpness) - dim / 2 * np.log(2 * np.pi) - bessel
            return constant + sharpness * (points @ means.T)
        gaps = ((points[:, None] - means) ** 2 / spread).sum(axis=2)
        return -0.5 * (gaps + np.log(2 * np.pi * spread).sum(axis=1))

    for _ in range(iterations):
        joint = np.exp(densities()) * weights
        shares = joint / joint.sum(axis=1, keepdims=True)
        mass = shares.sum(axis=0)
        weights, centre = mass / size, shares.T @ points / mass[:, None]
        if kind == "vmf-adaptive":
            length = np.linalg.norm(centre, axis=1)
            means, sharpness = centre / length[:, None], (length * dim - length**3) / (1 - length**2)
        else:
            means = centre
        if kind == "gaussian-shrunk":
            variance = (shares[:, :, None] * (points[:, None] - means) ** 2).sum(axis=0) / mass[
                :, None
            ] + LEAST_VARIANCE
            spread = (1 - SHRINKAGE) * variance + SHRINKAGE * variance.mean(axis=1, keepdims=True)
    return np.log((np.exp(densities()) * weights).sum(axis=1))


CONSTANTS = {
    "vmf-adaptive": log_uniform(6),
    "gaussian": -3 * math.log(2 * math.pi / 20.0) - 10.0,  # of variance 1/20, and of the points' length
    "gaussian-shrunk": -3 * math.log(2 * math.pi),
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_fits_equal_a_plain_loop(kind):
    side = ragged([40, 25], 6, seed=5)
    ours = log_densities(fitted(side, kind)[0], side, kind)
    seeds = seeds_of(side, 6, "spread")
    for item in range(2):
        points = side.points[item][side.mask[item]].numpy()
        expected = plain_em(points, seeds[item].tolist(), kind)
        assert ours[item][side.mask[item]].numpy() + CONSTANTS[kind] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_variants_have_the_invariances_of_the_core(kind):
    """Finite for a single token, bitwise independent of batch and padding, zero divergence from itself."""
    images, texts = ragged([20, 9], 16, dtype=torch.float32), ragged([1, 7, 3], 16, seed=1, dtype=torch.float32)
    image_of, text_of = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 2, 1])
    together = diverge(images, texts, image_of, text_of, kind)
    assert torch.isfinite(together.coverage).all()
    assert torch.isfinite(together.support).all()
    dirty = point_set(texts.points.masked_fill(~texts.mask.unsqueeze(-1), 50.0), texts.mask, texts.keys)
    again = diverge(images, dirty, image_of, text_of, kind)
    for pair, (image, text) in enumerate(zip(image_of.tolist(), text_of.tolist(), strict=True)):
        zero = torch.zeros(1, dtype=torch.int64)
        alone = diverge(take(images, [image]), take(texts, [text]), zero, zero, kind)
        assert torch.equal(alone.coverage[0], together.coverage[pair])
        assert torch.equal(alone.support[0], together.support[pair])
        assert torch.equal(again.support[pair], together.support[pair])
    itself = diverge(images, images, torch.arange(2), torch.arange(2), kind, (3, 3))
    assert itself.coverage.abs().max() < 1e-9


def test_concentrations_adapt_to_the_points():
    """Clustered points have a high concentration, uniform points a low one."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.nn.functional.normalize(torch.randn(1, 1, 32, generator=generator, dtype=torch.float64), dim=-1)
    near = centre + 0.02 * torch.randn(1, 30, 32, generator=generator, dtype=torch.float64)
    wide = torch.randn(1, 30, 32, generator=generator, dtype=torch.float64)
    points = torch.nn.functional.normalize(torch.cat([near, wide]), dim=-1)
    settings = FitSettings(components=1)
    side = point_set(points, torch.ones(2, 30, dtype=torch.bool), torch.zeros(2, dtype=torch.int64))
    sharpness = fit_lifted(side, settings, "vmf-adaptive").means.norm(dim=-1).squeeze(1)
    assert sharpness[0] > 1000
    assert sharpness[1] < 10


@pytest.mark.parametrize("kind", KINDS)
def test_other_mixtures_score_and_rank(kind):
    encoder, image, captions = tiny_clip(), make_image(), ["a red square", "a blue dog on a table"]
    scorer = Scorer(encoder, with_mixture(Paper(), kind))
    assert f"|mix:{kind}|" in scorer.signature
    plain, scores = Scorer(encoder, Paper()).rank(image, captions), scorer.rank(image, captions)
    assert scores.similarity.tolist() == plain.similarity.tolist()
    assert np.isfinite(scores.msd).all()
    assert (scores.msd != plain.msd).all()


def test_fixed_concentration_is_the_form_of_the_paper():
    scorers = [Scorer("toy", form) for form in (Paper(alpha=0.2), with_mixture(Paper(alpha=0.2), "vmf"))]
    first, second = (scorer.score(make_image(), "a red square") for scorer in scorers)
    assert first == second


def test_other_mixtures_reject_calibration():
    with pytest.raises(ConfigError, match="mixture=gaussian"):
        PaperMixture(mixture="gaussian", calibration="background")
    with pytest.raises(UnknownNameError, match="Did you mean 'gaussian'"):
        PaperMixture(mixture="gausian")
