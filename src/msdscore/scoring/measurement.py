"""What is measured of pairs of pictures and captions before anything is fused."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core import fusion
from msdscore.core.divergence import Divergence
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.scoring.config import MSDConfig


@dataclass(frozen=True, slots=True)
class Measurement:
    """Similarity and divergence terms of pairs of a picture and a caption.

    `image_of` and `text_of` are the rows of each pair's picture and caption in the batches that were compared;
    `patches` holds one layout per picture, `tokens` and `lengths` one entry per pair.
    """

    similarity: Float[Tensor, " pairs"]
    divergence: Divergence
    lengths: Int[Tensor, " pairs"]
    image_of: Int[Tensor, " pairs"]
    text_of: Int[Tensor, " pairs"]
    patches: tuple[PatchLayout, ...]
    tokens: tuple[TokenLayout, ...]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one scored caption that depend on its own picture alone.

    `warnings` say what a reader of the score should know of the caption and the picture.
    """

    similarity: float
    coverage: float
    support: float
    beta: float
    divergence: float
    length: int
    windows: int
    msd: float
    warnings: tuple[str, ...] = ()


# The names of the numbers, in order.
NUMBERS = tuple(field.name for field in fields(Numbers) if field.name != "warnings")


def gate(lengths: Int[Tensor, " captions"], config: MSDConfig) -> Float[Tensor, " captions"]:
    """The weight of coverage for every caption, as the settings choose it."""
    wide = lengths.double()
    if config.gate == "length":
        return fusion.length_gate(wide, center=config.gate_center, width=config.gate_width)
    beta = {"coverage": 1.0, "support": 0.0, "fixed": config.beta}[config.gate]
    return fusion.constant_gate(wide, beta=beta)


def numbers(measurement: Measurement, config: MSDConfig) -> tuple[Numbers, ...]:
    """Fuse what was measured, caption by caption, in float64 on the CPU."""
    similarity = measurement.similarity.double().cpu()
    coverage, support = (
        side.double().cpu() for side in (measurement.divergence.coverage, measurement.divergence.support)
    )
    beta = gate(measurement.lengths.cpu(), config)
    divergence = fusion.local_divergence(coverage, support, beta)
    columns = (
        similarity.tolist(),
        coverage.tolist(),
        support.tolist(),
        beta.tolist(),
        divergence.tolist(),
        measurement.lengths.tolist(),
        [layout.windows for layout in measurement.tokens],
        fusion.msd(similarity, divergence, alpha=config.alpha).tolist(),
        _warnings(measurement),
    )
    return tuple(Numbers(*row) for row in zip(*columns, strict=True))


def _warnings(measurement: Measurement) -> list[tuple[str, ...]]:
    """What encoders say of each pair's caption and picture, and whether the caption was cut."""
    found = []
    for picture, tokens in zip(measurement.image_of.tolist(), measurement.tokens, strict=True):
        cut = (f"cut: {tokens.cut} tokens at the end were not read",) if tokens.cut else ()
        found.append((*tokens.warnings, *cut, *measurement.patches[picture].warnings))
    return found


def soften(
    similarity: list[float], divergence: list[float], group: list[int], config: MSDConfig
) -> tuple[list[float], list[float]]:
    """Uncertainty and Soft-MSD of every caption; equal group numbers are one candidate set."""
    g, d = torch.tensor(similarity, dtype=torch.float64), torch.tensor(divergence, dtype=torch.float64)
    if not len(g):
        return [], []
    u = fusion.set_uncertainty(g, torch.tensor(group, dtype=torch.int64), temperature=config.temperature)
    return u.tolist(), fusion.soft_msd(g, d, u, alpha=config.alpha).tolist()
