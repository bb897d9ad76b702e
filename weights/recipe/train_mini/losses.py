"""Losses of `mini` as pure functions: graded relevance, grounded negatives, log-odds of words and classes."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from msdscore.core.arrays import Bool, Float, Int
from msdscore.encoders.base import Embeddings
from msdscore_lab.align.objective import Scalar, Table

_PERCENT = 100.0  # squared errors of cosines are small; in this unit they weigh as much as the other terms
_RARE = 0.25  # weights of words are their counts to the power of minus this, to reduce the influence of frequent ones
_PRIOR = 5.0  # images added to every count
_BIAS = 0.1  # weight of the margin of people's captions that does not depend on the image


@dataclass(frozen=True, slots=True)
class Odds:
    """The line from evidence to log-odds: a slope, a common zero, and an offset per word."""

    slope: Scalar
    zero: Scalar
    word_zeros: Float[Tensor, " words"]


def centred(table: Table) -> Table:
    """Return similarities minus the mean of each caption over the images, which removes the contribution of the text.

    >>> centred(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    return table - table.mean(dim=0)


def graded_loss(similarity: Table, relevance: Table, gain: Scalar, offset: Scalar | float = 0.0) -> Scalar:
    r"""Squared distance of similarities to graded relevance, :math:`100\,\overline{(a s + b - r)^2}`."""
    return _PERCENT * (gain * similarity + offset - relevance).square().mean()


def grounded_loss(
    margins: Float[Tensor, "images negatives"], owner: Int[Tensor, " negatives"], scale: Scalar
) -> Scalar:
    r"""Sum of :math:`\mathrm{softplus}(-t(m_{own} - \overline m))`: only the contribution of the image is rewarded.

    `margins` are those of captions over their hard negatives, under every image of a batch; `owner` is the image of
    each negative.
    """
    return softplus(-scale * centred(margins).gather(0, owner.unsqueeze(0)).squeeze(0)).sum()


def bias_loss(margins: Float[Tensor, "images negatives"], scale: Scalar) -> Scalar:
    r"""Sum of :math:`(t\,\overline m)^2`: the gain of a text independent of the image; the scale has no gradient."""
    return (scale.detach() * margins.mean(dim=0)).square().sum()


def group_columns(owner: Int[Tensor, " tokens"], group: int) -> Int[Tensor, "tokens group"]:
    """Return the images of each token's group; groups are contiguous in a batch.

    >>> group_columns(torch.tensor([0, 3]), 2)
    tensor([[0, 1],
            [2, 3]])
    """
    return (owner // group * group).unsqueeze(1) + torch.arange(group, device=owner.device)


def evidence_loss(
    evidence: Float[Tensor, "tokens group"],
    words: Int[Tensor, " tokens"],
    labels: Int[Tensor, "tokens group"],
    weights: Float[Tensor, "tokens group"],
    *,
    odds: Odds,
    counts: Float[Tensor, " words"],
) -> Scalar:
    r"""Balanced logistic loss of :math:`\ell = a e - z - z_w` on present (1) and absent (0) words; −1 is ignored."""
    logits = odds.slope * evidence - odds.zero - odds.word_zeros[words].unsqueeze(1)
    shares = weights * ((counts[words] + _PRIOR) ** -_RARE).unsqueeze(1)
    return _balanced_logistic(logits, shares * (labels == 1), shares * (labels == 0))


def _balanced_logistic(logits: Tensor, present: Tensor, absent: Tensor) -> Scalar:
    """Logistic loss in which present and absent words, with these weights, count equally."""
    lost = (softplus(-logits) * present).sum() / present.sum().clamp_min(1e-6)
    return (lost + (softplus(logits) * absent).sum() / absent.sum().clamp_min(1e-6)) / 2


def objects_loss(
    evidence: Float[Tensor, "classes batch"],
    shown: Bool[Tensor, "classes batch"],
    known: Bool[Tensor, " batch"],
    odds: Odds,
) -> Scalar:
    """Balanced logistic loss of classes on annotated images; absent ones that look present have the largest weight."""
    logits = odds.slope * evidence - odds.zero - odds.word_zeros.unsqueeze(1)
    present = (shown & known).to(logits.dtype)
    present = present * (present.sum(dim=1, keepdim=True) + 1) ** -0.5
    return _balanced_logistic(logits, present, (~shown & known) * logits.detach().sigmoid())


def omission_loss(images: Embeddings, texts: Embeddings, scale: Scalar, *, kappa: float, group: int) -> Scalar:
    """A second true caption must bring the patches nearer to the text, a caption of a similar image must not.

    The two captions of an image are adjacent; the false one is the second caption of the next image in the group.
    """
    patches = images.points
    first, second = (_nearness(patches, texts, slice(number, None, 2), kappa) for number in (0, 1))
    false = _nearness(patches, _rolled(texts, group), slice(1, None, 2), kappa)
    near, size, has_tokens = first
    single = near.mean(dim=1) - size
    true, wrong = (
        torch.logaddexp(near, more).mean(dim=1) - torch.logaddexp(size, length) for more, length, _ in (second, false)
    )
    margins = torch.stack([true - single, single - wrong, true - wrong])
    complete = has_tokens & second[2] & false[2]
    return (softplus(-scale * margins) * complete).sum() / (3 * complete.sum().clamp_min(1))


def _nearness(
    patches: Float[Tensor, "batch patches dim"], texts: Embeddings, which: slice, kappa: float
) -> tuple[Float[Tensor, "batch patches"], Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """Return the log-sum-exp of token similarities to every patch, the log number of tokens, and whether any exist."""
    points, mask = texts.points[which], texts.mask[which]
    has_tokens = mask.any(dim=1)
    open_mask = mask | ~has_tokens.unsqueeze(1)
    cosines = kappa * (patches @ points.mT)
    near = cosines.masked_fill(~open_mask.unsqueeze(1), -torch.inf).logsumexp(dim=2)
    return near, open_mask.sum(dim=1).to(near.dtype).log(), has_tokens


def _rolled(texts: Embeddings, group: int) -> Embeddings:
    """Return captions shifted by one image within each group."""

    def move(values: Tensor) -> Tensor:
        return values.unflatten(0, (-1, group, 2)).roll(1, dims=1).flatten(0, 2)

    return Embeddings(move(texts.points), move(texts.mask), move(texts.pooled), layout=())


def over_machine_loss(
    images: Float[Tensor, "batch dim"],
    people: Float[Tensor, "batch captions dim"],
    machine: Float[Tensor, "texts dim"],
    owner: Int[Tensor, " texts"],
    scale: Scalar,
) -> Scalar:
    """A machine's caption retrieves its image, and every caption by people fits that image better.

    The mean over the images of the batch is subtracted from the margin, so that style is not rewarded.

    >>> import torch
    >>> ones = torch.eye(2)
    >>> over_machine_loss(ones, ones.unsqueeze(1), ones, torch.tensor([0, 1]), torch.tensor(1.0))
    tensor(0.5032)
    """
    if not len(owner):
        return 0.0 * people.sum()
    lost = cross_entropy(machine @ images.mT * scale, owner) / 2
    for number in range(people.shape[1]):
        margins = images @ (people[owner, number] - machine).mT
        grounded, bias = grounded_loss(margins, owner, scale), bias_loss(margins, scale)
        lost = lost + (grounded / 2 + _BIAS * bias) / len(owner)
    return lost
