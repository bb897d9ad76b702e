"""Captions by people over those of a machine, by what the picture tells."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from msdscore.align.losses.terms import Gaps, Scalar

_BIAS = 0.1  # weight of what people's captions gain whatever the picture


def over_machine_loss(
    pictures: Float[Tensor, "batch dim"],
    people: Float[Tensor, "batch captions dim"],
    machine: Float[Tensor, "texts dim"],
    owner: Int[Tensor, " texts"],
    scale: Scalar,
) -> Scalar:
    """A machine's caption finds its picture, and every caption by people fits that picture better.

    The margin counts less its mean over the pictures of the batch: style alone wins nothing, and machines' captions
    cannot be told from others without losing the picture that they belong to.

    >>> import torch
    >>> ones = torch.eye(2)
    >>> over_machine_loss(ones, ones.unsqueeze(1), ones, torch.tensor([0, 1]), torch.tensor(1.0))
    tensor(0.5032)
    """
    if not len(owner):
        return 0.0 * people.sum()
    lost = cross_entropy(machine @ pictures.mT * scale, owner) / 2
    for number in range(people.shape[1]):
        gaps = Gaps(pictures @ (people[owner, number] - machine).mT, owner)
        lost = lost + (gaps.grounded(scale) / 2 + _BIAS * gaps.bias(scale)) / len(owner)
    return lost
