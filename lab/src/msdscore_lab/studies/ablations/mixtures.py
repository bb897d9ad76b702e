r"""Alternatives to the von Mises–Fisher distribution with a fixed concentration: the paper's ablation of mixtures.

Each is an exponential family, :math:`\log p(x) = v^\top \varphi(x) + b` up to a constant that cancels in every
divergence: EM needs the means of :math:`\varphi` under the shares, and densities are those of a `Mixture` whose
"means" are the vectors v, whose weights include b, and whose kappa is 1. They are computed in float64: a component
with one point is so sharp that float32 would lose its density. Starts, reserves and dead components are those of
`msdscore.core.mixture`.

The normaliser of a von Mises–Fisher density is computed in the log domain,

.. math:: \log C_D(\kappa) = \nu\log\kappa - (\nu+1)\log 2\pi - \log I_\nu(\kappa), \qquad \nu = D/2 - 1

since the Bessel function exceeds the range of float64 at a few hundred dimensions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, get_args

from msdscore.core.arrays import Array, Float, astype, at_least, device_of, gather, namespace, softmax
from msdscore.core.divergence import Divergence, compare_mixtures, fit_all, item_bytes
from msdscore.core.embeddings import (
    TINY,
    Block,
    Embeddings,
    Mask,
    Points,
    Rows,
    length,
    map_blocks,
    real_points,
    widths,
)
from msdscore.core.evidence import Bank
from msdscore.core.mixture import DEAD_MASS, DirectSpace, FitSettings, Keys, Mixture, PerComponent, start_points
from msdscore.errors import ConfigError, unknown_name
from msdscore.forms.base import Form, Sides
from msdscore.forms.paper import Paper

Kind = Literal["vmf", "vmf-adaptive", "gaussian", "gaussian-diagonal", "gaussian-shrunk"]
Statistics = Float[Array, "batch components features"]
PerAxis = Float[Array, "batch components dim"]
# Vectors and offsets of components.
Natural = tuple[Statistics, PerComponent]

# Added to every variance, as in scikit-learn.
LEAST_VARIANCE = 1e-6
# How far variances are shrunk towards their mean over the coordinates (the authors' scripts).
SHRINKAGE = 0.5


@dataclass(frozen=True, slots=True)
class Family:
    r"""A distribution: its features :math:`\varphi`, and its parameters from their means.

    `at` returns the component that starts at a point, with the concentration or the inverse variance of the settings.
    """

    features: int  # per coordinate; the first ones are the point itself
    lift: Callable[[Float[Array, "*batch dim"]], Float[Array, "*batch features"]]
    natural: Callable[[Statistics, float], Natural]
    at: Callable[[PerAxis, float], Natural]


def _with_squares(points: Float[Array, "*batch dim"]) -> Float[Array, "*batch features"]:
    return namespace(points).concat([points, points * points], axis=-1)


def _adaptive(means: Statistics, kappa: float) -> Natural:
    """A von Mises–Fisher component whose concentration follows from its mean resultant length."""
    resultant = length(means)
    sharpness = concentration(resultant, means.shape[-1])
    return _directed(means / at_least(resultant, TINY)[..., None], sharpness)


def _directed(directions: Statistics, sharpness: PerComponent) -> Natural:
    dim = directions.shape[-1]
    return sharpness[..., None] * directions, log_normaliser(sharpness, dim) - log_uniform(dim)


def _spherical(means: Statistics, kappa: float) -> Natural:
    """A Gaussian of variance 1/kappa in every direction; the points' length is one and cancels."""
    return kappa * means, -0.5 * kappa * namespace(means).sum(means * means, axis=-1)


def _diagonal(means: Statistics, kappa: float, shrinkage: float = 0.0) -> Natural:
    """A Gaussian with a variance per coordinate, shrunk towards the mean of the variances."""
    dim = means.shape[-1] // 2
    mean, square = means[..., :dim], means[..., dim:]
    variance = at_least(square - mean * mean, 0) + LEAST_VARIANCE
    if shrinkage:
        variance = (1 - shrinkage) * variance + shrinkage * namespace(means).mean(variance, axis=-1, keepdims=True)
    return _axes(mean, variance)


def _axes(mean: PerAxis, variance: PerAxis) -> Natural:
    xp = namespace(mean)
    offset = -0.5 * xp.sum(xp.log(variance) + mean * mean / variance, axis=-1)
    return xp.concat([mean / variance, -0.5 / variance], axis=-1), offset


def _axes_at(points: PerAxis, kappa: float) -> Natural:
    return _axes(points, namespace(points).full_like(points, 1 / kappa))


FAMILIES: Mapping[str, Family] = {
    "vmf-adaptive": Family(
        1,
        lambda points: points,
        _adaptive,
        lambda points, kappa: _directed(points, namespace(points).full_like(points[..., 0], kappa)),
    ),
    "gaussian": Family(1, lambda points: points, _spherical, _spherical),
    "gaussian-diagonal": Family(2, _with_squares, _diagonal, _axes_at),
    "gaussian-shrunk": Family(2, _with_squares, partial(_diagonal, shrinkage=SHRINKAGE), _axes_at),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperMixture(Paper):
    """The paper's form with mixtures of another family, in float64; variances start at 1/kappa.

    >>> with_mixture(Paper(kappa=5.0), "gaussian").facts()["mix"]
    'gaussian'
    """

    mixture: Kind = "vmf"

    def __post_init__(self) -> None:
        Paper.__post_init__(self)
        if self.mixture not in get_args(Kind):
            raise unknown_name("mixture", str(self.mixture), get_args(Kind))
        if self.mixture != "vmf" and self.calibration != "none":
            raise ConfigError(f"mixture={self.mixture} has no calibrated form; set calibration=none")

    def facts(self, bank: str | None = None) -> dict[str, str]:
        """Return everything that can change a score, abbreviated for signatures."""
        facts = Paper.facts(self, bank)
        return facts if self.mixture == "vmf" else facts | {"mix": self.mixture}

    def terms(self, sides: Sides, bank: Bank | None) -> Divergence:
        """Compute both divergences of every pair, one term per patch and per token."""
        if self.mixture == "vmf":
            return Paper.terms(self, sides, bank)
        images, texts = lifted(sides.images, self.mixture), lifted(sides.texts, self.mixture)
        mixtures = fit_lifted(images, self.image_fit, self.mixture), fit_lifted(texts, self.text_fit, self.mixture)
        return compare_mixtures(images, texts, mixtures, sides.image_of, sides.text_of)


def with_mixture(form: Form, mixture: Kind, **changes: Any) -> PaperMixture:
    """Return the paper's form with mixtures of a family, and other changes of its settings."""
    settings = {field.name: getattr(form, field.name) for field in fields(form)}
    return PaperMixture(**settings | changes | {"mixture": mixture})


def lifted(side: Embeddings, kind: Kind) -> Embeddings:
    """Return embeddings whose points are the features of a family, in float64; for `vmf` unchanged."""
    if kind == "vmf":
        return side
    return replace(side, points=FAMILIES[kind].lift(astype(side.points, namespace(side.points).float64)))


def fit_lifted(side: Embeddings, settings: FitSettings, kind: Kind) -> Mixture:
    """Fit one mixture of a family per item of one side, whose points are `lifted`."""
    if kind == "vmf":
        return fit_all(side, settings)
    xp = namespace(side.points)
    keys = xp.zeros(len(side), dtype=xp.int64, device=device_of(side.mask)) if side.keys is None else side.keys

    def fit_block(block: Block) -> Rows:
        mixture = fit(block.cut(side.points), block.cut(side.mask), block.rows(keys), settings, FAMILIES[kind])
        return block.items, (mixture.means, mixture.log_weights)

    memory = item_bytes(side, settings.components)
    means, log_weights = map_blocks(fit_block, widths(side.mask), memory, like=side.points)
    return Mixture(means, log_weights, 1.0)


def fit(points: Points, mask: Mask, keys: Keys, settings: FitSettings, family: Family) -> Mixture:
    """Fit one mixture per item from the features of its points."""
    kappa = settings.kappa
    lifted = real_points(points, mask)
    xp, solid = namespace(lifted), lifted[..., : lifted.shape[2] // family.features]
    real = astype(mask[:, None, :], lifted.dtype)
    seeds = start_points(DirectSpace(solid).similarities, mask, keys, settings)
    first, reserve = (
        gather(solid, part) for part in (seeds[:, : settings.components], seeds[:, settings.components :])
    )
    natural, spare = family.at(first, kappa), family.at(reserve, kappa)
    log_weights = xp.full_like(natural[1], -math.log(settings.components))
    size = at_least(xp.sum(real, axis=-1), 1)
    for _ in range(settings.iterations):
        vectors, offsets = natural
        shares = softmax(vectors @ lifted.mT + (offsets + log_weights)[..., None], axis=1) * real
        mass = xp.sum(shares, axis=-1)
        dead = mass < DEAD_MASS
        means = shares @ lifted / at_least(mass, DEAD_MASS)[..., None]
        alive = family.natural(means, kappa)
        natural = xp.where(dead[..., None], spare[0], alive[0]), xp.where(dead, spare[1], alive[1])
        weights = xp.where(dead, 1.0, mass) / size
        log_weights = xp.log(weights / xp.sum(weights, axis=1, keepdims=True))
    return Mixture(natural[0], natural[1] + log_weights, 1.0)


# From this order on five terms of the expansion are exact to 1e-11; lower orders are reached from it by recurrence.
LARGE_ORDER = 60.0
# Polynomials of Debye's expansion (Abramowitz and Stegun 9.3.9): u_k(t) = t^k · p_k(t²) / divisor, lowest power first.
_DEBYE: tuple[tuple[int, tuple[int, ...]], ...] = (
    (24, (3, -5)),
    (1152, (81, -462, 385)),
    (414720, (30375, -369603, 765765, -425425)),
    (39813120, (4465125, -94121676, 349922430, -446185740, 185910725)),
    (6688604160, (1519035525, -49286948607, 284499769554, -614135872350, 566098157625, -188699385875)),
)
# Concentrations are clamped to the range in which the normaliser was checked.
LEAST_KAPPA, MOST_KAPPA = 1e-3, 1e5


def log_bessel(order: float, kappa: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    r""":math:`\log I_\nu(\kappa)` of the modified Bessel function of the first kind.

    >>> import numpy as np
    >>> log_bessel(0.5, np.array([2.0])).round(4).tolist()
    [0.716]
    """
    steps = max(0, math.ceil(LARGE_ORDER - order))
    top = order + steps
    result = _debye(top, kappa)
    xp = namespace(kappa)
    ratio = xp.exp(result - _debye(top + 1, kappa))
    # I_{n-1} / I_n = 2n/κ + I_{n+1} / I_n: all terms are positive, so rounding errors do not grow on the way down.
    for step in range(steps):
        ratio = 2 * (top - step) / kappa + 1 / ratio
        result = result + xp.log(ratio)
    return result


def _debye(order: float, kappa: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The uniform expansion for large orders (Abramowitz and Stegun 9.7.7)."""
    z = kappa / order
    xp = namespace(kappa)
    root = xp.sqrt(1 + z * z)
    t = 1 / root
    series = xp.ones_like(t)
    for power, (divisor, polynomial) in enumerate(_DEBYE, start=1):
        value = xp.zeros_like(t)
        for coefficient in reversed(polynomial):
            value = value * t * t + coefficient
        series = series + value * (t / order) ** power / divisor
    return order * (root + xp.log(z / (1 + root))) - 0.5 * xp.log(2 * math.pi * order * root) + xp.log(series)


def log_normaliser(kappa: Float[Array, "*batch"], dim: int) -> Float[Array, "*batch"]:
    r""":math:`\log C_D(\kappa)`: the log density minus :math:`\kappa\,\mu^\top x`."""
    order = dim / 2 - 1
    return order * namespace(kappa).log(kappa) - (order + 1) * math.log(2 * math.pi) - log_bessel(order, kappa)


def log_uniform(dim: int) -> float:
    """The logarithm of the uniform density on the sphere, the limit of `log_normaliser` at concentration zero.

    >>> round(log_uniform(3), 4) == round(-math.log(4 * math.pi), 4)
    True
    """
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


def concentration(resultant: Float[Array, "*batch"], dim: int) -> Float[Array, "*batch"]:
    r"""The concentration for a mean resultant length: :math:`(\bar r D - \bar r^3)/(1 - \bar r^2)`.

    Banerjee's approximation, as in the paper, clamped to the supported range of concentrations.
    """
    xp = namespace(resultant)
    short = xp.clip(resultant, max=1 - 1e-12)
    return xp.clip((short * dim - short**3) / (1 - short**2), LEAST_KAPPA, MOST_KAPPA)
