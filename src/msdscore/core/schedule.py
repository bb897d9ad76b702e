"""Score many pairs of images and captions: every item is fitted once, in blocks of bounded memory.

`image_of[p]` and `text_of[p]` are the indices of the image and of the caption of pair p. An image with several
captions, like a caption with several images, is fitted once and compared with the background once.

The shape of a block depends only on its items, so that no item's result depends on its neighbours: reductions of
floating point numbers depend on the padded width they run over. A block therefore has items of one size class and is
padded to that class, never to the longest item that happens to be in the batch.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cache
from threading import Barrier
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from msdscore.core import fused
from msdscore.core.embeddings import Embeddings, Mask, PerPoint, Points, accumulation_dtype, extents, real_points, widen
from msdscore.core.evidence import Bank
from msdscore.core.mixture import ITEMS, FitSettings, Keys, Mixture, expected_log_density, fit, log_density
from msdscore.core.paper import Divergence, share

# Memory of one block in bytes: on a CPU a few cache-friendly items for every core.
BLOCK_BYTES = 64 << 20
# Work on so few points is finished before another thread has started it (measured; see docs/performance.md).
FEW_POINTS = 32
# On a GPU a share of its memory: few large launches, and room for the encoder.
GPU_SHARE = 8

# Captions of an image that are compared in one product. The number is fixed, so that a product's shape, and with it the
# rounding of every row, is independent of the number of captions; eight cost little more than one.
SLOTS = 8

OfPairs = Int[Tensor, " pairs"]  # the index of an image or a caption for every pair
PairTerms = Float[Tensor, "pairs points"]


class Block(NamedTuple):
    """Items of a batch and the width they are padded to; `whole` if it is the entire batch."""

    items: Int[Tensor, " items"]
    width: int
    whole: bool


def diverge(
    images: Embeddings,
    texts: Embeddings,
    image_of: OfPairs,
    text_of: OfPairs,
    *,
    image_fit: FitSettings,
    text_fit: FitSettings,
    bank: Bank | None = None,
) -> Divergence:
    """Both divergences of every pair.

    With a `bank` the terms are calibrated against its background (see `mixture`).
    """
    images, texts = _features(images, image_fit), _features(texts, text_fit)
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
    """Fit one mixture per item of one side, block by block, or at once with the fused kernels."""
    keys = side.mask.new_zeros(len(side), dtype=torch.int64) if side.keys is None else side.keys
    quick = settings.mixture == "vmf" and fused.serves(side.points, settings.components)
    if quick and side.points.shape[1] <= fused.MOST_POINTS:
        return fused.fit(side.points, side.mask, keys, settings)
    plain: Callable[[Points, Mask, Keys, FitSettings], Mixture] = fit
    if settings.mixture != "vmf":
        from msdscore.core import variants  # only for comparisons

        plain = variants.fit
    wide, size = accumulation_dtype(side.points.dtype), (len(side), settings.components)
    means = side.points.new_empty((*size, side.points.shape[2]), dtype=wide)
    log_weights = side.points.new_empty(size, dtype=wide)

    def work(block: Block) -> None:
        # The block's width follows from its items, so an item takes the same path in every batch.
        fitted = fused.fit if quick and block.width <= fused.MOST_POINTS else plain
        mixture = fitted(cut(side.points, block), cut(side.mask, block), keys[block.items], settings)
        means[block.items], log_weights[block.items] = mixture.means, mixture.log_weights

    for_each(work, blocks(side, widths(side.mask), settings.components), side.points.device)
    return Mixture(means, log_weights, settings.kappa if settings.mixture == "vmf" else 1.0)


def _features(side: Embeddings, settings: FitSettings) -> Embeddings:
    """The input of the side's mixtures: the unit vectors, or the features of another family in float64."""
    if settings.mixture == "vmf":
        return side
    from msdscore.core import variants

    return replace(side, points=variants.FAMILIES[settings.mixture].lift(side.points.double()))


def baseline_densities(side: Embeddings, own: Mixture, background: Mixture | None) -> PerPoint:
    """Reference log density of each point: the own mixture's, or the mean over the background."""
    if background is not None and fused.serves(side.points, own, background):
        return fused.expected(side.points, side.mask, background)
    result = side.points.new_zeros(side.mask.shape, dtype=accumulation_dtype(side.points.dtype))

    def work(block: Block) -> None:
        solid = real_points(cut(side.points, block), cut(side.mask, block))
        if background is None:
            put_rows(result, block.items, log_density(own.take(block.items), solid))
        else:
            put_rows(result, block.items, expected_log_density(background, solid))

    for_each(work, blocks(side, widths(side.mask), own.means.shape[1], background), side.points.device)
    return result


def support_terms(
    texts: Embeddings,
    text_mixtures: Mixture,
    image_mixtures: Mixture,
    *,
    image_of: OfPairs,
    text_of: OfPairs,
    background: Mixture | None = None,
) -> PairTerms:
    """Support terms of every token of every pair, block by block of pairs.

    With a `background` of images the mean over them is subtracted from each term.
    """
    sides = (texts, text_mixtures, image_mixtures)
    if fused.serves(texts.points, text_mixtures, image_mixtures):
        return _fused_terms(*sides, source=text_of, target=image_of, background=background)
    expected = baseline_densities(texts, text_mixtures, background)
    result = expected.new_zeros((len(text_of), expected.shape[1]))

    def work(block: Block) -> None:
        captions = Block(text_of[block.items], block.width, whole=False)
        mask = cut(texts.mask, captions)
        solid = real_points(cut(texts.points, captions), mask)
        other = log_density(image_mixtures.take(image_of[block.items]), solid)
        put_rows(result, block.items, share(cut(expected, captions) - other, mask))

    components = text_mixtures.means.shape[1]
    for_each(work, blocks(texts, widths(texts.mask)[text_of], components), texts.points.device)
    return result


def coverage_terms(
    images: Embeddings,
    image_mixtures: Mixture,
    text_mixtures: Mixture,
    *,
    image_of: OfPairs,
    text_of: OfPairs,
    background: Mixture | None = None,
) -> PairTerms:
    """Coverage terms of every patch of every pair; patches are read in place, never copied for each caption.

    With a `background` of captions the mean over them is subtracted from each term.
    """
    if fused.serves(images.points, image_mixtures, text_mixtures):
        sides = (images, image_mixtures, text_mixtures)
        return _fused_terms(*sides, source=image_of, target=text_of, background=background)
    expected = baseline_densities(images, image_mixtures, background)
    result = expected.new_zeros((len(image_of), expected.shape[1]))
    # The pairs of image i are order[first[i] : first[i] + sizes[i]]; sizes are on the CPU, which splits the work.
    size, order = torch.bincount(image_of, minlength=len(images)), image_of.argsort(stable=True)
    first, sizes = size.cumsum(0) - size, size.cpu()

    def work(block: Block) -> None:
        here = sizes[block.items.cpu()]
        largest = here.argsort(descending=True, stable=True)
        if (largest[1:] < largest[:-1]).any():
            block = Block(block.items[largest.to(block.items.device)], block.width, whole=False)
        mask, own = cut(images.mask, block), cut(expected, block)
        solid = real_points(cut(images.points, block), mask)
        for pairs in _rounds(order, first[block.items], here[largest]):
            real = pairs >= 0
            image = real.nonzero()[:, 0]
            other = _by_slot(text_mixtures, text_of[pairs.clamp_min(0)], solid[: len(pairs)])
            put_rows(result, pairs[real], share(own[image] - other[real], mask[image]))

    components = image_mixtures.means.shape[1]
    for_each(work, blocks(images, widths(images.mask), components), images.points.device)
    return result


def token_evidence(
    texts: Embeddings, image_mixtures: Mixture, background: Mixture, *, image_of: OfPairs, text_of: OfPairs
) -> PairTerms:
    """log P of every token under its image's mixture, minus the mean over background images; padding is zero."""
    pairs = {"image_of": image_of, "text_of": text_of}
    # Calibrated support terms are the negative shares of it; the text's mixture cancels.
    terms = support_terms(texts, image_mixtures, image_mixtures, **pairs, background=background)
    return -terms * texts.mask.sum(dim=1, keepdim=True)[text_of]


def _fused_terms(
    side: Embeddings, own: Mixture, others: Mixture, *, source: OfPairs, target: OfPairs, background: Mixture | None
) -> PairTerms:
    """PairTerms on a GPU: both densities are computed together; the mean over a background once per item beforehand."""
    expected = None if background is None else baseline_densities(side, own, background)
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


def _rounds(
    order: OfPairs, first: Int[Tensor, " images"], size: Int[Tensor, " images"]
) -> Iterator[Int[Tensor, "open slots"]]:
    """Pairs of images, which are sorted by descending number of pairs, SLOTS of each image at a time.

    The rows are those of images that have more; −1: none.
    """
    for start in range(0, int(size.max()) if len(size) else 0, SLOTS):
        more = int((size > start).sum())
        turn = torch.arange(start, start + SLOTS, device=order.device)
        position = (first[:more].unsqueeze(1) + turn).clamp(max=len(order) - 1)
        has = turn < size[:more].to(turn.device).unsqueeze(1)
        yield torch.where(has, order[position], -1)


def widths(mask: Mask) -> Int[Tensor, " batch"]:
    """The size class of an item: the end of its last real point, rounded up to a quarter of the power of two below it.

    Above 128 to a sixteenth: images have that many points, mostly the same number, and padding costs a copy.

    >>> widths(torch.tensor([[True, True, False], [True, False, False]]))
    tensor([4, 4])
    """
    ends = extents(mask).clamp_min(1)
    power = 2 ** (ends - 1).clamp_min(1).to(torch.float64).log2().floor().to(torch.int64)
    steps = torch.where(power < 128, power // 4, power // 16).clamp_min(4)
    return (ends + steps - 1) // steps * steps


def blocks(
    side: Embeddings, classes: Int[Tensor, " items"], components: int, background: Mixture | None = None
) -> Iterator[Block]:
    """Blocks of items of these size classes, by the memory for fitting and comparing one of them."""
    here, room = classes.cpu(), BLOCK_BYTES
    if classes.device.type == "cuda":
        room = int(torch.cuda.get_device_properties(classes.device).total_memory) // GPU_SHARE
    dim, wide = side.points.shape[2], accumulation_dtype(side.points.dtype).itemsize
    # Peak memory of `expected_log_density` in numbers per point: logits, and their exponentials.
    bank = 0 if background is None else 3 * min(len(background), ITEMS) * background.means.shape[1]
    for width in here.unique().tolist():
        items = (here == width).nonzero().squeeze(1).to(classes.device)
        bytes_per_item = wide * width * (2 * dim + min(width, 2 * dim) + 8 * components + bank)
        for part in items.split(max(1, room // bytes_per_item)):
            yield Block(part, width, whole=len(part) == len(here))


def cut(values: Shaped[Tensor, "batch points *rest"], block: Block) -> Shaped[Tensor, "items width *rest"]:
    """The block's rows of a padded tensor, cropped or padded with zeros to the block's width."""
    return widen((values if block.whole else values[block.items])[:, : block.width], block.width)


def put_rows(target: PerPoint, items: Int[Tensor, " items"], rows: Float[Tensor, "items width"]) -> None:
    """Write rows to their items, without the padding of their block."""
    width = min(rows.shape[1], target.shape[1])
    target[items, :width] = rows[:, :width]


def for_each(work: Callable[[Block], None], parts: Iterator[Block], device: torch.device) -> None:
    """Process every block; on a CPU each block in one thread, large items in parallel.

    A library that splits one product over threads adds in an order that depends on the numbers of threads and items.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        for part in parts:
            work(part)
        return
    pool, waiting = _single_threads(threads), []
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def as_here(block: Block) -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):  # modes are thread-local
            work(block)

    for part in parts:
        split = threads if part.width > FEW_POINTS and len(part.items) >= threads else 1
        shares = (
            [part]
            if split == 1
            else [part._replace(items=items, whole=False) for items in part.items.tensor_split(split)]
        )
        waiting += [pool.submit(as_here, block) for block in shares]
    wait(waiting)  # none may continue writing after an error of another
    for done in waiting:
        done.result()


@cache
def _single_threads(count: int) -> ThreadPoolExecutor:
    """Threads whose libraries use no further threads; cached, since a new torch thread copies the last number set."""
    pool, met = ThreadPoolExecutor(count, "msdscore-core"), Barrier(count)

    def begin() -> None:
        met.wait()
        torch.get_num_threads()  # a thread reads the process-wide number on its first call, so call before setting
        torch.set_num_threads(1)

    wait([pool.submit(begin) for _ in range(count)])
    torch.set_num_threads(count)
    return pool


os.register_at_fork(after_in_child=_single_threads.cache_clear)  # a child has none of its parent's threads
