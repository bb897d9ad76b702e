r"""Two forms of the same EM arithmetic: through the Gram matrix, or through the vectors themselves.

Means lie in the span of the points, :math:`\mu_k = X^\top a_k`, so a step of EM needs only :math:`G = XX^\top`. That is
the cheaper form until the points are many: then G is larger than X, and the direct form keeps memory linear in N.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core.sphere import TINY

# A product with a handful of rows runs at a quarter of the rate of a square one (measured; see docs/performance.md).
THIN = 4
# Up to this many points a broadcast beats batched library calls on a CPU (measured likewise).
FEW_POINTS = 32

Points = Float[Tensor, "batch points dim"]
PerPoint = Float[Tensor, "batch components points"]
PerComponent = Float[Tensor, "batch components"]


@runtime_checkable
class Space(Protocol):
    """What EM asks of a batch of points."""

    def similarities(self, index: Int[Tensor, "batch components"]) -> PerPoint:
        """Inner products of chosen points with all points."""

    def resultant(self, shares: PerPoint) -> tuple[PerPoint, PerComponent]:
        """Inner products of each weighted sum of points with all points, and the sums' lengths."""

    def combine(self, coefficients: PerPoint) -> Float[Tensor, "batch components dim"]:
        """Weighted sums of points."""


class GramSpace:
    """All inner products made once; a step of EM costs N² K whatever the dimension."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._gram = _square(points)

    def similarities(self, index: Int[Tensor, "batch components"]) -> PerPoint:
        """Rows of the Gram matrix."""
        return self._gram.gather(1, index.unsqueeze(-1).expand(-1, -1, self._gram.shape[2]))

    def resultant(self, shares: PerPoint) -> tuple[PerPoint, PerComponent]:
        r""":math:`\gamma G` and :math:`\sqrt{\gamma G \gamma^\top}`."""
        pull = _thin_product(shares, self._gram)
        return pull, (shares * pull).sum(dim=-1).clamp_min(TINY**2).sqrt()

    def combine(self, coefficients: PerPoint) -> Float[Tensor, "batch components dim"]:
        r""":math:`a X`."""
        return coefficients @ self._points


def _square(points: Points) -> Float[Tensor, "batch points points"]:
    """`points @ points.mT`; for few points a CPU is faster with a transposed copy than with a transposed view."""
    few = points.device.type == "cpu" and points.shape[1] <= FEW_POINTS
    return points @ (points.mT.contiguous() if few else points.mT)


def _thin_product(shares: PerPoint, gram: Float[Tensor, "batch points points"]) -> PerPoint:
    """`shares @ gram`; for few points a CPU spends less on one broadcast than on one library call per item."""
    if gram.device.type == "cpu" and gram.shape[1] <= FEW_POINTS:
        return (gram.unsqueeze(1) * shares.unsqueeze(2)).sum(dim=-1)
    return shares @ gram


class DirectSpace:
    """Means kept as vectors; a step of EM costs 2 N K D and memory stays linear in N."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def similarities(self, index: Int[Tensor, "batch components"]) -> PerPoint:
        """Products of gathered points with all points."""
        chosen = self._points.gather(1, index.unsqueeze(-1).expand(-1, -1, self._points.shape[2]))
        return chosen @ self._points.mT

    def resultant(self, shares: PerPoint) -> tuple[PerPoint, PerComponent]:
        r""":math:`(\gamma X) X^\top` and :math:`\lVert \gamma X \rVert`."""
        sums = shares @ self._points
        return sums @ self._points.mT, sums.norm(dim=-1).clamp_min(TINY)

    def combine(self, coefficients: PerPoint) -> Float[Tensor, "batch components dim"]:
        r""":math:`a X`."""
        return coefficients @ self._points


def choose_space(points: Points, components: int, iterations: int) -> Callable[[Points], Space]:
    """The cheaper form for this shape: it depends on one item's size alone, never on the batch."""
    return GramSpace if gram_is_cheaper(points.shape[1], points.shape[2], components, iterations) else DirectSpace


def gram_is_cheaper(points: int, dim: int, components: int, iterations: int) -> bool:
    """Whether making G and stepping in it costs less than stepping through the vectors.

    The Gram form is taken for fewer than 2 D points at most, so its memory is linear in N as well.

    >>> gram_is_cheaper(256, 768, 3, 20), gram_is_cheaper(1024, 768, 3, 20)
    (True, False)
    """
    steps = THIN * components * iterations
    return points * (dim + steps) < 2 * steps * dim
