r"""Mixtures of von Mises–Fisher distributions with one fixed concentration, fitted by EM.

.. math:: \log P(x) = \operatorname{logsumexp}_k (\log\pi_k + \kappa\,\mu_k^\top x)

The normaliser is the same for every component and cancels in every divergence, so it is left out.

Components start from points that are drawn by key, or farthest first; an item has the same ones in every batch.
EM runs in one of two forms of the same arithmetic. Means are in the span of the points, :math:`\mu_k = X^\top a_k`, so
a step needs only :math:`G = XX^\top`. That is the cheaper form unless there are many points: then G is larger than X,
and the direct form has memory linear in N.

Calibration compares a density with its mean over a bank of background items. Part of a divergence depends only on the
caption, through its length and its words; the mean over fixed background images removes that part:

.. math:: s_j - \overline{s_j} = \tfrac{1}{M}\Bigl(\tfrac{1}{B}\sum_b \log P_b(y_j) - \log P_{img}(y_j)\Bigr)

The text's density cancels, the terms still add up to the score, and a wrong image scores zero on average.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core.embeddings import TINY, Mask, PerPoint, Points, real_points

# Component families; all but the first are in `variants`.
Kind = Literal["vmf", "vmf-adaptive", "gaussian", "gaussian-diagonal", "gaussian-shrunk"]
Init = Literal["sample", "spread"]

# A component with less than this mass of points is dead (paper, EM details).
DEAD_MASS = 1e-6
# A product with a handful of rows runs at a quarter of the rate of a square one (measured; see docs/performance.md).
THIN = 4
# Up to this many points a broadcast beats batched library calls on a CPU (measured likewise).
FEW_POINTS = 32
# Background items in one product: the number is fixed, so that the size of a block does not change the rounding.
ITEMS = 128
# Similarities closer than this are a tie, and the smaller index wins: devices must not differ by rounding.
NEAR_TIE = 1e-4

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, splitmix64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

Shares = Float[Tensor, "batch components points"]  # of points in components, or products with them
PerComponent = Float[Tensor, "batch components"]
Means = Float[Tensor, "batch components dim"]
Indices = Int[Tensor, "batch components"]  # indices of points
Keys = Int[Tensor, " batch"]  # computed from each item's content
# Indices of points: the first half starts the components, the second half is the reserve from which a dead component
# is restarted. With fewer points than seeds the list repeats from the start.
Seeds = Int[Tensor, "batch seeds"]
# Similarities of one chosen point per item to all points of that item.
Similarities = Callable[[Int[Tensor, "batch 1"]], Float[Tensor, "batch 1 points"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """How one side's mixture is fitted; defaults are the paper's except for the start, which is deterministic here."""

    components: int
    kappa: float = 20.0
    iterations: int = 20
    init: Init = "spread"
    seed: int = 0
    mixture: Kind = "vmf"


@dataclass(frozen=True, slots=True)
class Mixture:
    """A batch of fitted mixtures; means are unit vectors, weights are logarithms."""

    means: Means
    log_weights: PerComponent
    kappa: float

    def __len__(self) -> int:
        return self.means.shape[0]

    def take(self, index: Int[Tensor, " items"] | slice) -> "Mixture":
        """Select mixtures of the batch."""
        return Mixture(self.means[index], self.log_weights[index], self.kappa)

    def to(self, device: torch.device | str) -> "Mixture":
        """Move the mixtures to a device."""
        return Mixture(self.means.to(device), self.log_weights.to(device), self.kappa)


class GramSpace:
    """All inner products computed once; a step of EM costs N² K whatever the dimension."""

    def __init__(self, points: Points) -> None:
        # For few points a CPU is faster with a transposed copy than with a transposed view.
        self._few = points.device.type == "cpu" and points.shape[1] <= FEW_POINTS
        self._gram = points @ (points.mT.contiguous() if self._few else points.mT)

    def similarities(self, index: Indices) -> Shares:
        """Inner products of chosen points with all points: rows of the Gram matrix."""
        return self._gram.gather(1, index.unsqueeze(-1).expand(-1, -1, self._gram.shape[2]))

    def resultant(self, shares: Shares) -> tuple[Shares, PerComponent]:
        r"""Products of each weighted sum with all points, :math:`\gamma G`, and the sums' lengths."""
        # For few points a CPU spends less on one broadcast than on one library call per item.
        pull = (self._gram.unsqueeze(1) * shares.unsqueeze(2)).sum(dim=-1) if self._few else shares @ self._gram
        return pull, (shares * pull).sum(dim=-1).clamp_min(TINY**2).sqrt()


class DirectSpace:
    """Means stored as vectors; a step of EM costs 2 N K D and memory is linear in N."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def similarities(self, index: Indices) -> Shares:
        """Products of gathered points with all points."""
        chosen = self._points.gather(1, index.unsqueeze(-1).expand(-1, -1, self._points.shape[2]))
        return chosen @ self._points.mT

    def resultant(self, shares: Shares) -> tuple[Shares, PerComponent]:
        r""":math:`(\gamma X) X^\top` and :math:`\lVert \gamma X \rVert`."""
        sums = shares @ self._points
        return sums @ self._points.mT, sums.norm(dim=-1).clamp_min(TINY)


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

    >>> sample(torch.tensor([[True, True, True, False]]), torch.tensor([7]), seed=0, components=2)
    tensor([[2, 1, 1, 1]])
    """
    numbers = torch.arange(mask.shape[1], device=mask.device)
    seeded = _mix(keys.to(torch.int64) ^ _mix(torch.full_like(keys, seed, dtype=torch.int64))).unsqueeze(1)
    priority = _mix(seeded + numbers * _GOLDEN)
    order = priority.masked_fill(~mask, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
    draw = torch.arange(2 * components, device=mask.device)
    real = mask.sum(dim=1, keepdim=True).clamp_min(1)
    # Negative numbers, which no point has: these draws are independent of the order.
    replaced = _shift(_mix(seeded - (draw + 1) * _GOLDEN), 1) % real
    return order.gather(1, torch.where((draw < components) & (real >= components), draw, replaced))


def spread(similarities: Similarities, mask: Mask, *, count: int) -> Seeds:
    """Farthest first: the first real point, then in each step the point least similar to all chosen ones."""
    distinct = min(count, mask.shape[1])
    chosen = [mask.to(torch.uint8).argmax(dim=1, keepdim=True)]
    nearest = similarities(chosen[0]).squeeze(1)
    for _ in range(distinct - 1):
        # The first point whose similarity to its nearest chosen one is smallest, up to near-ties.
        open_points = nearest.masked_fill(~mask, torch.inf)
        lowest = open_points.amin(dim=1, keepdim=True)
        chosen.append((open_points <= lowest + NEAR_TIE).to(torch.uint8).argmax(dim=1, keepdim=True))
        nearest = torch.maximum(nearest, similarities(chosen[-1]).squeeze(1))
    # The list repeats after the last real point.
    real = mask.sum(dim=1, keepdim=True).clamp(min=1, max=distinct)
    return torch.cat(chosen, dim=1).gather(1, torch.arange(count, device=mask.device).unsqueeze(0) % real)


def _mix(number: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """splitmix64's finaliser: 64-bit integers in, well mixed 64-bit integers out."""
    number = number + _GOLDEN
    number = (number ^ _shift(number, 30)) * _MIX_1
    number = (number ^ _shift(number, 27)) * _MIX_2
    return number ^ _shift(number, 31)


def _shift(number: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Logical shift to the right: torch's shift copies the sign bit."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def fit(
    points: Points, mask: Mask, keys: Keys, settings: FitSettings, *, space: Callable[[Points], Space] | None = None
) -> Mixture:
    """Fit one mixture to the real points of every item, by Algorithm 1 of the paper.

    `init="sample"` draws by the keys. `space` forces one of the two forms of the same arithmetic; the default is the
    cheaper one. Rows are components, columns are points.
    """
    solid = real_points(points, mask)
    cheaper = (
        GramSpace
        if gram_is_cheaper(solid.shape[1], solid.shape[2], settings.components, settings.iterations)
        else DirectSpace
    )
    form = (space or cheaper)(solid)
    first, reserve = start_points(form.similarities, mask, keys, settings).chunk(2, dim=1)
    pull, spare = form.similarities(first), form.similarities(reserve)
    real = mask.unsqueeze(1).to(pull.dtype)
    size = mask.sum(dim=1).clamp_min(1).unsqueeze(1).to(pull.dtype)
    log_weights = torch.full_like(pull[:, :, 0], -math.log(settings.components))
    shares, length = _one_hot(first, pull), torch.ones_like(log_weights)
    dead = torch.zeros_like(log_weights, dtype=torch.bool)
    for _ in range(settings.iterations):
        # pull / length are the cosines of points and means: kappa times them and the weights are the logits.
        sharpness = (settings.kappa / length).unsqueeze(-1)
        shares = torch.addcmul(log_weights.unsqueeze(-1), pull, sharpness).softmax(dim=1) * real
        mass = shares.sum(dim=-1)
        pull, length = form.resultant(shares)
        dead = mass < DEAD_MASS
        pull, length = _revive(dead, spare, pull), torch.where(dead, 1.0, length)
        weights = torch.where(dead, 1.0, mass) / size
        log_weights = (weights / weights.sum(dim=1, keepdim=True)).log()
    coefficients = _revive(dead, _one_hot(reserve, pull), shares / length.unsqueeze(-1))
    return Mixture(coefficients @ solid, log_weights, settings.kappa)


def _revive(dead: Bool[Tensor, "batch components"], spare: Shares, living: Shares) -> Shares:
    """Rows of the reserve for dead components, the current rows for the others."""
    # Dead components are rare: checking first saves a pass on a CPU, but on a GPU the host would wait for the device.
    if dead.device.type == "cpu" and not dead.any():
        return living
    return torch.where(dead.unsqueeze(-1), spare, living)


def _one_hot(index: Indices, like: Shares) -> Shares:
    return torch.zeros_like(like).scatter_(2, index.unsqueeze(-1), 1.0)


def log_density(mixture: Mixture, points: Points) -> PerPoint:
    """log P of any points under the mixture of the same item, without the shared normaliser."""
    cosines = mixture.means @ points.to(mixture.means.dtype).mT
    return (mixture.kappa * cosines + mixture.log_weights.unsqueeze(-1)).logsumexp(dim=1)


def expected_log_density(background: Mixture, points: Points) -> PerPoint:
    """Mean over all background items of log P of each point, in the points' dtype.

    A background in half precision is converted a few items at a time.
    """
    parts = [log_densities(part, points).sum(dim=1) for part in _parts(background)]
    return sum(parts[1:], start=parts[0]) / len(background)


def log_density_spread(background: Mixture, points: Points) -> PerPoint:
    """Standard deviation of log P of each point over all background items, in the points' dtype."""
    return torch.cat([log_densities(part, points) for part in _parts(background)], dim=1).std(dim=1, correction=0)


def _parts(background: Mixture) -> list[Mixture]:
    return [background.take(slice(start, start + ITEMS)) for start in range(0, len(background), ITEMS)]


def log_densities(background: Mixture, points: Points) -> Float[Tensor, "batch items points"]:
    """log P of each point under every background item."""
    items, components, dim = background.means.shape
    # One product per item of the batch, so that the batch size cannot change the rounding.
    means = background.means.to(points.dtype).reshape(1, items * components, dim).expand(len(points), -1, -1)
    log_weights = background.log_weights.to(points.dtype).reshape(1, items * components, 1)
    logits = background.kappa * (means @ points.mT) + log_weights
    return logits.unflatten(1, (items, components)).logsumexp(dim=2)
