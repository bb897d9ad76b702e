r"""The paper's score: divergences for omissions and inventions of a caption, and their combination into one number.

.. math::
    \text{coverage} = \sum_i c_i,\quad c_i = \tfrac{1}{N}(\log P_{img}(x_i) - \log P_{txt}(x_i)),\qquad
    \text{support} = \sum_j s_j,\quad s_j = \tfrac{1}{M}(\log P_{txt}(y_j) - \log P_{img}(y_j))

    \text{MSD} = g - \alpha\,(\beta\,\text{coverage} + (1-\beta)\,\text{support}),\qquad
    \text{Soft-MSD} = (1-u)\,g + u\,\text{MSD}

The two directed divergences are stored as one term per point; `schedule` computes them for many pairs. Length gate,
uncertainty and Soft-MSD work on columns, one number per caption.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from msdscore.core.embeddings import Mask, PerPoint
from msdscore.core.mixture import Mixture

PerCaption = Float[Tensor, " captions"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Terms per patch and per token of every pair; their sum is the score, the terms are the explanation.

    The mixtures, one per image and one per text, are stored so that an explanation can attribute densities.
    """

    coverage_terms: Float[Tensor, "pairs patches"]
    support_terms: Float[Tensor, "pairs tokens"]
    image_mixtures: Mixture
    text_mixtures: Mixture

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The terms of both sides."""
        return self.coverage_terms, self.support_terms

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Divergence":
        """Replace the terms, for example by copies on another device."""
        return replace(self, coverage_terms=tensors[0], support_terms=tensors[1])

    @property
    def coverage(self) -> Float[Tensor, " pairs"]:
        """KL(image‖text): omissions of the caption."""
        return total(self.coverage_terms)

    @property
    def support(self) -> Float[Tensor, " pairs"]:
        """KL(text‖image): inventions of the caption."""
        return total(self.support_terms)


def share(difference: PerPoint, mask: Mask) -> PerPoint:
    """Differences of log densities as terms of a mean over the real points; padding is zero."""
    size = mask.sum(dim=1, keepdim=True).clamp_min(1)
    return (difference / size).masked_fill(~mask, 0.0)


def total(terms: PerPoint) -> Float[Tensor, " batch"]:
    """The sum of each row, computed by adding halves of the row.

    A library's sum may use another order for another batch or device. Here the order is fixed: the width is a power
    of two, and a wider row only adds zeros, so equal terms have the same sum, bit for bit, in any batch and on any
    device.

    >>> total(torch.tensor([[1.0, 2.0, 4.0]]))
    tensor([7.])
    """
    width = 1 << max(terms.shape[1] - 1, 0).bit_length()
    rest = pad(terms, (0, width - terms.shape[1]))
    while rest.shape[1] > 1:
        half = rest.shape[1] // 2
        rest = rest[:, :half] + rest[:, half:]
    return rest.squeeze(1)


def length_gate(lengths: Int[Tensor, " captions"] | PerCaption, *, center: float, width: float) -> PerCaption:
    r"""Weight of coverage against support, :math:`\beta(L) = \sigma((L_0 - L)/\tau_L)`.

    >>> length_gate(torch.tensor([20.0]), center=20.0, width=3.0)
    tensor([0.5000])
    """
    wide = lengths if lengths.is_floating_point() else lengths.to(torch.float32)
    return torch.sigmoid((center - wide) / width)


def soften(
    similarity: PerCaption, msd: PerCaption, group: Int[Tensor, " captions"], *, temperature: float
) -> tuple[PerCaption, PerCaption]:
    r"""Uncertainty :math:`u` of every caption's candidate set, and Soft-MSD :math:`(1-u)\,g + u\,\text{MSD}`.

    >>> soften(torch.tensor([0.3]), torch.tensor([0.1]), torch.tensor([0]), temperature=0.2)
    (tensor([1.]), tensor([0.1000]))
    """
    uncertainty = set_uncertainty(similarity, group, temperature=temperature)
    return uncertainty, (1 - uncertainty) * similarity + uncertainty * msd


def set_uncertainty(similarity: PerCaption, group: Int[Tensor, " captions"], *, temperature: float) -> PerCaption:
    r"""Uncertainty of a candidate set: how little its similarities separate the captions, one number per set.

    .. math:: u = \frac{M}{M-1}\,(1 - \max_j \operatorname{softmax}(g/\xi)_j),\quad u = 1 \text{ for } M = 1

    clamped to [0, 1]. Sums run over each set in ascending order of similarity, so the order of rows changes nothing.

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
