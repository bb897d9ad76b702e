r"""What a caption omits and what it invents: two directed divergences, kept as one term a point.

.. math::
    \text{coverage} = \sum_i c_i,\quad c_i = \tfrac{1}{N}(\log P_{img}(x_i) - \log P_{txt}(x_i)),\qquad
    \text{support} = \sum_j s_j,\quad s_j = \tfrac{1}{M}(\log P_{txt}(y_j) - \log P_{img}(y_j))
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core import fused
from msdscore.core.blocks import Block, blocks, cut, for_each, place
from msdscore.core.calibration import Bank, expected_log_density
from msdscore.core.candidates import CandidateSets
from msdscore.core.mixture import FitSettings, Mixture, fit, log_density
from msdscore.core.sphere import accumulation_dtype, counts, real_points


@dataclass(frozen=True, slots=True)
class PointSet:
    """One side of a comparison: padded unit vectors, their mask, and a key an item made from its content."""

    points: Float[Tensor, "batch points dim"]
    mask: Bool[Tensor, "batch points"]
    keys: Int[Tensor, " batch"]

    def __len__(self) -> int:
        return self.points.shape[0]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Terms a patch and a token of every caption; the score is their sum, the explanation is the terms.

    `image_mixtures`, one an image, are kept so that an explanation can say which patches a density comes from.
    """

    coverage_terms: Float[Tensor, "captions patches"]
    support_terms: Float[Tensor, "captions tokens"]
    image_mixtures: Mixture

    @property
    def coverage(self) -> Float[Tensor, " captions"]:
        """KL(image‖text): what the caption omits."""
        return self.coverage_terms.sum(dim=1)

    @property
    def support(self) -> Float[Tensor, " captions"]:
        """KL(text‖image): what the caption invents."""
        return self.support_terms.sum(dim=1)


def terms(
    points: Float[Tensor, "batch points dim"],
    mask: Bool[Tensor, "batch points"],
    *,
    own: Mixture,
    other: Mixture,
) -> Float[Tensor, "batch points"]:
    """Each real point's share of KL(own‖other), estimated on the points that `own` was fitted to."""
    solid = real_points(points, mask)
    return _share(log_density(own, solid) - log_density(other, solid), mask)


def _share(
    difference: Float[Tensor, "batch points"], mask: Bool[Tensor, "batch points"]
) -> Float[Tensor, "batch points"]:
    """Differences of log densities as terms of a mean over the real points; padding is zero."""
    size = counts(mask).clamp_min(1).unsqueeze(1)
    return (difference / size).masked_fill(~mask, 0.0)


def fit_all(side: PointSet, settings: FitSettings) -> Mixture:
    """A mixture for every item of one side, block by block, or in one go where the fused kernels serve."""
    quick = fused.serves(side.points, settings.components)
    if quick and side.points.shape[1] <= fused.MOST_POINTS:
        return fused.fit(side.points, side.mask, side.keys, settings)
    like, size = _like(side.points), (len(side), settings.components)
    means = like.new_empty(*size, side.points.shape[2])
    log_weights = like.new_empty(size)

    def work(block: Block) -> None:
        # The block's width follows from its items, so an item takes the same way in every batch.
        fitted = fused.fit if quick and block.width <= fused.MOST_POINTS else fit
        mixture = fitted(cut(side.points, block), cut(side.mask, block), side.keys[block.items], settings)
        means[block.items], log_weights[block.items] = mixture.means, mixture.log_weights

    for_each(work, _blocks_of(side, settings.components), side.points.device)
    return Mixture(means, log_weights, settings.kappa)


def support_terms(
    texts: PointSet,
    text_mixtures: Mixture,
    image_mixtures: Mixture,
    owner: Int[Tensor, " captions"],
    *,
    background: Mixture | None = None,
) -> Float[Tensor, "captions tokens"]:
    """Support terms of every token; `owner` says which image a caption belongs to.

    With a `background` of pictures each term is less its mean over them.
    """
    if background is None and fused.serves(texts.points, text_mixtures, image_mixtures):
        return fused.terms(
            texts.points, texts.mask, text_mixtures, image_mixtures, source=_numbers(owner), target=owner
        )
    result = _like(texts.points).new_zeros(texts.mask.shape)

    def work(block: Block) -> None:
        mask = cut(texts.mask, block)
        solid = real_points(cut(texts.points, block), mask)
        expected = _expected(solid, text_mixtures.take(block.items), background)
        other = log_density(image_mixtures.take(owner[block.items]), solid)
        place(result, block.items, _share(expected - other, mask))

    for_each(work, _blocks_of(texts, text_mixtures.means.shape[1]), texts.points.device)
    return result


def coverage_terms(
    images: PointSet,
    image_mixtures: Mixture,
    text_mixtures: Mixture,
    owner: Int[Tensor, " captions"],
    *,
    background: Mixture | None = None,
) -> Float[Tensor, "captions patches"]:
    """Coverage terms of every patch for every caption; patches are read in place, never copied once a caption.

    With a `background` of captions each term is less its mean over them.
    """
    if background is None and fused.serves(images.points, image_mixtures, text_mixtures):
        return fused.terms(
            images.points, images.mask, image_mixtures, text_mixtures, source=owner, target=_numbers(owner)
        )
    result = _like(images.points).new_zeros((len(owner), images.mask.shape[1]))
    sets = CandidateSets.of(owner, len(images))

    def work(block: Block) -> None:
        block = sets.largest_first(block)
        mask = cut(images.mask, block)
        solid = real_points(cut(images.points, block), mask)
        expected = _expected(solid, image_mixtures.take(block.items), background)
        for captions in sets.rounds(block):
            kept = captions >= 0
            image = kept.nonzero()[:, 0]
            other = _by_slot(text_mixtures, captions, solid[: len(captions)])
            place(result, captions[kept], _share(expected[image] - other[kept], mask[image]))

    for_each(work, _blocks_of(images, image_mixtures.means.shape[1]), images.points.device)
    return result


def _by_slot(
    mixtures: Mixture, captions: Int[Tensor, "images slots"], solid: Float[Tensor, "images points dim"]
) -> Float[Tensor, "images slots points"]:
    """log P of an image's points under the mixture of each of its captions, all in one product an image."""
    chosen = mixtures.take(captions.clamp_min(0).flatten())
    means = chosen.means.reshape(len(captions), -1, solid.shape[2])
    cosines = (means @ solid.mT).unflatten(1, (captions.shape[1], -1))
    logits = mixtures.kappa * cosines + chosen.log_weights.reshape(*captions.shape, -1, 1)
    return logits.logsumexp(dim=2)


def diverge(
    images: PointSet,
    texts: PointSet,
    owner: Int[Tensor, " captions"],
    *,
    image_fit: FitSettings,
    text_fit: FitSettings,
    bank: Bank | None = None,
) -> Divergence:
    """Both divergences for every caption; one image mixture serves all captions of that image.

    With a `bank` the terms are calibrated against its background (see `calibration`).
    """
    image_mixtures, text_mixtures = fit_all(images, image_fit), fit_all(texts, text_fit)
    pictures, captions = (None, None) if bank is None else (bank.images, bank.texts)
    return Divergence(
        coverage_terms(images, image_mixtures, text_mixtures, owner, background=captions),
        support_terms(texts, text_mixtures, image_mixtures, owner, background=pictures),
        image_mixtures,
    )


def _expected(
    solid: Float[Tensor, "batch points dim"], own: Mixture, background: Mixture | None
) -> Float[Tensor, "batch points"]:
    """What the other side's log density is held against: the own mixture's, or the background's mean."""
    return log_density(own, solid) if background is None else expected_log_density(background, solid)


def _numbers(owner: Int[Tensor, " captions"]) -> Int[Tensor, " captions"]:
    """The number of every caption."""
    return torch.arange(len(owner), device=owner.device)


def _blocks_of(side: PointSet, components: int) -> Iterator[Block]:
    """Blocks of one side, sized by what fitting and comparing an item takes."""
    dim, wide = side.points.shape[2], _like(side.points).element_size()

    def bytes_per_item(width: int) -> int:
        return wide * width * (2 * dim + min(width, 2 * dim) + 8 * components)

    return blocks(side.mask, bytes_per_item)


def _like(points: Float[Tensor, "batch points dim"]) -> Float[Tensor, " none"]:
    """An empty tensor of the dtype and device that results have."""
    return points.new_empty(0, dtype=accumulation_dtype(points.dtype))
