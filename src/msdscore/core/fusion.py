r"""From similarity and divergence to one score: length gate, MSD, uncertainty, Soft-MSD, rank aggregation."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Column = Float[Tensor, " captions"]


def length_gate(lengths: Int[Tensor, " captions"] | Column, *, center: float, width: float) -> Column:
    r"""Weight of coverage against support, :math:`\beta(L) = \sigma((L_0 - L)/\tau_L)`.

    >>> length_gate(torch.tensor([20.0]), center=20.0, width=3.0)
    tensor([0.5000])
    """
    wide = lengths if lengths.is_floating_point() else lengths.to(torch.float32)
    return torch.sigmoid((center - wide) / width)


def constant_gate(lengths: Int[Tensor, " captions"] | Column, *, beta: float) -> Column:
    """The same weight for every caption: 1 is coverage only, 0 is support only.

    >>> constant_gate(torch.tensor([5, 50]), beta=0.25)
    tensor([0.2500, 0.2500])
    """
    dtype = lengths.dtype if lengths.is_floating_point() else torch.float32
    return torch.full(lengths.shape, beta, dtype=dtype, device=lengths.device)


def local_divergence(coverage: Column, support: Column, beta: Column) -> Column:
    r""":math:`d = \beta\,\text{coverage} + (1-\beta)\,\text{support}`.

    >>> local_divergence(torch.tensor([2.0]), torch.tensor([4.0]), torch.tensor([0.25]))
    tensor([3.5000])
    """
    return beta * coverage + (1 - beta) * support


def penalty(divergence: Column, information: Column, *, alpha: float, gamma: float) -> Column:
    r"""What the local terms take from the similarity, :math:`\alpha d - \gamma\,\text{information}`.

    >>> penalty(torch.tensor([2.0]), torch.tensor([3.0]), alpha=0.1, gamma=0.05)
    tensor([0.0500])
    """
    return alpha * divergence - gamma * information


def msd(similarity: Column, local: Column) -> Column:
    r""":math:`\text{MSD} = g - p`, with the penalty :math:`p = \alpha d` of the paper, or what `penalty` gives.

    >>> msd(torch.tensor([0.3]), torch.tensor([0.2]))
    tensor([0.1000])
    """
    return similarity - local


def soft_msd(similarity: Column, local: Column, uncertainty: Column) -> Column:
    r""":math:`\text{Soft-MSD} = g - u p`; with a set of one, u = 1 and it equals MSD."""
    return similarity - uncertainty * local


@dataclass(frozen=True, slots=True)
class Match:
    """A monotone map from the score to the probability that a caption belongs to its picture.

    Log-odds are straight between the points that it was fitted at, and go on straight beyond them. `settings` are those
    of the score that it was fitted with; it does not apply under others.
    """

    scores: tuple[float, ...]  # rising, at least two
    log_odds: tuple[float, ...]  # rising
    settings: str

    def __call__(self, scores: Column) -> Column:
        """The probability for every score.

        >>> Match((0.0, 1.0, 2.0), (-1.0, 0.0, 4.0), "")(torch.tensor([1.0, 1.5]))
        tensor([0.5000, 0.8808])
        """
        x, y = (torch.tensor(side, dtype=torch.float64, device=scores.device) for side in (self.scores, self.log_odds))
        wide = scores.double()
        after = torch.searchsorted(x, wide.contiguous()).clamp(1, len(x) - 1)
        share = (wide - x[after - 1]) / (x[after] - x[after - 1])
        return torch.sigmoid(y[after - 1] + share * (y[after] - y[after - 1])).to(scores.dtype)


def set_uncertainty(similarity: Column, group: Int[Tensor, " captions"], *, temperature: float) -> Column:
    r"""Uncertainty of a candidate set: how little its similarities tell the captions apart, one number per set.

    .. math:: u = \frac{M}{M-1}\,(1 - \max_j \operatorname{softmax}(g/\xi)_j),\quad u = 1 \text{ for } M = 1

    clamped to [0, 1]. Sums run over each set in rising order of similarity, so the order of rows changes nothing.

    >>> set_uncertainty(torch.tensor([0.2, 0.2, 0.9]), torch.tensor([0, 0, 1]), temperature=0.2)
    tensor([1., 1., 1.])
    """
    number, member = group.unique(return_inverse=True)
    scaled = similarity.double() / temperature
    top = scaled.new_full((len(number),), -torch.inf).scatter_reduce(0, member, scaled, "amax")
    rising = scaled.argsort(stable=True)
    parts = (scaled - top[member]).exp()[rising]
    total = scaled.new_zeros(len(number)).index_add(0, member[rising], parts)
    size = torch.bincount(member, minlength=len(number)).double()
    # The largest member's share of the softmax is exp(0) / total.
    spread = size / (size - 1).clamp_min(1) * (1 - 1 / total)
    alone = torch.ones_like(spread)
    return torch.where(size > 1, spread.clamp(0, 1), alone)[member].to(similarity.dtype)


def rank_agg_preference(
    similarity: Float[Tensor, "pairs 2"], divergence: Float[Tensor, "pairs 2"], *, margin: float
) -> Float[Tensor, " pairs"]:
    """The diagnostic baseline RankAgg for pairs: +1 prefers the first, −1 the second, 0 is a tie.

    Similarity decides where the gap exceeds `margin`, else the smaller divergence.

    >>> rank_agg_preference(torch.tensor([[0.30, 0.20], [0.300, 0.301]]), torch.tensor([[9.0, 1.0], [2.0, 3.0]]),
    ...                     margin=0.005)
    tensor([1., 1.])
    """
    gap = similarity[:, 0] - similarity[:, 1]
    return torch.where(gap.abs() > margin, gap.sign(), (divergence[:, 1] - divergence[:, 0]).sign())
