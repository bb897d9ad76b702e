"""Two batches of embeddings compared: similarity of the pooled vectors, divergence of the local ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL.Image import Image

from msdscore.core.calibration import Bank
from msdscore.core.mixture import FitSettings
from msdscore.core.schedule import PointSet, diverge
from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Encoded:
    """Pictures and captions as vectors, with the keys of their content; `pictures` are as they were decoded."""

    pictures: tuple[Image, ...]
    images: Embeddings
    texts: Embeddings
    image_keys: tuple[int, ...]
    text_keys: tuple[int, ...]


def compare(
    images: Embeddings,
    texts: Embeddings,
    owner: Sequence[int],
    *,
    image_keys: Sequence[int],
    text_keys: Sequence[int],
    config: MSDConfig,
    bank: Bank | None = None,
) -> Measurement:
    """Measure every caption against its image; `owner[i]` is the image number of caption i."""
    device = images.points.device
    rows = torch.tensor(owner, dtype=torch.int64, device=device)
    similarity = (images.pooled[rows] * texts.pooled).sum(dim=-1)
    divergence = diverge(
        _side(images, image_keys),
        _side(texts, text_keys),
        rows,
        torch.arange(len(rows), device=device),
        image_fit=fit_settings(config, config.components[0]),
        text_fit=fit_settings(config, config.components[1]),
        bank=bank,
    )
    return Measurement(
        similarity,
        divergence,
        texts.mask.sum(dim=1),
        rows,
        tuple(layout for layout in images.layout if isinstance(layout, PatchLayout)),
        tuple(layout for layout in texts.layout if isinstance(layout, TokenLayout)),
    )


def _side(batch: Embeddings, keys: Sequence[int]) -> PointSet:
    return PointSet(batch.points, batch.mask, torch.tensor(keys, dtype=torch.int64, device=batch.points.device))


def fit_settings(config: MSDConfig, components: int) -> FitSettings:
    """How one side's mixtures are fitted under a configuration."""
    return FitSettings(
        components=components, kappa=config.kappa, iterations=config.iterations, init=config.init, seed=config.seed
    )
