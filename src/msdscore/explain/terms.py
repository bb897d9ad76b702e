"""Attribution of a score to words and regions by the terms of the score."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.core.arrays import float64, to_numpy
from msdscore.core.evidence import ZERO
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.errors import ConfigError, RowError
from msdscore.explain import maps
from msdscore.explain.presentation import Presentation, presentation_of
from msdscore.forms.base import Floats, Form, Measurement, Unit
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.results import Score
from msdscore.scoring.vocabulary import NamedWord, Suggestion
from msdscore.text.words import phrases, segment

CARRIED = "carried"  # the projection whose maps are smoothed
_SHARPER = 4  # factor of kappa in maps of words: more of their mass is on the object (docs/explain.md)


@dataclass(frozen=True, eq=False, repr=False)  # without slots, for cached properties
class Attribution:
    """The score of one caption of one image, split into its terms.

    The terms of `units` add up to the contribution of the words to MSD. Under the paper's form `coverage_terms` (one
    per patch) add up to `score.coverage` and `support_terms` (one per token) to `score.support`, in nats. Patches that
    the encoder masks are not `visible` and have zero everywhere. `missing` are words that are probably true of the
    image and not said, `suggestions` words that would fit better than a word in doubt; they are not part of the score.
    """

    score: Score
    image: Image
    patches: PatchLayout
    tokens: TokenLayout
    terms: maps.MapTerms
    visible: npt.NDArray[np.bool_]  # one per patch of `patches`
    form: Form
    units: tuple[Unit, ...]  # words and marks in reading order
    missing: tuple[NamedWord, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    doubt: float = ZERO  # words with a p-value below it are in doubt
    projection: str = "influence"  # how terms become maps, by name: see `maps.PROJECTIONS`

    @property
    def presentation(self) -> Presentation:
        """How the terms of the form are presented."""
        return presentation_of(self.form)

    @property
    def caption(self) -> str:
        """The caption."""
        return self.score.caption

    @property
    def readable(self) -> bool:
        """Whether the caption is in a language that the encoder was trained on; if not, no word is judged."""
        return self.score.readable

    @property
    def coverage_terms(self) -> Floats:
        """One per patch, adding up to the coverage divergence; zero under the evidence form."""
        return maps.over_all(self.terms.coverage, self.visible)

    @property
    def support_terms(self) -> Floats:
        """One per token, adding up to the support divergence; with evidence minus contributions to MSD."""
        return self.terms.support

    @property
    def affinity(self) -> Floats:
        """Affinities of tokens to patches; rows add up to 1."""
        return maps.over_all(self.terms.affinity, self.visible)

    @property
    def words(self) -> tuple[Unit, ...]:
        """Words in reading order."""
        return tuple(unit for unit in self.units if unit.kind == "word")

    @property
    def ranked(self) -> tuple[Unit, ...]:
        """Judged content words, the least supported first."""
        return ranked(unit for unit in self.words if unit.content)

    @property
    def doubtful(self) -> tuple[Unit, ...]:
        """Words with a p-value below `doubt` (0.1 unless chosen), the least supported first."""
        return tuple(unit for unit in self.ranked if unit.p_value is not None and unit.p_value < self.doubt)

    @cached_property
    def phrases(self) -> tuple[Unit, ...]:
        """Adjacent content words together ("cup of milk"), the least supported first."""
        words = segment(self.score.caption, compounds=self.form.compounds)
        return ranked(_joined(self.score.caption, [self.units[n] for n in numbers]) for numbers in phrases(words))

    @cached_property
    def regions(self) -> maps.Regions:
        """Support and contradiction of the caption by each patch; the maps show the positive values."""
        regions = maps.PROJECTIONS[self.projection](self.terms)
        sides = [maps.over_all(side, self.visible) for side in (regions.support, regions.penalty)]
        if self.projection == CARRIED:
            sides = [maps.region(side, self.patches.grid, self.visible) for side in sides]
        return maps.Regions(*sides)

    @property
    def support_map(self) -> Floats:
        """Support of the caption by each patch, rows by columns; never negative."""
        return np.maximum(self.regions.support, 0).reshape(self.patches.grid)

    @property
    def penalty_map(self) -> Floats:
        """Contradiction of the caption by each patch, rows by columns; never negative."""
        return np.maximum(self.regions.penalty, 0).reshape(self.patches.grid)

    @property
    def omission_map(self) -> Floats:
        """Coverage terms, rows by columns: high for patches that the caption describes least."""
        return self.coverage_terms.reshape(self.patches.grid)

    def leaning(self, unit: Unit) -> Floats:
        """Return the region that matches a word, rows by columns, adding up to 1; see `has_region`.

        It is the sharpened affinity of the word's tokens to patches, smoothed and weighted towards the centre.
        """
        if not unit.tokens:
            raise ConfigError(f"the encoder reads no token at {unit.text!r}, so it leans on no region")
        sharp = maps.sharpened(self.affinity[list(unit.tokens)], _SHARPER).mean(axis=0)
        return maps.region(sharp, self.patches.grid, self.visible).reshape(self.patches.grid)

    def has_region(self, unit: Unit) -> bool:
        """Whether the region of a word is worth showing: the image supports the word better than most true ones.

        Under the paper's form, which has no p-values, every word that the encoder reads has a region.
        """
        if not unit.tokens:
            return False
        return unit.p_value >= maps.SURE if unit.p_value is not None else unit.gap is not None


def image_of(decoded: Decoded | RowError) -> Image:
    """Return the decoded image of a source."""
    assert isinstance(decoded, Decoded), "images that cannot be read have raised their error"
    assert decoded.image is not None, "the image was requested"
    return decoded.image


def terms_of(form: Form, images: Embedded, texts: Embedded, measured: Measurement[Any]) -> list[maps.MapTerms]:
    """Return the terms of every measured pair, and the affinities of its tokens to the patches."""
    seen, read, mixtures = images.vectors, texts.vectors, measured.terms.image_mixtures
    terms = []
    for number, (image, text) in enumerate(zip(measured.image_of.tolist(), measured.text_of.tolist(), strict=True)):
        patches, tokens = to_numpy(seen.mask)[image], to_numpy(read.mask)[text]
        x, y = float64(seen.points[image])[patches], float64(read.points[text])[tokens]
        affinity = maps.responsibilities(y, x, form.image_fit.kappa)
        means, log_weights = float64(mixtures.means[image]), float64(mixtures.log_weights[image])
        removal = maps.removals(x, y, means, log_weights, mixtures.kappa)
        own = form.point_terms(measured, number, patches, tokens)
        terms.append(maps.MapTerms(own.coverage, own.support, affinity, removal, own.beta, own.shares))
    return terms


def rank_key(unit: Unit) -> float | None:
    """Return how little the image supports a word, higher for less support; None if it is not judged."""
    if unit.p_value is None or unit.evidence is None:
        return unit.gap
    return -unit.p_value - 1e-6 * unit.evidence  # words below all quantiles are ordered by their evidence


def ranked(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Return judged units, the least supported first; equal ones in reading order."""
    known = [(value, unit) for unit in units if (value := rank_key(unit)) is not None]
    return tuple(unit for _, unit in sorted(known, key=lambda pair: -pair[0]))


def _joined(caption: str, units: Sequence[Unit]) -> Unit:
    """Merge consecutive units into one: sums of terms, the lowest p-value, the mean gap."""
    start, end = units[0].start, units[-1].end
    known = [unit for unit in units if unit.term is not None]
    gaps = [unit.gap for unit in units if unit.gap is not None]
    values = [unit.p_value for unit in units if unit.p_value is not None]
    return Unit(
        caption[start:end], start, end, "word", True, tuple(token for unit in units for token in unit.tokens),
        term=sum(unit.term or 0.0 for unit in known) if known else None,
        gap=sum(gaps) / len(gaps) if gaps else None,
        evidence=min((unit.evidence for unit in units if unit.evidence is not None), default=None),
        p_value=min(values, default=None),
        penalty=sum(penalties) if (penalties := [u.penalty for u in units if u.penalty is not None]) else None,
        judged=any(unit.judged for unit in units),
    )  # fmt: skip
