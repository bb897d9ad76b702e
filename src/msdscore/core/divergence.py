r"""Log ratios of densities, the primitive of both forms, and the paper's score made of them.

The log ratio of a point compares its density under a mixture with a reference: the mixture of its own item, or the mean
over a background. `log_ratio` computes it for the points of many pairs: `item_of[p]` and `mixture_of[p]` are the
indices of the item and of the mixture of pair p. An item with several pairs is compared with the reference once.

.. math::
    \text{coverage} = \sum_i c_i,\quad c_i = \tfrac{1}{N_{img}}(\log P_{img}(x_i) - \log P_{txt}(x_i)),\qquad
    \text{support} = \sum_j s_j,\quad s_j = \tfrac{1}{N_{txt}}(\log P_{txt}(y_j) - \log P_{img}(y_j))

    \text{MSD} = g - \alpha\,(\beta\,\text{coverage} + (1-\beta)\,\text{support}),\qquad
    \text{Soft-MSD} = (1-u)\,g + u\,\text{MSD}

The two directed divergences are stored as one term per point. Length gate, uncertainty and Soft-MSD work on columns,
one number per caption.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from msdscore.core.arrays import (
    Array,
    Float,
    Int,
    accumulation_dtype,
    astype,
    at_least,
    device_of,
    from_numpy,
    is_torch,
    logsumexp,
    masked,
    namespace,
    sigmoid,
    take_rows,
    to_numpy,
    torch_part,
)
from msdscore.core.embeddings import (
    Block,
    Embeddings,
    Indices,
    PerPoint,
    Rows,
    map_blocks,
    real_points,
    to_width,
    widen,
    widths,
)
from msdscore.core.mixture import ITEMS, FitSettings, Mixture, expected_log_density, fit, log_density

# Captions of an image that are compared in one product. The number is fixed, so that a product's shape, and with it the
# rounding of every row, is independent of the number of captions; eight cost little more than one.
SLOTS = 8

Fit = Callable[[Embeddings, FitSettings], Mixture]  # `fit_all`, or one that caches mixtures
OfPairs = Int[Array, " pairs"]  # the index of an item or of a mixture for every pair
PairTerms = Float[Array, "pairs points"]
PerCaption = Float[Array, " captions"]
CaptionFloats = Float[np.ndarray, " captions"]  # numbers of captions on the host


@dataclass(frozen=True, slots=True)
class Divergence:
    """Terms per patch and per token of every pair; their sum is the score, the terms are the explanation.

    The mixtures, one per image and one per text, are stored so that an explanation can attribute densities.
    """

    coverage_terms: Float[Array, "pairs patches"]
    support_terms: Float[Array, "pairs tokens"]
    image_mixtures: Mixture
    text_mixtures: Mixture

    @property
    def coverage(self) -> Float[Array, " pairs"]:
        """KL(image‖text): omissions of the caption."""
        return total(self.coverage_terms)

    @property
    def support(self) -> Float[Array, " pairs"]:
        """KL(text‖image): inventions of the caption."""
        return total(self.support_terms)


def diverge(
    images: Embeddings,
    texts: Embeddings,
    image_of: OfPairs,
    text_of: OfPairs,
    *,
    image_fit: FitSettings,
    text_fit: FitSettings,
    background: tuple[Mixture | None, Mixture | None] = (None, None),
) -> Divergence:
    """Fit the mixtures of both sides, and compute both divergences of every pair."""
    mixtures = fit_all(images, image_fit), fit_all(texts, text_fit)
    return compare_mixtures(images, texts, mixtures, image_of, text_of, background)


def compare_mixtures(
    images: Embeddings,
    texts: Embeddings,
    mixtures: tuple[Mixture, Mixture],
    image_of: OfPairs,
    text_of: OfPairs,
    background: tuple[Mixture | None, Mixture | None] = (None, None),
) -> Divergence:
    """Both divergences of every pair from the fitted `mixtures` of images and captions.

    With a `background` of images and of captions, the mean over it replaces the own mixture (see `mixture`).
    """
    of_images, of_texts = mixtures
    coverage = log_ratio(
        images, of_texts, item_of=image_of, mixture_of=text_of, own=of_images, background=background[1],
        compare=by_item,
    )  # fmt: skip
    support = log_ratio(texts, of_images, item_of=text_of, mixture_of=image_of, own=of_texts, background=background[0])
    return Divergence(_terms(coverage, images, image_of), _terms(support, texts, text_of), of_images, of_texts)


def _terms(ratios: PairTerms, side: Embeddings, item_of: OfPairs) -> PairTerms:
    """Terms of a mean over the real points of each pair, whose sum is the divergence."""
    size = at_least(namespace(ratios).sum(astype(side.mask, ratios.dtype), axis=1), 1)
    return -ratios / take_rows(size, item_of)[:, None]


def fit_all(side: Embeddings, settings: FitSettings) -> Mixture:
    """Fit one mixture per item of one side, block by block, or at once with the fused kernels."""
    xp = namespace(side.points)
    keys = xp.zeros(len(side), dtype=xp.int64, device=device_of(side.mask)) if side.keys is None else side.keys
    fused = _fused(side, settings.components)
    if fused is not None and side.points.shape[1] <= fused.MOST_POINTS:
        return fused.fit(side.points, side.mask, keys, settings)

    def fit_block(block: Block) -> Rows:
        # The block's width follows from its items, so an item takes the same path in every batch.
        fitted = fit if fused is None or block.width > fused.MOST_POINTS else fused.fit
        mixture = fitted(block.cut(side.points), block.cut(side.mask), block.rows(keys), settings)
        return block.items, (mixture.means, mixture.log_weights)

    memory = item_bytes(side, settings.components)
    means, log_weights = map_blocks(fit_block, widths(side.mask), memory, like=side.points)
    return Mixture(means, log_weights, settings.kappa)


def by_pair(side: Embeddings, mixtures: Mixture, reference: PerPoint, items: Indices, targets: Indices) -> PairTerms:
    """Compare the points of item `items[p]` with mixture `targets[p]`, pair by pair."""

    def compare(block: Block) -> Rows:
        own = Block(items[block.items], block.width, whole=False)
        mask = own.cut(side.mask)
        density = log_density(
            mixtures.take(from_numpy(targets[block.items], mixtures.means)), real_points(own.cut(side.points), mask)
        )
        ratios = masked(density - own.cut(reference), mask, 0.0)
        return block.items, (to_width(ratios, reference.shape[1]),)

    memory = item_bytes(side, mixtures.means.shape[1])
    return map_blocks(compare, widths(side.mask)[items], memory, like=side.points)[0]


def by_item(side: Embeddings, mixtures: Mixture, reference: PerPoint, items: Indices, targets: Indices) -> PairTerms:
    """`by_pair` for large items with several pairs each: points are read in place, never copied for each pair."""
    # The pairs of item i are order[first[i] : first[i] + count[i]].
    count, order = np.bincount(items, minlength=len(side)), np.argsort(items, kind="stable")
    first = np.cumsum(count) - count

    def compare(block: Block) -> Rows:
        largest = np.argsort(-count[block.items], kind="stable")
        if (largest[1:] < largest[:-1]).any():
            block = Block(block.items[largest], block.width, whole=False)
        mask, expected = block.cut(side.mask), block.cut(reference)
        solid = real_points(block.cut(side.points), mask)
        numbers, rows = list[Indices](), list[Array]()
        for pairs in _rounds(order, first[block.items], count[block.items]):
            item, slot = np.nonzero(pairs >= 0)
            density = _by_slot(mixtures, targets[np.maximum(pairs, 0)], solid[: len(pairs), ...])
            chosen = from_numpy(item * SLOTS + slot, density)
            item = from_numpy(item, density)
            ratios = take_rows(density, chosen) - take_rows(expected, item)
            numbers.append(pairs[pairs >= 0])
            rows.append(to_width(masked(ratios, take_rows(mask, item), 0.0), reference.shape[1]))
        if not rows:
            return np.zeros(0, np.int64), (reference[:0, :],)
        return np.concatenate(numbers), (namespace(solid).concat(rows) if len(rows) > 1 else rows[0],)

    memory = item_bytes(side, mixtures.means.shape[1])
    return map_blocks(compare, widths(side.mask), memory, like=side.points)[0]


def log_ratio(
    side: Embeddings,
    mixtures: Mixture,
    *,
    item_of: OfPairs,
    mixture_of: OfPairs,
    own: Mixture | None = None,
    background: Mixture | None = None,
    compare: Callable[[Embeddings, Mixture, PerPoint, Indices, Indices], PairTerms] = by_pair,
) -> PairTerms:
    r"""Log density of every point of a pair's item under the pair's mixture, minus the reference; zero for padding.

    The reference is the mean over a `background`, or the density under the `own` mixture of the item. `compare` is
    `by_pair` or `by_item`, which differ in speed; fused kernels compare faster than both.
    """
    fused = _fused(side, mixtures, background if own is None else own)
    if fused is not None:
        # Both densities together, but the mean over a background once per item beforehand.
        expected = None if background is None else reference_density(side, own, background)
        return fused.log_ratio(
            side.points, side.mask, mixtures, source=item_of, target=mixture_of, own=own, expected=expected
        )
    reference = reference_density(side, own, background)
    items, targets = to_numpy(item_of), to_numpy(mixture_of)
    return compare(side, mixtures, reference, items, targets) if len(items) else reference[:0, :]


def reference_density(side: Embeddings, own: Mixture | None, background: Mixture | None) -> PerPoint:
    """Reference log density of each point: the mean over the background, or that of the own mixture."""
    reference = own if background is None else background
    assert reference is not None, "a ratio has a reference"
    fused = None if background is None else _fused(side, background)
    if fused is not None:
        return fused.expected(side.points, side.mask, background)

    def compute(block: Block) -> Rows:
        solid = real_points(block.cut(side.points), block.cut(side.mask))
        if background is None:
            means, log_weights = block.rows(reference.means), block.rows(reference.log_weights)
            densities = log_density(Mixture(means, log_weights, reference.kappa), solid)
        else:
            densities = expected_log_density(background, solid)
        return block.items, (to_width(densities, side.mask.shape[1]),)

    memory = item_bytes(side, reference.means.shape[1], background)
    return map_blocks(compute, widths(side.mask), memory, like=side.points)[0]


def _fused(side: Embeddings, *mixtures: int | Mixture | None) -> ModuleType | None:
    """The fused kernels if they support these points and mixtures (by size or kind), else None."""
    if not is_torch(side.points):
        return None
    fused: ModuleType = torch_part("gpu.fused")
    return fused if fused.serves(side.points, *(item for item in mixtures if item is not None)) else None


def _by_slot(
    mixtures: Mixture, chosen: Int[np.ndarray, "items slots"], solid: Float[Array, "items points dim"]
) -> Float[Array, "pairs points"]:
    """log P of an item's points under each of its mixtures, all in one product per item."""
    xp, (items, slots), (_, points, dim) = namespace(solid), chosen.shape, solid.shape
    taken = mixtures.take(from_numpy(chosen.reshape(-1), solid))
    cosines = xp.reshape(taken.means, (items, -1, dim)) @ solid.mT
    components = mixtures.means.shape[1]
    logits = mixtures.kappa * xp.reshape(cosines, (items * slots, components, points)) + taken.log_weights[..., None]
    return logsumexp(logits, axis=1)


def _rounds(
    order: Int[np.ndarray, " pairs"], first: Indices, count: Indices
) -> Iterator[Int[np.ndarray, "open slots"]]:
    """Pairs of items, which are sorted by descending number of pairs, SLOTS of each item at a time.

    A round has one row per item with further pairs; −1 fills its last row.
    """
    for start in range(0, int(count.max()) if len(count) else 0, SLOTS):
        more = int((count > start).sum())
        turn = np.arange(start, start + SLOTS)
        position = np.minimum(first[:more, None] + turn, len(order) - 1)
        yield np.where(turn < count[:more, None], order[position], -1)


def item_bytes(side: Embeddings, components: int, background: Mixture | None = None) -> Callable[[int], int]:
    """The memory for fitting and comparing one item of a width."""
    dim, wide = side.points.shape[2], 8 if accumulation_dtype(side.points) == namespace(side.points).float64 else 4
    # Peak memory of `expected_log_density` in numbers per point: logits, and their exponentials.
    bank = 0 if background is None else 3 * min(len(background), ITEMS) * background.means.shape[1]
    return lambda width: wide * width * (2 * dim + min(width, 2 * dim) + 8 * components + bank)


def total(terms: PerPoint) -> Float[Array, " batch"]:
    """The sum of each row, computed by adding halves of the row.

    A library's sum may use another order for another batch or device. Here the order is fixed: the width is a power
    of two, and a wider row only adds zeros, so equal terms have the same sum, bit for bit, in any batch and on any
    device.

    >>> total(np.array([[1.0, 2.0, 4.0]])).tolist()
    [7.0]
    """
    rest = widen(terms, 1 << max(terms.shape[1] - 1, 0).bit_length())
    while rest.shape[1] > 1:
        half = rest.shape[1] // 2
        rest = rest[:, :half] + rest[:, half:]
    return rest[:, 0]


def length_gate(lengths: PerCaption, *, center: float, width: float) -> PerCaption:
    r"""Weight of coverage against support, :math:`\beta(L) = \sigma((L_0 - L)/\tau_L)`.

    >>> length_gate(np.array([20.0]), center=20.0, width=3.0).tolist()
    [0.5]
    """
    return sigmoid((center - lengths) / width)


def soften(
    similarity: CaptionFloats, msd: CaptionFloats, group: Int[np.ndarray, " captions"], *, temperature: float
) -> tuple[CaptionFloats, CaptionFloats]:
    r"""Uncertainty :math:`u` of every caption's candidate set, and Soft-MSD :math:`(1-u)\,g + u\,\text{MSD}`.

    >>> soften(np.array([0.3]), np.array([0.1]), np.array([0]), temperature=0.2)
    (array([1.]), array([0.1]))
    """
    uncertainty = set_uncertainty(similarity, group, temperature=temperature)
    return uncertainty, (1 - uncertainty) * similarity + uncertainty * msd


def set_uncertainty(
    similarity: CaptionFloats, group: Int[np.ndarray, " captions"], *, temperature: float
) -> CaptionFloats:
    r"""Uncertainty of a candidate set: how little its similarities separate the captions, one number per set.

    .. math:: u = \frac{M}{M-1}\,(1 - \max_j \operatorname{softmax}(g/\xi)_j),\quad u = 1 \text{ for } M = 1

    clamped to [0, 1]. Sums run over each set in ascending order of similarity, so the order of rows changes nothing.

    >>> set_uncertainty(np.array([0.2, 0.2, 0.9]), np.array([0, 0, 1]), temperature=0.2).tolist()
    [1.0, 1.0, 1.0]
    """
    _, member, size = np.unique(group, return_inverse=True, return_counts=True)
    scaled = similarity / temperature
    top = np.full(len(size), -np.inf)
    with np.errstate(invalid="ignore"):  # NaN for captions without an image
        np.maximum.at(top, member, scaled)
    rising = np.argsort(scaled, kind="stable")
    parts = np.exp(scaled - top[member])[rising]
    sums = np.bincount(member[rising], weights=parts, minlength=len(size))
    # The largest member's share of the softmax is exp(0) / sum.
    spread = size / np.maximum(size - 1, 1) * (1 - 1 / sums)
    return np.where(size > 1, np.clip(spread, 0, 1), 1.0)[member]
