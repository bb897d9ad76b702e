"""What is measured of pairs of pictures and captions before anything is fused."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core import fusion
from msdscore.core.divergence import Divergence, total
from msdscore.core.transfer import fetching
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.scoring.config import MSDConfig

Column = Float[Tensor, " captions"]
# Tensors of a measurement with one row per pair.
_PER_PAIR = (
    "similarity", "lengths", "image_of", "text_of", "information_terms", "weights", "shares", "log_odds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measurement:
    """Similarity and divergence terms of pairs of a picture and a caption.

    `image_of` and `text_of` are the rows of each pair's picture and caption in the batches that were compared;
    `patches` holds one layout per picture, `tokens` and `lengths` one entry per pair. Where the evidence of words was
    weighed, `information_terms`, `weights`, `shares` (in support, without doubts) and `log_odds` (of a true word
    against a likely false one) hold one number per token of every pair; `match` is the bank's map from the score to a
    probability, where it was fitted with the same settings.
    """

    similarity: Float[Tensor, " pairs"]
    divergence: Divergence
    lengths: Int[Tensor, " pairs"]
    image_of: Int[Tensor, " pairs"]
    text_of: Int[Tensor, " pairs"]
    patches: tuple[PatchLayout, ...]
    tokens: tuple[TokenLayout, ...]
    information_terms: Float[Tensor, "pairs tokens"] | None = None
    weights: Float[Tensor, "pairs tokens"] | None = None
    shares: Float[Tensor, "pairs tokens"] | None = None
    log_odds: Float[Tensor, "pairs tokens"] | None = None
    match: fusion.Match | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def fetching(self) -> "Callable[[], Measurement]":
        """Begin to bring all but the mixtures to the CPU; what is returned waits once, and gives the same there."""
        told = {name: value for name in _PER_PAIR if (value := getattr(self, name)) is not None}
        fetch = fetching(self.divergence.coverage_terms, self.divergence.support_terms, *told.values())

        def arrived() -> Measurement:
            coverage, support, *others = fetch.wait()
            divergence = replace(self.divergence, coverage_terms=coverage, support_terms=support)
            there: dict[str, Any] = dict(zip(told, others, strict=True))
            return replace(self, divergence=divergence, **there)

        return arrived


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one scored caption that depend on its own picture alone.

    `information` and `match` are None where the bank cannot tell them. `warnings` say what a reader of the score should
    know of the caption and the picture, `worst` are its least supported words where they were asked for.
    """

    similarity: float
    coverage: float
    support: float
    beta: float
    divergence: float
    information: float | None
    length: int
    windows: int
    msd: float
    match: float | None
    warnings: tuple[str, ...] = ()
    worst: tuple[str, ...] = ()


# Numbers that need a bank with calibrated words.
UNTOLD = ("information", "match")
# The names of the numbers, in order.
NUMBERS = tuple(field.name for field in fields(Numbers) if field.name not in ("warnings", "worst"))


def gate(lengths: Int[Tensor, " captions"], config: MSDConfig) -> Float[Tensor, " captions"]:
    """The weight of coverage for every caption, as the settings choose it."""
    wide = lengths.double()
    if config.gate == "length":
        return fusion.length_gate(wide, center=config.gate_center, width=config.gate_width)
    beta = {"coverage": 1.0, "support": 0.0, "fixed": config.beta}[config.gate]
    return fusion.constant_gate(wide, beta=beta)


def numbers(
    measurement: Measurement, config: MSDConfig, *, worst: Sequence[tuple[str, ...]] | None = None
) -> tuple[Numbers, ...]:
    """Fuse what was measured, caption by caption, in float64 on the CPU; `worst` are words to go with them."""
    similarity = measurement.similarity.double().cpu()
    coverage, support = (
        side.double().cpu() for side in (measurement.divergence.coverage, measurement.divergence.support)
    )
    beta = gate(measurement.lengths.cpu(), config)
    divergence = fusion.local_divergence(coverage, support, beta)
    information = _information(measurement)
    msd = fusion.msd(similarity, penalty(divergence, information, config))
    columns = (
        similarity.tolist(),
        coverage.tolist(),
        support.tolist(),
        beta.tolist(),
        divergence.tolist(),
        _told(information),
        measurement.lengths.tolist(),
        [layout.windows for layout in measurement.tokens],
        msd.tolist(),
        _told(_unknown(msd) if measurement.match is None else measurement.match(msd)),
        _warnings(measurement),
        [()] * len(measurement) if worst is None else worst,
    )
    return tuple(Numbers(*row) for row in zip(*columns, strict=True))


def _warnings(measurement: Measurement) -> list[tuple[str, ...]]:
    """What encoders say of each pair's caption and picture, and whether the caption was cut."""
    found = []
    for picture, tokens in zip(measurement.image_of.tolist(), measurement.tokens, strict=True):
        cut = (f"cut: {tokens.cut} tokens at the end were not read",) if tokens.cut else ()
        found.append((*tokens.warnings, *cut, *measurement.patches[picture].warnings))
    return found


def penalty(divergence: Column, information: Column, config: MSDConfig) -> Column:
    """What the local terms take from the similarity, as the settings weigh them."""
    # Without its weight, information may be unknown (NaN), and must not touch the score.
    told = information if config.information else torch.zeros_like(divergence)
    return fusion.penalty(divergence, told, alpha=config.alpha, gamma=config.information)


def soften(
    similarity: Sequence[float],
    divergence: Sequence[float],
    information: Sequence[float | None],
    group: Sequence[int],
    config: MSDConfig,
) -> tuple[list[float], list[float]]:
    """Uncertainty and Soft-MSD of every caption; equal group numbers are one candidate set."""
    known = [math.nan if value is None else value for value in information]
    g, d, told = (torch.tensor(values, dtype=torch.float64) for values in (similarity, divergence, known))
    if not len(g):
        return [], []
    u = fusion.set_uncertainty(g, torch.tensor(group, dtype=torch.int64), temperature=config.temperature)
    return u.tolist(), fusion.soft_msd(g, penalty(d, told, config), u).tolist()


def _information(measurement: Measurement) -> Column:
    terms = measurement.information_terms
    return _unknown(measurement.similarity.double().cpu()) if terms is None else total(terms).double().cpu()


def _told(column: Column) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]


def _unknown(like: Column) -> Column:
    return torch.full_like(like, torch.nan)
