"""Several sets of heads read as one: their spaces side by side, so that every similarity is the mean of theirs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from msdscore.core.sphere import masked_mean, real_points, unit
from msdscore.encoders.aligned.heads import AlignedHeads, HeadStates
from msdscore.encoders.aligned.towers.base import Features, Points


class JoinedHeads(nn.Module):
    """Heads that were trained apart, on one text tower and one image tower.

    Where the image tower has a branch for each of them, its features lie side by side, and each reads its own part.
    """

    def __init__(self, members: Sequence[AlignedHeads], *, branches: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._branches = branches

    def image_states(self, features: Features) -> HeadStates:
        """Patches of any length and pooled unit vectors of pictures."""
        parts = split_features(features, len(self.members)) if self._branches else [features] * len(self.members)
        found = [heads.image_states(part) for heads, part in zip(self._heads(), parts, strict=True)]
        return join_states(found, features.local.mask)

    def text_states(self, features: Features) -> HeadStates:
        """Tokens of any length and pooled unit vectors of captions."""
        return join_states([heads.text_states(features) for heads in self._heads()], features.local.mask)

    def _heads(self) -> Iterator[AlignedHeads]:
        for member in self.members:
            assert isinstance(member, AlignedHeads), "members are heads"
            yield member


def split_features(features: Features, count: int) -> list[Features]:
    """Features of branches that lie side by side, one by one."""
    whole = features.whole
    wholes = [None] * count if whole is None else _parts(whole, count)
    return [
        replace(features, local=local, whole=one)
        for local, one in zip(_parts(features.local, count), wholes, strict=True)
    ]


def _parts(points: Points, count: int) -> list[Points]:
    return [Points(vectors, points.mask) for vectors in points.vectors.chunk(count, dim=-1)]


def join_states(states: Sequence[HeadStates], mask: Bool[Tensor, "batch points"]) -> HeadStates:
    """Unit vectors of all members side by side; as unit vectors, their products are the means of the members'."""
    pooled = [_mean(state.points, mask) if state.pooled is None else state.pooled for state in states]
    return HeadStates(_side_by_side([state.points for state in states]), unit(_side_by_side(pooled)))


def _mean(points: Float[Tensor, "batch points dim"], mask: Bool[Tensor, "batch points"]) -> Tensor:
    return masked_mean(real_points(unit(points), mask), mask)


def _side_by_side(vectors: Sequence[Tensor]) -> Tensor:
    return torch.cat([unit(part) for part in vectors], dim=-1)
