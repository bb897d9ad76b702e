r"""The normaliser of a von Mises–Fisher density, in the log domain and in float64.

.. math:: \log C_D(\kappa) = \nu\log\kappa - (\nu+1)\log 2\pi - \log I_\nu(\kappa), \qquad \nu = D/2 - 1

The Bessel function leaves the range of float64 at a few hundred dimensions, so its logarithm is made directly.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

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
# Concentrations are kept in the range in which the normaliser was checked.
LEAST_KAPPA, MOST_KAPPA = 1e-3, 1e5


def log_bessel(order: float, kappa: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    r""":math:`\log I_\nu(\kappa)` of the modified Bessel function of the first kind.

    >>> log_bessel(0.5, torch.tensor([2.0], dtype=torch.float64))
    tensor([0.7160], dtype=torch.float64)
    """
    steps = max(0, math.ceil(LARGE_ORDER - order))
    top = order + steps
    result = _debye(top, kappa)
    ratio = (result - _debye(top + 1, kappa)).exp()
    # I_{n-1} / I_n = 2n/κ + I_{n+1} / I_n: all terms are positive, so rounding does not grow on the way down.
    for step in range(steps):
        ratio = 2 * (top - step) / kappa + 1 / ratio
        result = result + ratio.log()
    return result


def _debye(order: float, kappa: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """The uniform expansion for large orders (Abramowitz and Stegun 9.7.7)."""
    z = kappa / order
    root = (1 + z * z).sqrt()
    t = 1 / root
    series = torch.ones_like(t)
    for power, (divisor, polynomial) in enumerate(_DEBYE, start=1):
        value = torch.zeros_like(t)
        for coefficient in reversed(polynomial):
            value = value * t * t + coefficient
        series = series + value * (t / order) ** power / divisor
    return order * (root + (z / (1 + root)).log()) - 0.5 * (2 * math.pi * order * root).log() + series.log()


def log_normaliser(kappa: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r""":math:`\log C_D(\kappa)`: what the logarithm of the density has beside :math:`\kappa\,\mu^\top x`."""
    order = dim / 2 - 1
    return order * kappa.log() - (order + 1) * math.log(2 * math.pi) - log_bessel(order, kappa)


def log_uniform(dim: int) -> float:
    """The logarithm of the uniform density on the sphere, the limit of `log_normaliser` at concentration zero.

    >>> round(log_uniform(3), 4) == round(-math.log(4 * math.pi), 4)
    True
    """
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


def concentration(length: Float[Tensor, "*batch"], dim: int) -> Float[Tensor, "*batch"]:
    r"""The concentration that belongs to a mean resultant length: :math:`(\bar r D - \bar r^3)/(1 - \bar r^2)`.

    Banerjee's approximation, as in the paper, within the range of concentrations that is supported.
    """
    short = length.clamp(max=1 - 1e-12)
    return ((short * dim - short**3) / (1 - short**2)).clamp(LEAST_KAPPA, MOST_KAPPA)
