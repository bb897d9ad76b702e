"""Why a caption scores as it does: the score's own terms, one per word and one per region."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from PIL.Image import Image
from torch import Tensor

from msdscore.core.mixture import Mixture
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.errors import ConfigError, RowError
from msdscore.explain import maps
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.embedded import Decoded, Embedded
from msdscore.scoring.measurement import Measurement, gate
from msdscore.scoring.score import Score
from msdscore.scoring.words import NOT_JUDGED
from msdscore.text.words import Word, owners, phrases, segment

Floats = npt.NDArray[np.float64]

# Chosen on the faithfulness study; docs/explain-evidence.md has what was tried.
PROJECTION = "influence"


@dataclass(frozen=True, slots=True)
class Unit:
    """A word, mark or phrase of the caption with its share of the support divergence.

    `term` is in nats and sums over words and marks to the score's support; None where the encoder reads no token. `gap`
    is the mean over its tokens of how far the picture does not support them, also in nats: log P_txt − log P_img; with
    calibration, the mean of log P over background pictures − log P_img; with `calibration="evidence"`, the log-odds
    that the word is not true of the picture. It is None where there is no token, and where the word is not `judged`
    because the encoder is known not to tell whether it is true.
    """

    text: str
    start: int
    end: int
    kind: str
    content: bool
    tokens: tuple[int, ...]
    term: float | None
    gap: float | None
    judged: bool = True


@dataclass(frozen=True, eq=False, repr=False)  # without slots: computed parts are kept
class Attribution:
    """The score of one caption of one picture, taken apart.

    `coverage_terms` (one per patch) add up to `score.coverage`, `support_terms` (one per token) to `score.support`, in
    nats. Patches that the encoder masks are not `visible` and have zero everywhere.
    """

    score: Score
    picture: Image
    patches: PatchLayout
    tokens: TokenLayout
    terms: maps.Terms
    visible: npt.NDArray[np.bool_]  # one per patch of `patches`
    config: MSDConfig

    @property
    def coverage_terms(self) -> Floats:
        """One per patch, adding up to the coverage divergence."""
        return maps.over_all(self.terms.coverage, self.visible)

    @property
    def support_terms(self) -> Floats:
        """One per token, adding up to the support divergence."""
        return self.terms.support

    @property
    def information_terms(self) -> Floats | None:
        """One per token, adding up to the information; None where it is not known."""
        return self.terms.information

    @property
    def affinity(self) -> Floats:
        """How every token spreads over the patches; rows add up to 1."""
        return maps.over_all(self.terms.affinity, self.visible)

    @property
    def alpha(self) -> float:
        """The weight of the local divergence."""
        return self.config.alpha

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Words and marks in reading order; their terms add up to the support divergence."""
        return units_of(self.score.caption, self.tokens, self.support_terms, self.terms.gaps, self.terms.weights)

    @property
    def words(self) -> tuple[Unit, ...]:
        """Words in reading order."""
        return tuple(unit for unit in self.units if unit.kind == "word")

    @property
    def ranked(self) -> tuple[Unit, ...]:
        """Content words that the encoder reads, the least supported first."""
        return ranked(unit for unit in self.words if unit.content)

    @cached_property
    def phrases(self) -> tuple[Unit, ...]:
        """Adjacent content words together ("cup of milk"), the least supported first."""
        units = self.units
        found = [[units[number] for number in numbers] for numbers in phrases(segment(self.score.caption))]
        return ranked(_joined(self.score.caption, some, self.terms) for some in found)

    @cached_property
    def regions(self) -> maps.Regions:
        """For each patch one number for the caption and one against it; the maps show where they are above zero."""
        found = maps.project(self.terms, PROJECTION)
        return maps.Regions(*(maps.over_all(side, self.visible) for side in (found.support, found.penalty)))

    @property
    def support_map(self) -> Floats:
        """How much each patch backs the caption, rows by columns; zero where it does not."""
        return maps.grid(np.maximum(self.regions.support, 0), self.patches)

    @property
    def penalty_map(self) -> Floats:
        """How much each patch speaks against the caption, rows by columns; zero where it does not."""
        return maps.grid(np.maximum(self.regions.penalty, 0), self.patches)

    @property
    def omission_map(self) -> Floats:
        """Coverage terms, rows by columns: high where the caption says least about what is seen."""
        return maps.grid(self.coverage_terms, self.patches)

    def leaning(self, unit: Unit) -> Floats:
        """Where a word looks: the spread of its tokens over the patches, rows by columns, adding up to 1."""
        if not unit.tokens:
            raise ConfigError(f"the encoder reads no token at {unit.text!r}, so it leans on no region")
        return maps.grid(self.affinity[list(unit.tokens)].mean(axis=0), self.patches)


def picture_of(decoded: Decoded | RowError) -> Image:
    """The picture of a source that was decoded and kept."""
    assert isinstance(decoded, Decoded), "pictures that cannot be read have raised their reason"
    assert decoded.picture is not None, "the picture was to be kept"
    return decoded.picture


def terms_of(config: MSDConfig, images: Embedded, texts: Embedded, measured: Measurement) -> list[maps.Terms]:
    """The terms of every pair that was measured, and how its tokens spread over its picture's patches."""
    betas = gate(measured.lengths.cpu(), config).tolist()
    seen, read = images.vectors, texts.vectors
    found = []
    for number, (picture, text) in enumerate(zip(measured.image_of.tolist(), measured.text_of.tolist(), strict=True)):
        patches, tokens = seen.mask[picture], read.mask[text]
        x, y = _points(seen.points[picture], patches), _points(read.points[text], tokens)
        affinity = maps.affinities(x, y, config.kappa)
        if config.mixture == "vmf":
            removal = maps.removals(x, y, _components(measured.divergence.image_mixtures, picture))
        else:
            # First-order removals are those of one fixed concentration; for other mixtures every patch stands alone.
            removal = 1 / len(x) - affinity
        found.append(
            maps.Terms(
                coverage=_real(measured.divergence.coverage_terms[number], patches),
                support=_real(measured.divergence.support_terms[number], tokens),
                affinity=affinity,
                removal=removal,
                beta=betas[number],
                shares=_shares(measured, number, tokens),
                gaps=token_gaps(measured, number, tokens),
                weights=judged_weights(measured, number, tokens),
                information=_known(measured.information_terms, number, tokens),
            )
        )
    return found


def token_gaps(measured: Measurement, pair: int, mask: Tensor) -> Floats:
    """How far the picture of a pair does not support each token, in nats."""
    if measured.log_odds is not None:
        return -_real(measured.log_odds[pair], mask)
    terms = _real(measured.divergence.support_terms[pair], mask)
    return terms * len(terms)


def judged_weights(measured: Measurement, pair: int, mask: Tensor) -> Floats | None:
    """How well each token's word can be judged, shared by the pieces of a word; None where it is not known."""
    return _known(measured.weights, pair, mask)


def _shares(measured: Measurement, pair: int, mask: Tensor) -> Floats:
    if measured.shares is None:
        count = int(mask.sum())
        return np.full(count, 1 / max(count, 1))
    return _real(measured.shares[pair], mask)


def _components(mixtures: Mixture, picture: int) -> maps.Components:
    means, log_weights = mixtures.means[picture], mixtures.log_weights[picture]
    return maps.Components(means.double().cpu().numpy(), log_weights.double().cpu().numpy(), mixtures.kappa)


def units_of(
    caption: str, tokens: TokenLayout, terms: Floats, gaps: Floats, weights: Floats | None = None
) -> tuple[Unit, ...]:
    """Words and marks of a caption with the terms and gaps of the tokens that cover them.

    With `weights` of tokens as evidence, words of too little weight are not judged.
    """
    pieces = segment(caption)
    owner = owners(tokens.spans, pieces)
    held = [tuple(token for token, place in enumerate(owner) if place == number) for number in range(len(pieces))]
    return tuple(_unit(piece, own, terms, (gaps, weights)) for piece, own in zip(pieces, held, strict=True))


def ranked(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Units with a gap, the least supported first; equal ones in reading order."""
    known = [(unit.gap, unit) for unit in units if unit.gap is not None]
    return tuple(unit for _, unit in sorted(known, key=lambda pair: -pair[0]))


def _unit(piece: Word, tokens: tuple[int, ...], terms: Floats, evidence: tuple[Floats, Floats | None]) -> Unit:
    own, (gaps, weights) = list(tokens), evidence
    # The pieces of a word share its weight, so their sum is the word's.
    judged = weights is None or not own or float(weights[own].sum()) >= NOT_JUDGED
    term = float(terms[own].sum()) if own else None
    gap = float(gaps[own].mean()) if own and judged else None
    return Unit(piece.text, piece.start, piece.end, piece.kind, piece.content, tokens, term, gap, judged)


def _joined(caption: str, units: Sequence[Unit], terms: maps.Terms) -> Unit:
    """One unit from several that follow each other."""
    start, end = units[0].start, units[-1].end
    whole = Word(caption[start:end], start, end, caption[start:end], content=True, denied=False, new=True)
    tokens = tuple(token for unit in units for token in unit.tokens)
    return _unit(whole, tokens, terms.support, (terms.gaps, terms.weights))


def _known(values: Tensor | None, pair: int, mask: Tensor) -> Floats | None:
    return None if values is None else _real(values[pair], mask)


def _real(values: Tensor, mask: Tensor) -> Floats:
    width = min(len(values), len(mask))
    return values[:width][mask[:width]].double().cpu().numpy()


def _points(points: Tensor, mask: Tensor) -> Floats:
    return points[mask].double().cpu().numpy()
