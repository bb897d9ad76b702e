r"""Mixtures of von Mises–Fisher distributions with one fixed concentration, fitted by EM.

.. math:: \log P(x) = \operatorname{logsumexp}_k (\log\pi_k + \kappa\,\mu_k^\top x)

The normaliser is the same for every component and cancels in every divergence, so it is left out.

Components start from points that are drawn by key, or farthest first; an item has the same ones in every batch.
EM runs in one of two forms of the same arithmetic. Means are in the span of the points, :math:`\mu_k = X^\top a_k`, so
a step needs only :math:`G = XX^\top`. That is the cheaper form unless there are many points: then G is larger than X,
and the direct form has memory linear in N.

Calibration compares a density with its mean over a bank of background items. Part of a divergence depends only on the
caption, through its length and its words; the mean over fixed background images removes that part:

.. math:: s_j - \overline{s_j} = \tfrac{1}{N_{txt}}\Bigl(\tfrac{1}{B}\sum_b \log P_b(y_j) - \log P_{img}(y_j)\Bigr)

The text's density cancels, the terms still add up to the score, and a wrong image scores zero on average.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from msdscore.core.arrays import (
    Array,
    Bool,
    Device,
    Float,
    Int,
    astype,
    at_least,
    device_of,
    gather,
    is_torch,
    logsumexp,
    masked,
    namespace,
    on_cpu,
    on_device,
    softmax,
    take_rows,
    to_numpy,
)
from msdscore.core.embeddings import TINY, Mask, PerPoint, Points, length, real_points

Init = Literal["sample", "spread"]

# A component with less than this mass of points is dead (paper, EM details).
DEAD_MASS = 1e-6
# A product with a handful of rows runs at a quarter of the rate of a square one (measured; see docs/performance.md).
THIN = 4
# Up to this many points a broadcast beats batched library calls on a CPU (measured likewise).
BROADCAST_POINTS = 32
# Background items in one product: the number is fixed, so that the size of a block does not change the rounding.
ITEMS = 128
# Similarities closer than this are a tie, and the smaller index wins: devices must not differ by rounding.
NEAR_TIE = 1e-4

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, splitmix64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

Shares = Float[Array, "batch components points"]  # of points in components, or products with them
PerComponent = Float[Array, "batch components"]
Means = Float[Array, "batch components dim"]
PointIndices = Int[Array, "batch components"]  # indices of points
Keys = Int[Array, " batch"]  # computed from each item's content
# Indices of points: the first half starts the components, the second half is the reserve from which a dead component
# is restarted. With fewer points than seeds the list repeats from the start.
Seeds = Int[Array, "batch seeds"]
# Similarities of one chosen point per item to all points of that item.
Similarities = Callable[[Int[Array, "batch 1"]], Float[Array, "batch 1 points"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How one side's mixture is fitted; defaults are the paper's except for the start, which is deterministic here."""

    components: int
    kappa: float = 20.0
    iterations: int = 20
    init: Init = "spread"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Mixture:
    """A batch of fitted mixtures; means are unit vectors, weights are logarithms."""

    means: Means
    log_weights: PerComponent
    kappa: float

    def __len__(self) -> int:
        return self.means.shape[0]

    def take(self, index: Int[Array, " items"]) -> "Mixture":
        """Select mixtures of the batch."""
        return Mixture(take_rows(self.means, index), take_rows(self.log_weights, index), self.kappa)

    def part(self, start: int, end: int) -> "Mixture":
        """Consecutive mixtures of the batch, without a copy."""
        return Mixture(self.means[start:end, ...], self.log_weights[start:end, ...], self.kappa)

    def on(self, device: Device) -> "Mixture":
        """The mixtures on a device: "cpu" for NumPy, or a device of torch."""
        means, log_weights = (on_device(to_numpy(own), device) for own in (self.means, self.log_weights))
        return Mixture(means, log_weights, self.kappa)


class GramSpace:
    """All inner products computed once; a step of EM costs N² K whatever the dimension."""

    def __init__(self, points: Points) -> None:
        # For few points torch on a CPU is faster with a transposed copy than with a transposed view.
        self._few = is_torch(points) and on_cpu(points) and points.shape[1] <= BROADCAST_POINTS
        self._gram = points @ (points.mT.contiguous() if self._few else points.mT)

    def similarities(self, index: PointIndices) -> Shares:
        """Inner products of chosen points with all points: rows of the Gram matrix."""
        return gather(self._gram, index)

    def resultant(self, shares: Shares) -> tuple[Shares, PerComponent]:
        r"""Products of each weighted sum with all points, :math:`\gamma G`, and the sums' lengths."""
        xp = namespace(shares)
        # For few points torch on a CPU spends less on one broadcast than on one library call per item.
        pull = xp.sum(self._gram[:, None, ...] * shares[:, :, None, :], axis=-1) if self._few else shares @ self._gram
        return pull, xp.sqrt(at_least(xp.sum(shares * pull, axis=-1), TINY**2))


class DirectSpace:
    """Means stored as vectors; a step of EM costs 2 N K D and memory is linear in N."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def similarities(self, index: PointIndices) -> Shares:
        """Products of gathered points with all points."""
        return gather(self._points, index) @ self._points.mT

    def resultant(self, shares: Shares) -> tuple[Shares, PerComponent]:
        r""":math:`(\gamma X) X^\top` and :math:`\lVert \gamma X \rVert`."""
        sums = shares @ self._points
        return sums @ self._points.mT, at_least(length(sums), TINY)


Space = GramSpace | DirectSpace  # operations of EM on a batch of points


def gram_is_cheaper(points: int, dim: int, components: int, iterations: int) -> bool:
    """Whether computing G and stepping in it costs less than stepping through the vectors.

    It depends only on one item's size, never on the batch. The Gram form is used for fewer than 2 D points, so its
    memory is linear in N as well.

    >>> gram_is_cheaper(256, 768, 3, 20), gram_is_cheaper(1024, 768, 3, 20)
    (True, False)
    """
    steps = THIN * components * iterations
    return points * (dim + steps) < 2 * steps * dim


def start_points(similarities: Similarities, mask: Mask, keys: Keys, settings: FitSettings) -> Seeds:
    """Two point indices per component of every item, drawn by key (`sample`) or farthest first (`spread`)."""
    if settings.init == "sample":
        return sample(mask, keys, seed=settings.seed, components=settings.components)
    return spread(similarities, mask, count=2 * settings.components)


def sample(mask: Mask, keys: Keys, *, seed: int, components: int) -> Seeds:
    """Draw starts without replacement, or with it if there are fewer points than components, as in the paper.

    The reserve is drawn with replacement. Draws depend only on (seed, key, index of the point) and use integers only,
    so neither device nor dtype nor padding nor the rest of the batch can change them.

    >>> import numpy as np
    >>> sample(np.array([[True, True, True, False]]), np.array([7]), seed=0, components=2).tolist()
    [[2, 1, 1, 1]]
    """
    xp, device = namespace(mask), device_of(mask)
    seeded = _mix(astype(keys, xp.int64) ^ _mix(xp.full(keys.shape, seed, dtype=xp.int64, device=device)))[:, None]
    priority = _mix(seeded + xp.arange(mask.shape[1], dtype=xp.int64, device=device) * _GOLDEN)
    order = xp.argsort(xp.where(mask, priority, xp.iinfo(xp.int64).max), axis=1, stable=True)
    draw = xp.arange(2 * components, dtype=xp.int64, device=device)
    real = _count(mask)
    # Negative numbers, which no point has: these draws are independent of the order.
    replaced = _shift(_mix(seeded - (draw + 1) * _GOLDEN), 1) % real
    return gather(order, xp.where((draw < components) & (real >= components), draw, replaced))


def spread(similarities: Similarities, mask: Mask, *, count: int) -> Seeds:
    """Farthest first: the first real point, then in each step the point least similar to all chosen ones."""
    xp, distinct = namespace(mask), min(count, mask.shape[1])

    def first(flags: Bool[Array, "batch points"]) -> Int[Array, "batch 1"]:
        return xp.argmax(astype(flags, xp.uint8), axis=1, keepdims=True)

    chosen = [first(mask)]
    nearest = similarities(chosen[0])[:, 0, :]
    for _ in range(distinct - 1):
        # The first point whose similarity to its nearest chosen one is smallest, up to near-ties.
        open_points = masked(nearest, mask, math.inf)
        lowest = xp.min(open_points, axis=1, keepdims=True)
        chosen.append(first(open_points <= lowest + NEAR_TIE))
        nearest = xp.maximum(nearest, similarities(chosen[-1])[:, 0, :])
    # The list repeats after the last real point.
    real = xp.minimum(_count(mask), distinct)
    return gather(xp.concat(chosen, axis=1), xp.arange(count, dtype=xp.int64, device=device_of(mask))[None, :] % real)


def _count(mask: Mask) -> Int[Array, "batch 1"]:
    """The number of real points of every item, at least 1."""
    xp = namespace(mask)
    return at_least(xp.sum(astype(mask, xp.int64), axis=1, keepdims=True), 1)


def _mix(number: Int[Array, "..."]) -> Int[Array, "..."]:
    """splitmix64's finaliser: 64-bit integers in, well mixed 64-bit integers out."""
    number = number + _GOLDEN
    number = (number ^ _shift(number, 30)) * _MIX_1
    number = (number ^ _shift(number, 27)) * _MIX_2
    return number ^ _shift(number, 31)


def _shift(number: Int[Array, "..."], bits: int) -> Int[Array, "..."]:
    """Logical shift to the right: that of signed numbers copies the sign bit."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def fit(
    points: Points, mask: Mask, keys: Keys, settings: FitSettings, *, space: Callable[[Points], Space] | None = None
) -> Mixture:
    """Fit one mixture to the real points of every item, by Algorithm 1 of the paper.

    `init="sample"` draws by the keys. `space` forces one of the two forms of the same arithmetic; the default is the
    cheaper one. Rows are components, columns are points.
    """
    solid = real_points(points, mask)
    xp, size = namespace(solid), astype(_count(mask), solid.dtype)
    cheaper = (
        GramSpace
        if gram_is_cheaper(solid.shape[1], solid.shape[2], settings.components, settings.iterations)
        else DirectSpace
    )
    form = (space or cheaper)(solid)
    seeds = start_points(form.similarities, mask, keys, settings)
    first, reserve = seeds[:, : settings.components], seeds[:, settings.components :]
    pull, spare = form.similarities(first), form.similarities(reserve)
    real = astype(mask[:, None, :], solid.dtype)
    log_weights = xp.full_like(pull[:, :, 0], -math.log(settings.components))
    shares, norms = _one_hot(first, pull), xp.ones_like(log_weights)
    dead = xp.zeros_like(log_weights, dtype=xp.bool)
    for _ in range(settings.iterations):
        # pull / norms are the cosines of points and means: kappa times them and the weights are the logits.
        shares = softmax(log_weights[..., None] + pull * (settings.kappa / norms)[..., None], axis=1) * real
        mass = xp.sum(shares, axis=-1)
        pull, norms = form.resultant(shares)
        dead = mass < DEAD_MASS
        # Dead components are rare: checking first saves a pass on a CPU, but on a GPU the host would wait for it.
        if not on_cpu(dead) or xp.any(dead):
            pull, norms, mass = (
                xp.where(dead[..., None], spare, pull),
                xp.where(dead, 1.0, norms),
                xp.where(dead, 1.0, mass),
            )
        weights = mass / size
        log_weights = xp.log(weights / xp.sum(weights, axis=1, keepdims=True))
    coefficients = xp.where(dead[..., None], _one_hot(reserve, pull), shares / norms[..., None])
    return Mixture(coefficients @ solid, log_weights, settings.kappa)


def _one_hot(index: PointIndices, like: Shares) -> Shares:
    points = namespace(like).arange(like.shape[-1], device=device_of(like))
    return astype(index[..., None] == points, like.dtype)


def log_density(mixture: Mixture, points: Points) -> PerPoint:
    """log P of any points under the mixture of the same item, without the shared normaliser."""
    cosines = mixture.means @ astype(points, mixture.means.dtype).mT
    return logsumexp(mixture.kappa * cosines + mixture.log_weights[..., None], axis=1)


def expected_log_density(background: Mixture, points: Points) -> PerPoint:
    """Mean over all background items of log P of each point, in the points' dtype.

    A background in half precision is converted a few items at a time.
    """
    xp = namespace(points)
    blocks = (background.part(start, min(start + ITEMS, len(background))) for start in range(0, len(background), ITEMS))
    parts = [xp.sum(log_densities(block, points), axis=1) for block in blocks]
    return sum(parts[1:], start=parts[0]) / len(background)


def log_densities(background: Mixture, points: Points) -> Float[Array, "batch items points"]:
    """log P of each point under every background item."""
    xp, (items, components, dim) = namespace(points), background.means.shape
    # One product per item of the batch, so that the batch size cannot change the rounding.
    means = xp.reshape(astype(background.means, points.dtype), (1, items * components, dim))
    log_weights = xp.reshape(astype(background.log_weights, points.dtype), (1, items * components, 1))
    means = xp.broadcast_to(means, (points.shape[0], *means.shape[1:]))
    logits = background.kappa * (means @ points.mT) + log_weights
    return logsumexp(xp.reshape(logits, (points.shape[0], items, components, points.shape[1])), axis=2)
