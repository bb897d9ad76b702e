"""The score of a caption, split into the terms of its words and of the regions of its image."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.core.evidence import ZERO
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.errors import ConfigError
from msdscore.explain.projections import (
    CARRIED,
    PROJECTIONS,
    SURE,
    MapTerms,
    Regions,
    over_all,
    region,
    sharpened,
    strongest,
)
from msdscore.forms.base import Floats, Form, Unit, finding, ranked
from msdscore.scoring.references import NAMES
from msdscore.scoring.results import Score, known
from msdscore.scoring.vocabulary import NamedWord, Suggestion
from msdscore.text.words import phrases, segment

REGIONS = 3  # named for every word and map
_SHARPER = 4  # factor of kappa in maps of words: more of their mass is on the object (docs/explain.md)
_FIRST = ("msd", "soft_msd", "similarity")  # of the score of an explanation; then those of the form
_LAST = ("match", "verdict", "uncertainty", "length", "candidates")


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
    terms: MapTerms
    visible: npt.NDArray[np.bool_]  # one per patch of `patches`
    form: Form
    units: tuple[Unit, ...]  # words and marks in reading order
    missing: tuple[NamedWord, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    doubt: float = ZERO  # words with a p-value below it are in doubt
    projection: str = "influence"  # how terms become maps, by name: see `projections.PROJECTIONS`

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
        return over_all(self.terms.coverage, self.visible)

    @property
    def support_terms(self) -> Floats:
        """One per token, adding up to the support divergence; with evidence minus contributions to MSD."""
        return self.terms.support

    @property
    def affinity(self) -> Floats:
        """Affinities of tokens to patches; rows add up to 1."""
        return over_all(self.terms.affinity, self.visible)

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

    def finding(self, unit: Unit) -> str:
        """Return what is said about a word: `likely wrong`, `check`, or nothing."""
        return finding(unit.text, unit.p_value, unit.probability, self.doubt)

    @cached_property
    def phrases(self) -> tuple[Unit, ...]:
        """Adjacent content words together ("cup of milk"), the least supported first."""
        words = segment(self.score.caption, compounds=self.form.compounds)
        return ranked(_joined(self.score.caption, [self.units[n] for n in numbers]) for numbers in phrases(words))

    @cached_property
    def regions(self) -> Regions:
        """Support and contradiction of the caption by each patch; the maps show the positive values."""
        support, penalty = (over_all(side, self.visible) for side in PROJECTIONS[self.projection](self.terms))
        if self.projection == CARRIED:
            support, penalty = (region(side, self.patches.grid, self.visible) for side in (support, penalty))
        return support, penalty

    @property
    def support_map(self) -> Floats:
        """Support of the caption by each patch, rows by columns; never negative."""
        return np.maximum(self.regions[0], 0).reshape(self.patches.grid)

    @property
    def penalty_map(self) -> Floats:
        """Contradiction of the caption by each patch, rows by columns; never negative."""
        return np.maximum(self.regions[1], 0).reshape(self.patches.grid)

    @property
    def omission_map(self) -> Floats:
        """Coverage terms, rows by columns: high for patches that the caption describes least."""
        return self.coverage_terms.reshape(self.patches.grid)

    def word_map(self, unit: Unit) -> Floats:
        """Return the region that matches a word, rows by columns, adding up to 1; see `has_region`.

        It is the sharpened affinity of the word's tokens to patches, smoothed and weighted towards the centre.
        """
        if not unit.tokens:
            raise ConfigError(f"the encoder reads no token at {unit.text!r}, so it has no region")
        sharp = sharpened(self.affinity[list(unit.tokens)], _SHARPER).mean(axis=0)
        return region(sharp, self.patches.grid, self.visible).reshape(self.patches.grid)

    def has_region(self, unit: Unit) -> bool:
        """Whether the region of a word is worth showing: the image supports the word better than most true ones.

        Under the paper's form, which has no p-values, every word that the encoder reads has a region.
        """
        if not unit.tokens:
            return False
        return unit.p_value >= SURE if unit.p_value is not None else unit.gap is not None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the pixels as plain values: score, terms, words, phrases, maps and their regions.

        The terms of words are their contributions to MSD. Boxes are pixels of the image: left, top, right, bottom.
        """
        return _document(self)


def _joined(caption: str, units: Sequence[Unit]) -> Unit:
    """Merge consecutive units into one: sums of terms and penalties, the mean gap, the lowest p-value and evidence."""

    def values(name: str) -> list[float]:
        return [value for unit in units if (value := getattr(unit, name)) is not None]

    start, end, gaps = units[0].start, units[-1].end, values("gap")
    return Unit(
        caption[start:end], start, end, "word", True, tuple(token for unit in units for token in unit.tokens),
        term=sum(values("term")) if values("term") else None,
        gap=sum(gaps) / len(gaps) if gaps else None,
        evidence=min(values("evidence"), default=None),
        p_value=min(values("p_value"), default=None),
        penalty=sum(values("penalty")) if values("penalty") else None,
        judged=any(unit.judged for unit in units),
    )  # fmt: skip


def _document(item: Attribution) -> dict[str, Any]:
    layout = item.patches
    people = [name for name in NAMES if name in item.score.columns]
    score = {name: known(getattr(item.score, name)) for name in (*_FIRST, *item.form.columns, *_LAST, *people)}
    facts = {
        "caption": item.score.caption,
        "headline": item.score.headline,
        "word_notes": list(item.score.word_notes),
        "signature": item.score.signature,
        "warnings": list(item.score.warnings),
        "readable": item.readable,
        "map": item.projection,
        "score": {name: value for name, value in score.items() if value is not None}
        | {name: getattr(item.form, name) for name in item.form.shown_settings},
        "words": [_word(item, unit) for unit in item.units],
        "least_supported": [_unit(unit) for unit in item.ranked],
        "missing": list(map(_named_word, item.missing)),
        "suggestions": [
            {
                "number": suggestion.number,
                "word": suggestion.word,
                "instead": list(map(_named_word, suggestion.instead)),
            }
            for suggestion in item.suggestions
        ],
        "phrases": [_unit(unit) for unit in item.phrases],
        "tokens": [
            {"start": start, "end": end, "term": float(term)}
            for (start, end), term in zip(item.tokens.spans, item.support_terms, strict=True)
        ],
        "image": dict(zip(("width", "height", "rows", "columns"), (*layout.size, *layout.grid), strict=True)),
        "boxes": layout.boxes.tolist(),
        "support_map": item.support_map.tolist(),
        "penalty_map": item.penalty_map.tolist(),
    }
    if "omission" in item.form.maps:
        most = strongest(item.coverage_terms, layout, REGIONS)
        facts |= {"coverage_terms": item.coverage_terms.tolist(), "most_omitted": most}
    return facts


def _named_word(word: NamedWord) -> dict[str, Any]:
    """Return a word with its probability, and the number of references that have it, if there are references."""
    return {name: value for name, value in asdict(word).items() if value is not None}


def _unit(unit: Unit) -> dict[str, Any]:
    names = ("gap",) if unit.gap is not None else ("evidence", "p_value", "probability", "penalty")
    people = () if unit.references is None else ("references",)
    return {name: getattr(unit, name) for name in ("text", "start", "end", "term", *names, *people)}


def _word(item: Attribution, unit: Unit) -> dict[str, Any]:
    regions = strongest(item.word_map(unit).ravel(), item.patches, REGIONS) if item.has_region(unit) else []
    facts = {"kind": unit.kind, "content": unit.content, "judged": unit.judged}
    facts |= {"finding": found} if (found := item.finding(unit)) else {}
    facts |= {"reason": unit.reason} if unit.reason else {}
    return _unit(unit) | facts | {"leans_on": regions}
