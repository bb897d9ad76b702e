"""Terms of the loss that give evidence a true zero: log-odds of present against absent words, and of omissions."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from msdscore.align.losses.terms import Scalar
from msdscore.core.mixture import Mixture
from msdscore.encoders.aligned.heads import Projected

_RARE = 0.25  # words weigh with this power of one over their count: frequent ones would drown the rest
_PRIOR = 5.0  # pictures added to every count


@dataclass(frozen=True, slots=True)
class Odds:
    """The line from evidence to log-odds: a slope, a zero of all words, and a zero of each word beside it."""

    slope: Scalar
    zero: Scalar
    word_zeros: Float[Tensor, " words"]


def densities(points: Float[Tensor, "points dim"], mixtures: Mixture) -> Float[Tensor, "points mixtures"]:
    """log P of every point under every mixture, without the shared normaliser."""
    count, components, dim = mixtures.means.shape
    cosines = points @ mixtures.means.reshape(count * components, dim).mT
    logits = mixtures.kappa * cosines + mixtures.log_weights.reshape(1, -1)
    return logits.unflatten(1, (count, components)).logsumexp(dim=2)


def group_columns(owner: Int[Tensor, " tokens"], group: int) -> Int[Tensor, "tokens group"]:
    """The pictures of each token's group; groups lie side by side in a batch.

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
    r"""Balanced logistic loss of :math:`\ell = a e - z - z_w` on present (1) and absent (0) words; −1 is left out."""
    logits = odds.slope * evidence - odds.zero - odds.word_zeros[words].unsqueeze(1)
    shares = weights * ((counts[words] + _PRIOR) ** -_RARE).unsqueeze(1)
    present, absent = shares * (labels == 1), shares * (labels == 0)
    lost = (softplus(-logits) * present).sum() / present.sum().clamp_min(1e-6)
    return (lost + (softplus(logits) * absent).sum() / absent.sum().clamp_min(1e-6)) / 2


def objects_loss(
    evidence: Float[Tensor, "classes batch"],
    shown: Bool[Tensor, "classes batch"],
    known: Bool[Tensor, " batch"],
    odds: Odds,
) -> Scalar:
    """Balanced logistic loss of classes where objects are known; absent ones that look present count most."""
    logits = odds.slope * evidence - odds.zero - odds.word_zeros.unsqueeze(1)
    present = (shown & known).to(logits.dtype)
    present = present * (present.sum(dim=1, keepdim=True) + 1) ** -0.5
    absent = (~shown & known) * logits.detach().sigmoid()
    lost = (softplus(-logits) * present).sum() / present.sum().clamp_min(1e-6)
    return (lost + (softplus(logits) * absent).sum() / absent.sum().clamp_min(1e-6)) / 2


def omission_loss(images: Projected, texts: Projected, scale: Scalar, *, kappa: float, group: int) -> Scalar:
    """A second true caption must bring the patches nearer to the text, a caption of a similar picture must not.

    Two captions of each picture lie side by side; the false one is the second caption of the next picture in the group.
    """
    patches = images.points
    first, second = (_told(patches, texts, slice(number, None, 2), kappa) for number in (0, 1))
    false = _told(patches, _rolled(texts, group), slice(1, None, 2), kappa)
    one = first.near.mean(dim=1) - first.size
    true, wrong = (
        torch.logaddexp(first.near, more.near).mean(dim=1) - torch.logaddexp(first.size, more.size)
        for more in (second, false)
    )
    margins = torch.stack([true - one, one - wrong, true - wrong])
    said = first.some & second.some & false.some
    return (softplus(-scale * margins) * said).sum() / (3 * said.sum().clamp_min(1))


@dataclass(frozen=True, slots=True)
class _Told:
    """How near the tokens of a text are to every patch, the logarithm of their number, and whether there are any."""

    near: Float[Tensor, "batch patches"]
    size: Float[Tensor, " batch"]
    some: Tensor


def _told(patches: Float[Tensor, "batch patches dim"], texts: Projected, which: slice, kappa: float) -> _Told:
    points, mask = texts.points[which], texts.mask[which]
    some = mask.any(dim=1)
    open_mask = mask | ~some.unsqueeze(1)
    cosines = kappa * (patches @ points.mT)
    near = cosines.masked_fill(~open_mask.unsqueeze(1), -torch.inf).logsumexp(dim=2)
    return _Told(near, open_mask.sum(dim=1).to(near.dtype).log(), some)


def _rolled(texts: Projected, group: int) -> Projected:
    """Captions moved by one picture within each group."""

    def move(values: Tensor) -> Tensor:
        return values.unflatten(0, (-1, group, 2)).roll(1, dims=1).flatten(0, 2)

    return Projected(move(texts.points), move(texts.mask), move(texts.pooled))
