r"""What a text says of itself, whatever the picture: the expected log density over a bank of background items.

A divergence depends on the caption alone through its length and its words. Subtracting from every term its mean over
a fixed bank of background pictures takes that part away:

.. math:: s_j - \overline{s_j} = \tfrac{1}{M}\Bigl(\tfrac{1}{B}\sum_b \log P_b(y_j) - \log P_{img}(y_j)\Bigr)

The text's own density cancels, the terms still add up to the score, and a wrong picture scores zero on average.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from msdscore.core.mixture import Mixture


@dataclass(frozen=True, slots=True)
class Bank:
    """Mixtures of background pictures, which calibrate tokens, and of background captions, which calibrate patches."""

    images: Mixture
    texts: Mixture | None = None


def expected_log_density(
    background: Mixture, points: Float[Tensor, "batch points dim"]
) -> Float[Tensor, "batch points"]:
    """Mean over all background items of log P of each point."""
    items, components, dim = background.means.shape
    # One product an item of the batch, so that the batch's size cannot change the rounding.
    means = background.means.reshape(1, items * components, dim).expand(len(points), -1, -1)
    cosines = means @ points.to(means.dtype).mT
    logits = background.kappa * cosines + background.log_weights.reshape(1, items * components, 1)
    return logits.unflatten(1, (items, components)).logsumexp(dim=2).mean(dim=1)
