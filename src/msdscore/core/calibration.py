r"""Calibration: the expected log density of each point over a bank of background items.

Part of a divergence depends on the caption alone, through its length and its words. Subtracting from every term its
mean over a fixed bank of background images removes that part:

.. math:: s_j - \overline{s_j} = \tfrac{1}{M}\Bigl(\tfrac{1}{B}\sum_b \log P_b(y_j) - \log P_{img}(y_j)\Bigr)

The text's own density cancels, the terms still add up to the score, and a wrong image scores zero on average.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.core.evidence import Match, Vocabulary, WordCalibration
from msdscore.core.mixture import Mixture

# Background items in one product: the number is fixed, so that the size of a block does not change the rounding.
ITEMS = 128


@dataclass(frozen=True, slots=True)
class Bank:
    """Background images, which calibrate tokens, and background captions, which calibrate patches.

    For the evidence form `words` say how evidence is read, `match` turns a score into a probability, and `vocabulary`
    names what a caption does not say.
    """

    images: Mixture
    texts: Mixture | None = None
    words: WordCalibration | None = None
    match: Match | None = None
    vocabulary: Vocabulary | None = None


def expected_log_density(
    background: Mixture, points: Float[Tensor, "batch points dim"]
) -> Float[Tensor, "batch points"]:
    """Mean over all background items of log P of each point, in the points' dtype.

    A background in half precision is converted a few items at a time.
    """
    parts = [log_densities(part, points).sum(dim=1) for part in _parts(background)]
    return sum(parts[1:], start=parts[0]) / len(background)


def log_density_spread(background: Mixture, points: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch points"]:
    """Standard deviation of log P of each point over all background items, in the points' dtype."""
    return torch.cat([log_densities(part, points) for part in _parts(background)], dim=1).std(dim=1, correction=0)


def room_per_point(background: Mixture) -> int:
    """How many numbers per point `expected_log_density` holds at once: logits, and their exponentials."""
    return 3 * min(len(background), ITEMS) * background.means.shape[1]


def _parts(background: Mixture) -> list[Mixture]:
    return [background.take(slice(start, start + ITEMS)) for start in range(0, len(background), ITEMS)]


def log_densities(
    background: Mixture, points: Float[Tensor, "batch points dim"]
) -> Float[Tensor, "batch items points"]:
    """log P of each point under every background item."""
    items, components, dim = background.means.shape
    # One product per item of the batch, so that the batch's size cannot change the rounding.
    means = background.means.to(points.dtype).reshape(1, items * components, dim).expand(len(points), -1, -1)
    log_weights = background.log_weights.to(points.dtype).reshape(1, items * components, 1)
    logits = background.kappa * (means @ points.mT) + log_weights
    return logits.unflatten(1, (items, components)).logsumexp(dim=2)
