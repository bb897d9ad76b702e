"""Frozen features of samples, made by the towers in chunks or taken from a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from msdscore.align.data.samples import Sample
from msdscore.encoders.aligned.towers.base import Features, ImageTower, Points, TextTower
from msdscore.encoders.base import TokenLayout, prepare_all

Item = TypeVar("Item")


class FeatureSource(Protocol):
    """Where a step's features come from."""

    def images(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' views."""

    def texts(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' captions."""

    def negatives(self, texts: Sequence[str]) -> Features:
        """Features of any texts."""


@dataclass(frozen=True, slots=True)
class LiveFeatures:
    """Features made when they are asked for; the towers read `chunk` items at once."""

    image: ImageTower
    text: TextTower
    chunk: int

    def images(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' views."""
        pictures = [sample.picture for sample in samples if sample.picture is not None]
        return join([self.image.features(prepare_all(self.image, part)) for part in chunks(pictures, self.chunk)])

    def texts(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' captions."""
        return self.negatives([caption for sample in samples for caption in sample.captions])

    def negatives(self, texts: Sequence[str]) -> Features:
        """Features of any texts."""
        return join([self.text.features(part) for part in chunks(texts, self.chunk)])


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """The items in runs of `size`; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def join(parts: Sequence[Features]) -> Features:
    """One batch from several, padded to the longest item."""
    if len(parts) == 1:
        return parts[0]
    wholes = [part.whole for part in parts if part.whole is not None]
    pooled = [part.pooled for part in parts if part.pooled is not None]
    return Features(
        join_points([part.local for part in parts]),
        join_points(wholes) if wholes else None,
        torch.cat(pooled) if pooled else None,
        tuple(layout for part in parts for layout in part.layout),
    )


def join_points(parts: Sequence[Points]) -> Points:
    """Points of several batches in one, padded to the widest."""
    width = max(part.mask.shape[1] for part in parts)
    return Points(
        torch.cat([widen(part.vectors, width) for part in parts]),
        torch.cat([widen(part.mask, width) for part in parts]),
    )


def widen(values: Tensor, width: int) -> Tensor:
    """A padded tensor with more padding along its points."""
    missing = width - values.shape[1]
    return pad(values, (0, 0) * (values.dim() - 2) + (0, missing)) if missing else values


def token_layouts(features: Features) -> tuple[TokenLayout, ...]:
    """The layouts of captions."""
    return tuple(layout for layout in features.layout if isinstance(layout, TokenLayout))
