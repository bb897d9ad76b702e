r"""What a caption leaves out: regions that captions in general mention, and this one does not.

A patch is mentioned as far as some token is near it, :math:`A_i(T) = \log \sum_j e^{\kappa\, x_i \cdot y_j}`. The sum
is not divided by the number of tokens: a true addition mentions more patches, and costs nothing.

.. math:: \text{coverage} = \sum_i v_i \bigl(\overline{A_i(T_b)} + \rho(\log M - \overline{\log M_b}) - A_i(T)\bigr)

The mean is over background captions. A longer caption is near more patches by chance, and is held against longer
background captions as far as :math:`\rho` says; a word said twice counts once. The weights :math:`v_i` add up to 1 and
go with the variance of :math:`A_i(T_b)`: patches of which captions say the same, whatever they are about, such as plain
walls, weigh little.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core.blocks import Block, cut, for_each, place, widths
from msdscore.core.mixture import Mixture
from msdscore.core.schedule import PointSet, blocks_of, coverage_terms
from msdscore.core.sphere import accumulation_dtype, real_points

LENGTH_SHARE = 0.25  # rho; docs/decisions.md: true additions gain, false ones hardly
KAPPA = 10.0  # of A: softer than the mixtures, chosen on people's judgements of recall (docs/decisions.md)
_NONE = -1e4  # logarithm of a weight that counts for nothing, finite so that no difference is undefined
_ITEMS = 32  # background captions in one product: a fixed number, so that rounding does not depend on the block


def every_token(texts: PointSet, kappa: float) -> Mixture:
    """Texts as mixtures with one component of weight 1 per token, not divided by their number."""
    wide = real_points(texts.points, texts.mask)
    none = torch.zeros_like(wide[:, :, 0]).masked_fill(~texts.mask, _NONE)
    return Mixture(wide, none, kappa)


@dataclass(frozen=True, slots=True)
class Spoken:
    """How much background captions mention every patch: the mean of A over them, and its standard deviation."""

    mean: Float[Tensor, "images patches"]
    spread: Float[Tensor, "images patches"]


def omission_terms(
    images: PointSet,
    texts: PointSet,
    image_mixtures: Mixture,
    *,
    image_of: Int[Tensor, " pairs"],
    text_of: Int[Tensor, " pairs"],
    background: Mixture,
) -> Float[Tensor, "pairs patches"]:
    """Coverage terms of every patch of every pair, held against background captions (see `every_token`)."""
    spoken = spoken_of(images, background)
    tokens = every_token(texts, background.kappa)
    raw = coverage_terms(
        images, image_mixtures, tokens, image_of=image_of, text_of=text_of, expected=spoken.mean
    )  # each is divided by the number of patches
    size = images.mask.sum(dim=1).clamp_min(1).unsqueeze(1)
    longer = LENGTH_SHARE * (log_lengths(tokens) - log_lengths(background).mean())
    return (raw * size[image_of] + longer[text_of].unsqueeze(1)) * patch_weights(images, spoken)[image_of]


def patch_weights(images: PointSet, spoken: Spoken) -> Float[Tensor, "images patches"]:
    """Weights of patches that add up to 1: the variance of what background captions say of them."""
    variance = spoken.spread.square().masked_fill(~images.mask, 0.0)
    return variance / variance.sum(dim=1, keepdim=True).clamp_min(torch.finfo(variance.dtype).tiny)


def log_lengths(tokens: Mixture) -> Float[Tensor, " texts"]:
    """The logarithm of the number of tokens of every text."""
    return (tokens.log_weights == 0).sum(dim=1).clamp_min(1).to(tokens.means.dtype).log()


def spoken_of(images: PointSet, background: Mixture) -> Spoken:
    """Mean and standard deviation over background captions of how much each patch is mentioned, block by block."""
    like = images.points.new_empty(0, dtype=accumulation_dtype(images.points.dtype))
    mean, spread = (like.new_zeros(images.mask.shape) for _ in range(2))

    def work(block: Block) -> None:
        solid = real_points(cut(images.points, block), cut(images.mask, block))
        first, second = _moments(background, solid)
        place(mean, block.items, first)
        place(spread, block.items, second)

    few = background.take(slice(0, _ITEMS))
    for_each(work, blocks_of(images, widths(images.mask), 1, few), images.points.device)
    return Spoken(mean, spread)


def _moments(
    background: Mixture, points: Float[Tensor, "batch points dim"]
) -> tuple[Float[Tensor, "batch points"], Float[Tensor, "batch points"]]:
    parts = [
        _densities(background.take(slice(start, start + _ITEMS)), points) for start in range(0, len(background), _ITEMS)
    ]
    whole = torch.cat(parts, dim=1)
    return whole.mean(dim=1), whole.std(dim=1, correction=0)


def _densities(some: Mixture, points: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch captions points"]:
    captions, tokens, dim = some.means.shape
    means = some.means.to(points.dtype).reshape(1, captions * tokens, dim).expand(len(points), -1, -1)
    logits = some.kappa * (means @ points.mT) + some.log_weights.to(points.dtype).reshape(1, captions * tokens, 1)
    return logits.unflatten(1, (captions, tokens)).logsumexp(dim=2)
