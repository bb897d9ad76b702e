"""Many pairs of images and captions at once: every item is fitted once, in blocks of bounded memory.

`image_of[p]` and `text_of[p]` are the numbers of the image and of the caption of pair p. An image with several
captions, like a caption with several images, is fitted once and compared with the background once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core import fused, variants
from msdscore.core.blocks import Block, blocks, cut, for_each, place, widths
from msdscore.core.embeddings import Embeddings
from msdscore.core.evidence import Bank
from msdscore.core.mixture import FitSettings, Mixture, expected_log_density, fit, log_density, room_per_point
from msdscore.core.paper import Divergence, share
from msdscore.core.sphere import accumulation_dtype, real_points

# Captions of an image that are compared in one product. The number is fixed, so that a product's shape, and with it the
# rounding of every row, is the same however many captions there are; eight cost little more than one.
SLOTS = 8


def diverge(
    images: Embeddings,
    texts: Embeddings,
    image_of: Int[Tensor, " pairs"],
    text_of: Int[Tensor, " pairs"],
    *,
    image_fit: FitSettings,
    text_fit: FitSettings,
    bank: Bank | None = None,
) -> Divergence:
    """Both divergences of every pair.

    With a `bank` the terms are calibrated against its background (see `mixture`).
    """
    images, texts = _in_its_space(images, image_fit), _in_its_space(texts, text_fit)
    image_mixtures, text_mixtures = fit_all(images, image_fit), fit_all(texts, text_fit)
    background = (None, None) if bank is None else (bank.images, bank.texts)
    pairs = {"image_of": image_of, "text_of": text_of}
    return Divergence(
        coverage_terms(images, image_mixtures, text_mixtures, **pairs, background=background[1]),
        support_terms(texts, text_mixtures, image_mixtures, **pairs, background=background[0]),
        image_mixtures,
        text_mixtures,
    )


def fit_all(side: Embeddings, settings: FitSettings) -> Mixture:
    """One mixture per item of one side, block by block, or in one go where the fused kernels serve."""
    keys = side.mask.new_zeros(len(side), dtype=torch.int64) if side.keys is None else side.keys
    quick = settings.mixture == "vmf" and fused.serves(side.points, settings.components)
    if quick and side.points.shape[1] <= fused.MOST_POINTS:
        return fused.fit(side.points, side.mask, keys, settings)
    plain = fit if settings.mixture == "vmf" else variants.fit
    like, size = _like(side.points), (len(side), settings.components)
    means = like.new_empty(*size, side.points.shape[2])
    log_weights = like.new_empty(size)

    def work(block: Block) -> None:
        # The block's width follows from its items, so an item takes the same way in every batch.
        fitted = fused.fit if quick and block.width <= fused.MOST_POINTS else plain
        mixture = fitted(cut(side.points, block), cut(side.mask, block), keys[block.items], settings)
        means[block.items], log_weights[block.items] = mixture.means, mixture.log_weights

    for_each(work, blocks_of(side, widths(side.mask), settings.components), side.points.device)
    return Mixture(means, log_weights, settings.kappa if settings.mixture == "vmf" else 1.0)


def _in_its_space(side: Embeddings, settings: FitSettings) -> Embeddings:
    """The side as its mixtures take it: unit vectors as they are, or the features of another family in float64."""
    if settings.mixture == "vmf":
        return side
    return replace(side, points=variants.FAMILIES[settings.mixture].lift(side.points.double()))


def expected_densities(side: Embeddings, own: Mixture, background: Mixture | None) -> Float[Tensor, "batch points"]:
    """What the other side's log density at a point is held against: the own mixture's, or the background's mean."""
    if background is not None and fused.serves(side.points, own, background):
        return fused.expected(side.points, side.mask, background)
    result = _like(side.points).new_zeros(side.mask.shape)

    def work(block: Block) -> None:
        solid = real_points(cut(side.points, block), cut(side.mask, block))
        if background is None:
            place(result, block.items, log_density(own.take(block.items), solid))
        else:
            place(result, block.items, expected_log_density(background, solid))

    for_each(work, blocks_of(side, widths(side.mask), own.means.shape[1], background), side.points.device)
    return result


def support_terms(
    texts: Embeddings,
    text_mixtures: Mixture,
    image_mixtures: Mixture,
    *,
    image_of: Int[Tensor, " pairs"],
    text_of: Int[Tensor, " pairs"],
    background: Mixture | None = None,
) -> Float[Tensor, "pairs tokens"]:
    """Support terms of every token of every pair, block by block of pairs.

    With a `background` of images each term is less its mean over them.
    """
    sides = (texts, text_mixtures, image_mixtures)
    if fused.serves(texts.points, text_mixtures, image_mixtures):
        return _fused_terms(*sides, source=text_of, target=image_of, background=background)
    expected = expected_densities(texts, text_mixtures, background)
    result = expected.new_zeros((len(text_of), expected.shape[1]))

    def work(block: Block) -> None:
        captions = replace(block, items=text_of[block.items], whole=False)
        mask = cut(texts.mask, captions)
        solid = real_points(cut(texts.points, captions), mask)
        other = log_density(image_mixtures.take(image_of[block.items]), solid)
        place(result, block.items, share(cut(expected, captions) - other, mask))

    components = text_mixtures.means.shape[1]
    for_each(work, blocks_of(texts, widths(texts.mask)[text_of], components), texts.points.device)
    return result


def coverage_terms(
    images: Embeddings,
    image_mixtures: Mixture,
    text_mixtures: Mixture,
    *,
    image_of: Int[Tensor, " pairs"],
    text_of: Int[Tensor, " pairs"],
    background: Mixture | None = None,
) -> Float[Tensor, "pairs patches"]:
    """Coverage terms of every patch of every pair; patches are read in place, never copied once per caption.

    With a `background` of captions each term is less its mean over them.
    """
    if fused.serves(images.points, image_mixtures, text_mixtures):
        sides = (images, image_mixtures, text_mixtures)
        return _fused_terms(*sides, source=image_of, target=text_of, background=background)
    expected = expected_densities(images, image_mixtures, background)
    result = expected.new_zeros((len(image_of), expected.shape[1]))
    sets = CandidateSets.of(image_of, len(images))

    def work(block: Block) -> None:
        block = sets.largest_first(block)
        mask, own = cut(images.mask, block), cut(expected, block)
        solid = real_points(cut(images.points, block), mask)
        for pairs in sets.rounds(block):
            kept = pairs >= 0
            image = kept.nonzero()[:, 0]
            other = _by_slot(text_mixtures, text_of[pairs.clamp_min(0)], solid[: len(pairs)])
            place(result, pairs[kept], share(own[image] - other[kept], mask[image]))

    components = image_mixtures.means.shape[1]
    for_each(work, blocks_of(images, widths(images.mask), components), images.points.device)
    return result


def token_evidence(
    texts: Embeddings,
    image_mixtures: Mixture,
    background: Mixture,
    *,
    image_of: Int[Tensor, " pairs"],
    text_of: Int[Tensor, " pairs"],
) -> Float[Tensor, "pairs tokens"]:
    """log P of every token under its image's mixture, less the mean over background images; padding is zero."""
    pairs = {"image_of": image_of, "text_of": text_of}
    # Calibrated support terms are the negative shares of it; no mixture of the text takes part.
    terms = support_terms(texts, image_mixtures, image_mixtures, **pairs, background=background)
    return -terms * texts.mask.sum(dim=1, keepdim=True)[text_of]


def _fused_terms(
    side: Embeddings,
    own: Mixture,
    others: Mixture,
    *,
    source: Int[Tensor, " pairs"],
    target: Int[Tensor, " pairs"],
    background: Mixture | None,
) -> Float[Tensor, "pairs points"]:
    """Terms on a GPU: the own density is made beside the other one, a background's mean beforehand once per item."""
    expected = None if background is None else expected_densities(side, own, background)
    return fused.terms(side.points, side.mask, own, others, source=source, target=target, expected=expected)


def _by_slot(
    mixtures: Mixture, captions: Int[Tensor, "images slots"], solid: Float[Tensor, "images points dim"]
) -> Float[Tensor, "images slots points"]:
    """log P of an image's points under the mixture of each of its captions, all in one product per image."""
    chosen = mixtures.take(captions.flatten())
    means = chosen.means.reshape(len(captions), -1, solid.shape[2])
    cosines = (means @ solid.mT).unflatten(1, (captions.shape[1], -1))
    logits = mixtures.kappa * cosines + chosen.log_weights.reshape(*captions.shape, -1, 1)
    return logits.logsumexp(dim=2)


@dataclass(frozen=True, slots=True)
class CandidateSets:
    """The pairs of every image, in ragged sets: `order[first[i] : first[i] + size[i]]` are those of image i."""

    order: Int[Tensor, " pairs"]
    first: Int[Tensor, " images"]
    size: Int[Tensor, " images"]  # on the CPU: it decides how the work is cut

    @classmethod
    def of(cls, image_of: Int[Tensor, " pairs"], images: int) -> "CandidateSets":
        """Sets from the image number of every pair."""
        size = torch.bincount(image_of, minlength=images)
        return CandidateSets(image_of.argsort(stable=True), size.cumsum(0) - size, size.cpu())

    def largest_first(self, block: Block) -> Block:
        """The block with its images ordered by the size of their sets, so that each round is a prefix of it."""
        size = self.size[block.items.cpu()]
        order = size.argsort(descending=True, stable=True)
        kept = bool((order[1:] > order[:-1]).all())
        return block if kept else replace(block, items=block.items[order.to(block.items.device)], whole=False)

    def rounds(self, block: Block) -> Iterator[Int[Tensor, "some slots"]]:
        """The first pairs of all images of an ordered block, then the next of images that have more; −1: none."""
        size = self.size[block.items.cpu()]
        for start in range(0, int(size.max()) if len(size) else 0, SLOTS):
            some = int((size > start).sum())
            turn = torch.arange(start, start + SLOTS, device=self.order.device)
            position = (self.first[block.items[:some]].unsqueeze(1) + turn).clamp(max=len(self.order) - 1)
            has = turn < size[:some].to(turn.device).unsqueeze(1)
            yield torch.where(has, self.order[position], -1)


def blocks_of(
    side: Embeddings, classes: Int[Tensor, " items"], components: int, background: Mixture | None = None
) -> Iterator[Block]:
    """Blocks of items of these size classes, sized by what fitting and comparing one of them takes."""
    dim, wide = side.points.shape[2], _like(side.points).element_size()
    bank = 0 if background is None else room_per_point(background)

    def bytes_per_item(width: int) -> int:
        return wide * width * (2 * dim + min(width, 2 * dim) + 8 * components + bank)

    return blocks(classes, bytes_per_item)


def _like(points: Float[Tensor, "batch points dim"]) -> Float[Tensor, " none"]:
    """An empty tensor of the dtype and device that results have."""
    return points.new_empty(0, dtype=accumulation_dtype(points.dtype))
