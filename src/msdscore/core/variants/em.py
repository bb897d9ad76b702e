"""EM for mixtures of any of the families; starts, reserves and dead components are those of `mixture`."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core.mixture import DEAD_MASS, FitSettings, Mixture
from msdscore.core.spaces import DirectSpace
from msdscore.core.sphere import counts, real_points
from msdscore.core.starts import start_points
from msdscore.core.variants.families import FAMILIES, Natural


def fit(
    points: Float[Tensor, "batch points features"],
    mask: Bool[Tensor, "batch points"],
    keys: Int[Tensor, " batch"],
    settings: FitSettings,
) -> Mixture:
    """One mixture per item, of the family that the settings name, from the features of its points."""
    family, kappa = FAMILIES[settings.mixture], settings.kappa
    lifted = real_points(points, mask)
    solid, real = lifted[..., : lifted.shape[2] // family.features], mask.unsqueeze(1).to(lifted.dtype)
    first, reserve = _starts(solid, mask, keys, settings)
    natural, spare = family.at(first, kappa), family.at(reserve, kappa)
    log_weights = torch.full_like(natural[1], -math.log(settings.components))
    size = counts(mask).clamp_min(1).unsqueeze(1).to(solid.dtype)
    for _ in range(settings.iterations):
        vectors, offsets = natural
        shares = (vectors @ lifted.mT + (offsets + log_weights).unsqueeze(-1)).softmax(dim=1) * real
        mass = shares.sum(dim=-1)
        dead = mass < DEAD_MASS
        means = shares @ lifted / mass.clamp_min(DEAD_MASS).unsqueeze(-1)
        natural = _revive(dead, spare, family.natural(means, kappa))
        weights = torch.where(dead, 1.0, mass) / size
        log_weights = (weights / weights.sum(dim=1, keepdim=True)).log()
    return Mixture(natural[0], natural[1] + log_weights, 1.0)


def _starts(
    solid: Float[Tensor, "batch points dim"],
    mask: Bool[Tensor, "batch points"],
    keys: Int[Tensor, " batch"],
    settings: FitSettings,
) -> tuple[Float[Tensor, "batch components dim"], Float[Tensor, "batch components dim"]]:
    """The points that components begin from, and their reserve."""
    space, count = DirectSpace(solid), 2 * settings.components
    seeds = start_points(space.similarities, mask, keys, init=settings.init, seed=settings.seed, count=count)
    chosen = solid.gather(1, seeds.unsqueeze(-1).expand(-1, -1, solid.shape[2]))
    first, reserve = chosen.chunk(2, dim=1)
    return first, reserve


def _revive(dead: Bool[Tensor, "batch components"], spare: Natural, living: Natural) -> Natural:
    return torch.where(dead.unsqueeze(-1), spare[0], living[0]), torch.where(dead, spare[1], living[1])
