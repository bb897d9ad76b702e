"""Which component of a fitted mixture holds which token, and how surely."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from msdscore.benchmarks.base import Item, clusters
from msdscore.core.mixture import Kind
from msdscore.core.schedule import PointSet, fit_all
from msdscore.core.sphere import real_points
from msdscore.core.variants.families import FAMILIES
from msdscore.errors import InputError
from msdscore.scoring.comparison import fit_settings
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.embedded import Embedded

Shares = Float[Tensor, "batch components points"]


@dataclass(frozen=True, slots=True)
class NamedCaption:
    """A distinct caption, with the picture it belongs to."""

    text: str
    picture: str


def distinct_captions(items: Sequence[Item], limit: int | None) -> list[NamedCaption]:
    """Every caption of a benchmark once, spread evenly where there are more than `limit`."""
    found: dict[str, NamedCaption] = {}
    for item, name in zip(items, clusters(items).tolist(), strict=True):
        for text in item.captions:
            found.setdefault(text, NamedCaption(text, name))
    if not found:
        raise InputError("expected a benchmark with captions, got none")
    every = list(found.values())
    return every if limit is None else [every[place * len(every) // limit] for place in range(min(limit, len(every)))]


def text_shares(texts: Embedded, config: MSDConfig) -> tuple[Shares, Bool[Tensor, "batch points"]]:
    """Responsibilities of the components of each caption's mixture for its tokens, and which tokens are real."""
    vectors = texts.vectors
    keys = torch.tensor(texts.keys, dtype=torch.int64, device=vectors.points.device)
    points = lifted(real_points(vectors.points, vectors.mask), config.mixture)
    mixture = fit_all(PointSet(points, vectors.mask, keys), fit_settings(config, config.components[1]))
    logits = mixture.kappa * (mixture.means @ points.to(mixture.means.dtype).mT) + mixture.log_weights.unsqueeze(-1)
    return logits.softmax(dim=1), vectors.mask


def lifted(points: Float[Tensor, "batch points dim"], kind: Kind) -> Float[Tensor, "batch points features"]:
    """The features of points under a kind of mixture: the points themselves for the fixed concentration."""
    return points if kind == "vmf" else FAMILIES[kind].lift(points.double())


def entropies(shares: Shares, mask: Bool[Tensor, "batch points"]) -> Float[Tensor, " batch"]:
    r"""The mean entropy :math:`-\sum_k r_{nk}\log r_{nk}` of each caption's tokens, in nats.

    >>> halves = torch.full((1, 2, 3), 0.5)
    >>> entropies(halves, torch.ones(1, 3, dtype=torch.bool)).exp()
    tensor([2.])
    """
    each = -torch.special.xlogy(shares, shares).sum(dim=1).masked_fill(~mask, 0.0)
    return each.sum(dim=1) / mask.sum(dim=1).clamp_min(1)
