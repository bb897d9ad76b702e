"""Two batches of embeddings compared: similarity of the pooled vectors, divergence of the local ones."""

from collections.abc import Sequence

import torch

from msdscore.core.calibration import Bank
from msdscore.core.divergence import total
from msdscore.core.mixture import FitSettings
from msdscore.core.schedule import PointSet, diverge
from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import Measurement


def measure_pairs(
    images: Embeddings,
    texts: Embeddings,
    image_of: Sequence[int],
    text_of: Sequence[int],
    *,
    keys: tuple[Sequence[int], Sequence[int]],
    config: MSDConfig,
    bank: Bank | None = None,
) -> Measurement:
    """Measure pairs: pair p is row `image_of[p]` of the images with row `text_of[p]` of the texts.

    `keys` are those of the images and of the texts.
    """
    first, second = (torch.tensor(rows, dtype=torch.int64, device=images.points.device) for rows in (image_of, text_of))
    divergence = diverge(
        _side(images, keys[0]),
        _side(texts, keys[1]),
        first,
        second,
        image_fit=fit_settings(config, config.components[0]),
        text_fit=fit_settings(config, config.components[1]),
        bank=bank,
    )
    tokens = [layout for layout in texts.layout if isinstance(layout, TokenLayout)]
    return Measurement(
        total(images.pooled[first] * texts.pooled[second]),
        divergence,
        texts.mask.sum(dim=1)[second],
        first,
        second,
        tuple(layout for layout in images.layout if isinstance(layout, PatchLayout)),
        tuple(tokens[row] for row in text_of),
    )


def _side(batch: Embeddings, keys: Sequence[int]) -> PointSet:
    return PointSet(batch.points, batch.mask, torch.tensor(keys, dtype=torch.int64, device=batch.points.device))


def fit_settings(config: MSDConfig, components: int) -> FitSettings:
    """How one side's mixtures are fitted under a configuration."""
    return FitSettings(
        components=components,
        kappa=config.kappa,
        iterations=config.iterations,
        init=config.init,
        seed=config.seed,
        mixture=config.mixture,
    )
