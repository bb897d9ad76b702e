r"""Mixtures of von Mises–Fisher distributions with one fixed concentration, fitted by EM.

.. math:: \log P(x) = \operatorname{logsumexp}_k (\log\pi_k + \kappa\,\mu_k^\top x)

The normaliser is the same for every component and cancels in every divergence, so it is left out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core.spaces import Space, choose_space
from msdscore.core.sphere import counts, real_points
from msdscore.core.starts import Init, start_points

# What a component is; all but the first live in `variants`.
Kind = Literal["vmf", "vmf-adaptive", "gaussian", "gaussian-diagonal", "gaussian-shrunk"]

# A component that holds less than this many points is dead (paper, EM details).
DEAD_MASS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How one side's mixture is fitted; defaults are the paper's."""

    components: int
    kappa: float = 20.0
    iterations: int = 20
    init: Init = "spread"
    seed: int = 0
    mixture: Kind = "vmf"


@dataclass(frozen=True, slots=True)
class Mixture:
    """A batch of fitted mixtures; means lie on the sphere, weights are logarithms."""

    means: Float[Tensor, "batch components dim"]
    log_weights: Float[Tensor, "batch components"]
    kappa: float

    def __len__(self) -> int:
        return self.means.shape[0]

    def take(self, index: Int[Tensor, " items"] | slice) -> "Mixture":
        """The mixtures of some items of the batch."""
        return Mixture(self.means[index], self.log_weights[index], self.kappa)


def fit(
    points: Float[Tensor, "batch points dim"],
    mask: Bool[Tensor, "batch points"],
    keys: Int[Tensor, " batch"],
    settings: FitSettings,
    *,
    space: Callable[[Float[Tensor, "batch points dim"]], Space] | None = None,
) -> Mixture:
    """Fit one mixture to the real points of every item.

    `keys` are integers made from each item's own content; `init="sample"` draws by them. `space` forces one of the
    two forms of the same arithmetic (see `spaces`); by default the cheaper one is taken.
    """
    solid = real_points(points, mask)
    form = (space or choose_space(solid, settings.components, settings.iterations))(solid)
    seeds = start_points(
        form.similarities, mask, keys, init=settings.init, seed=settings.seed, count=2 * settings.components
    )
    return _maximise(form, mask, seeds, settings)


def _maximise(
    form: Space, mask: Bool[Tensor, "batch points"], seeds: Int[Tensor, "batch seeds"], settings: FitSettings
) -> Mixture:
    """Algorithm 1 of the paper; rows are components, columns are points."""
    first, reserve = seeds.chunk(2, dim=1)
    pull, spare = form.similarities(first), form.similarities(reserve)
    real = mask.unsqueeze(1).to(pull.dtype)
    size = counts(mask).clamp_min(1).unsqueeze(1).to(pull.dtype)
    log_weights = torch.full_like(pull[:, :, 0], -math.log(settings.components))
    shares, length = _one_hot(first, pull), torch.ones_like(log_weights)
    dead = torch.zeros_like(log_weights, dtype=torch.bool)
    for _ in range(settings.iterations):
        # pull / length are the cosines of points and means: kappa times them and the weights are the logits.
        sharpness = (settings.kappa / length).unsqueeze(-1)
        shares = torch.addcmul(log_weights.unsqueeze(-1), pull, sharpness).softmax(dim=1) * real
        mass = shares.sum(dim=-1)
        pull, length = form.resultant(shares)
        dead = mass < DEAD_MASS
        pull, length = _revive(dead, spare, pull), torch.where(dead, 1.0, length)
        weights = torch.where(dead, 1.0, mass) / size
        log_weights = (weights / weights.sum(dim=1, keepdim=True)).log()
    coefficients = _revive(dead, _one_hot(reserve, pull), shares / length.unsqueeze(-1))
    return Mixture(form.combine(coefficients), log_weights, settings.kappa)


def _revive(
    dead: Bool[Tensor, "batch components"],
    spare: Float[Tensor, "batch components points"],
    living: Float[Tensor, "batch components points"],
) -> Float[Tensor, "batch components points"]:
    """Rows of the reserve for dead components, the living rows for the rest."""
    # Dead components are rare: looking first saves a pass on a CPU, but on a GPU the host would wait for the device.
    if dead.device.type == "cpu" and not dead.any():
        return living
    return torch.where(dead.unsqueeze(-1), spare, living)


def _one_hot(
    index: Int[Tensor, "batch components"], like: Float[Tensor, "batch components points"]
) -> Float[Tensor, "batch components points"]:
    return torch.zeros_like(like).scatter_(2, index.unsqueeze(-1), 1.0)


def log_density(mixture: Mixture, points: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch points"]:
    """log P of any points under the mixture of the same item, without the shared normaliser."""
    cosines = mixture.means @ points.to(mixture.means.dtype).mT
    return (mixture.kappa * cosines + mixture.log_weights.unsqueeze(-1)).logsumexp(dim=1)
