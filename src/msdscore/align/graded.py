"""Terms of the loss that look at whole tables: graded relevance, and negatives that only the picture can tell."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

Table = Float[Tensor, "images captions"]
Scalar = Float[Tensor, ""]

PERCENT = 100.0  # squared errors of cosines are small; in this unit they weigh as much as the other terms


def centred(table: Table) -> Table:
    """What a caption gains by each picture over its mean over all pictures: nothing that the text alone says stays.

    >>> import torch
    >>> centred(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    return table - table.mean(dim=0)


def relevance(
    references: Float[Tensor, "images dim"], sentences: Float[Tensor, "captions dim"]
) -> Float[Tensor, "images captions"]:
    """Mean cosine of every caption with the captions of every picture, by frozen sentence vectors.

    `references` are the means of the unit sentence vectors of all captions of a picture.
    """
    return references @ sentences.mT


def graded_loss(similarity: Table, wanted: Table, gain: Scalar, offset: Scalar | float = 0.0) -> Scalar:
    r"""Squared distance of similarities to graded relevance, :math:`100\,\overline{(a s + b - r)^2}`."""
    return PERCENT * (gain * similarity + offset - wanted).square().mean()


@dataclass(frozen=True, slots=True)
class Gaps:
    """How much better captions do than their own hard negatives, under every picture of a batch."""

    table: Float[Tensor, "images negatives"]
    owner: Int[Tensor, " negatives"]  # the picture that each negative was made for

    def grounded(self, scale: Scalar) -> Scalar:
        r"""Sum of :math:`\mathrm{softplus}(-t(m_{own} - \overline m))`: only what the picture tells is rewarded."""
        margins = centred(self.table).gather(0, self.owner.unsqueeze(0)).squeeze(0)
        return softplus(-scale * margins).sum()

    def bias(self, scale: Scalar) -> Scalar:
        r"""Sum of :math:`(t\,\overline m)^2`: what a text gains whatever the picture; the scale cannot shrink it."""
        return (scale.detach() * self.table.mean(dim=0)).square().sum()
