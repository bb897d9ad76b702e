"""Two batches of embeddings compared: similarity of the pooled vectors, divergence of the local ones."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core import fusion
from msdscore.core.calibration import Bank
from msdscore.core.divergence import total
from msdscore.core.evidence import (
    TokenWeights,
    belonging,
    doubt_terms,
    evidence,
    information_terms,
    log_odds,
    support_shares,
)
from msdscore.core.mixture import FitSettings
from msdscore.core.omission import omission_terms
from msdscore.core.schedule import PointSet, diverge
from msdscore.core.transfer import sent
from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import Measurement
from msdscore.scoring.words import token_weights


def measure_pairs(
    images: Embeddings,
    texts: Embeddings,
    pairs: tuple[Sequence[int], Sequence[int]],
    *,
    keys: tuple[Sequence[int], Sequence[int]],
    config: MSDConfig,
    bank: Bank | None = None,
    captions: Sequence[str] = (),
) -> Measurement:
    """Measure pairs: pair p is row `pairs[0][p]` of the images with row `pairs[1][p]` of the texts.

    `keys` are those of the images and of the texts; `captions` are the texts as given, needed where the evidence of
    their words is weighed.
    """
    first, second = (_numbers(rows, images.points.device) for rows in pairs)
    sides = _side(images, keys[0]), _side(texts, keys[1])
    divergence = diverge(
        *sides,
        first,
        second,
        image_fit=fit_settings(config, config.components[0]),
        text_fit=fit_settings(config, config.components[1]),
        bank=bank,
    )
    tokens = [layout for layout in texts.layout if isinstance(layout, TokenLayout)]
    measured = Measurement(
        total(images.pooled[first] * texts.pooled[second]),
        divergence,
        texts.mask.sum(dim=1)[second],
        first,
        second,
        tuple(layout for layout in images.layout if isinstance(layout, PatchLayout)),
        tuple(tokens[row] for row in pairs[1]),
        match=None if bank is None or bank.match is None or bank.match.settings != settings_of(config) else bank.match,
    )
    if config.calibration != "evidence" or bank is None or bank.words is None:
        return measured
    width, device = texts.mask.shape[1], texts.mask.device
    words = token_weights(captions, tokens, bank.words, width=width, device=device)
    return _with_evidence(measured, sides, words, config, bank)


def _with_evidence(
    measured: Measurement, sides: tuple[PointSet, PointSet], words: TokenWeights, config: MSDConfig, bank: Bank
) -> Measurement:
    """Evidence weighed word by word, information, and omissions where the bank has captions for them."""
    assert bank.words is not None, "the caller looked"
    mask, rows = sides[1].mask[measured.text_of], words.take(measured.text_of)
    found = evidence(measured.divergence.support_terms, mask)
    gate = fusion.length_gate(measured.lengths, center=config.gate_center, width=config.gate_width)
    long = (1 - gate).to(found.dtype)
    held = support_shares(rows, long, mask)
    belongs = belonging(found, rows, mask, bank.words)
    doubts = (config.tail * long * belongs).unsqueeze(1) * doubt_terms(found, rows, bank.words)
    return replace(
        measured,
        divergence=replace(
            measured.divergence,
            coverage_terms=_omissions(measured, sides, words, belongs, bank),
            support_terms=doubts - held * found,
        ),
        information_terms=information_terms(found, rows),
        weights=rows.weights,
        shares=held,
        log_odds=log_odds(found, bank.words),
    )


def _omissions(
    measured: Measurement,
    sides: tuple[PointSet, PointSet],
    words: TokenWeights,
    belongs: Float[Tensor, " pairs"],
    bank: Bank,
) -> Float[Tensor, "pairs patches"]:
    """Coverage terms against the bank's captions, as far as a caption belongs; unchanged where the bank has none."""
    if bank.captions is None:
        return measured.divergence.coverage_terms
    images, texts = sides
    # A word said twice speaks of its patches once.
    told = replace(texts, mask=texts.mask & (words.new | ~words.new.any(dim=1, keepdim=True)))
    terms = omission_terms(
        images,
        told,
        measured.divergence.image_mixtures,
        image_of=measured.image_of,
        text_of=measured.text_of,
        background=bank.captions,
    )
    return belongs.to(terms.dtype).unsqueeze(1) * terms


def settings_of(config: MSDConfig) -> str:
    """The settings that decide the size of a score, in one line: a `Match` is fitted under them.

    >>> settings_of(MSDConfig())
    'k:3,2|kappa:20.0|a:0.1|gate:length,20.0,3.0,0.5|cal:none|i:0.0|t:0.0'
    """
    gate = f"{config.gate},{float(config.gate_center)},{float(config.gate_width)},{float(config.beta)}"
    sizes = f"k:{config.components[0]},{config.components[1]}|kappa:{float(config.kappa)}"
    local = f"i:{float(config.information)}|t:{float(config.tail)}"
    return f"{sizes}|a:{float(config.alpha)}|gate:{gate}|cal:{config.calibration}|{local}"


def _side(batch: Embeddings, keys: Sequence[int]) -> PointSet:
    return PointSet(batch.points, batch.mask, _numbers(keys, batch.points.device))


def _numbers(values: Sequence[int], device: torch.device) -> Int[Tensor, " items"]:
    return sent(torch.tensor(values, dtype=torch.int64), device)


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
