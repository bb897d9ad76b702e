"""Two batches of embeddings compared: similarity of the pooled vectors, divergence of the local ones."""

from collections.abc import Sequence

import torch

from msdscore.core.divergence import PointSet, diverge
from msdscore.core.mixture import FitSettings
from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import Measurement


def compare(
    images: Embeddings,
    texts: Embeddings,
    owner: Sequence[int],
    *,
    image_keys: Sequence[int],
    text_keys: Sequence[int],
    config: MSDConfig,
) -> Measurement:
    """Measure every caption against its image; `owner[i]` is the image number of caption i."""
    device = images.points.device
    rows = torch.tensor(owner, dtype=torch.int64, device=device)
    similarity = (images.pooled[rows] * texts.pooled).sum(dim=-1)
    divergence = diverge(
        _side(images, image_keys),
        _side(texts, text_keys),
        rows,
        image_fit=_fit(config, config.components[0]),
        text_fit=_fit(config, config.components[1]),
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


def _fit(config: MSDConfig, components: int) -> FitSettings:
    return FitSettings(
        components=components, kappa=config.kappa, iterations=config.iterations, init=config.init, seed=config.seed
    )
