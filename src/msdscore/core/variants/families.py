r"""Other distributions in the place of the von Mises–Fisher one with a fixed concentration, for comparisons.

Each is an exponential family, :math:`\log p(x) = v^\top \varphi(x) + b` up to a constant that cancels in every
divergence: EM needs the means of :math:`\varphi` under the shares, and densities are those of a `Mixture` whose
"means" are the vectors v, whose weights carry b, and whose kappa is 1. They are made in float64: a component that
holds one point is so sharp that float32 would lose its density.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.core.mixture import Kind
from msdscore.core.sphere import TINY
from msdscore.core.variants.normaliser import concentration, log_normaliser, log_uniform

Statistics = Float[Tensor, "batch components features"]
PerAxis = Float[Tensor, "batch components dim"]
# Vectors and offsets of components.
Natural = tuple[Statistics, Float[Tensor, "batch components"]]

# Added to every variance, as scikit-learn does.
LEAST_VARIANCE = 1e-6
# How far variances are drawn to their mean over the coordinates (the authors' scripts).
SHRINKAGE = 0.5


@dataclass(frozen=True, slots=True)
class Family:
    r"""A distribution: its features :math:`\varphi`, and its parameters from the means of them.

    `at` gives the component that begins at a point, with the concentration or the inverse variance of the settings.
    """

    features: int  # per coordinate; the first ones are the point itself
    lift: Callable[[Float[Tensor, "*batch dim"]], Float[Tensor, "*batch features"]]
    natural: Callable[[Statistics, float], Natural]
    at: Callable[[PerAxis, float], Natural]


def _same(points: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
    return points


def _with_squares(points: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch features"]:
    return torch.cat([points, points * points], dim=-1)


def _adaptive(means: Statistics, kappa: float) -> Natural:
    """A von Mises–Fisher component whose concentration follows from its mean resultant length."""
    length = means.norm(dim=-1)
    sharpness = concentration(length, means.shape[-1])
    return _directed(means / length.clamp_min(TINY).unsqueeze(-1), sharpness)


def _directed(directions: Statistics, sharpness: Float[Tensor, "batch components"]) -> Natural:
    dim = directions.shape[-1]
    return sharpness.unsqueeze(-1) * directions, log_normaliser(sharpness, dim) - log_uniform(dim)


def _adaptive_at(points: PerAxis, kappa: float) -> Natural:
    return _directed(points, torch.full_like(points[..., 0], kappa))


def _spherical(means: Statistics, kappa: float) -> Natural:
    """A Gaussian of variance 1/kappa in every direction; the points' own length is one and cancels."""
    return kappa * means, -0.5 * kappa * (means * means).sum(dim=-1)


def _diagonal(means: Statistics, kappa: float) -> Natural:
    """A Gaussian with a variance per coordinate."""
    mean, variance = _moments(means)
    return _axes(mean, variance)


def _shrunk(means: Statistics, kappa: float) -> Natural:
    """The same, with variances drawn half way to their mean over the coordinates."""
    mean, variance = _moments(means)
    return _axes(mean, (1 - SHRINKAGE) * variance + SHRINKAGE * variance.mean(dim=-1, keepdim=True))


def _moments(means: Statistics) -> tuple[PerAxis, PerAxis]:
    mean, square = means.chunk(2, dim=-1)
    return mean, (square - mean * mean).clamp_min(0) + LEAST_VARIANCE


def _axes(mean: PerAxis, variance: PerAxis) -> Natural:
    offset = -0.5 * (variance.log() + mean * mean / variance).sum(dim=-1)
    return torch.cat([mean / variance, -0.5 / variance], dim=-1), offset


def _axes_at(points: PerAxis, kappa: float) -> Natural:
    return _axes(points, torch.full_like(points, 1 / kappa))


FAMILIES: Mapping[Kind, Family] = {
    "vmf-adaptive": Family(1, _same, _adaptive, _adaptive_at),
    "gaussian": Family(1, _same, _spherical, _spherical),
    "gaussian-diagonal": Family(2, _with_squares, _diagonal, _axes_at),
    "gaussian-shrunk": Family(2, _with_squares, _shrunk, _axes_at),
}
