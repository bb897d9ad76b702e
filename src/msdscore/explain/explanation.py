"""Explanations of scores by words and regions: to compute, to print, to show in a notebook, and to save."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.core.arrays import to_numpy
from msdscore.core.embeddings import take
from msdscore.core.evidence import ZERO
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.errors import ConfigError, MissingExtraError, RowError
from msdscore.explain import maps
from msdscore.explain.figure import FIGURES, figure, lacks_glyphs, rendered
from msdscore.explain.html import explanation_page, snippet
from msdscore.explain.look import PRESENTATIONS, Presentation, finding, remarks
from msdscore.forms.base import Floats, Form, Unit
from msdscore.forms.references import NAMES, agreed_words, p_value_with_references
from msdscore.io.images import ImageSource
from msdscore.io.targets import check_target, put
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import ReferenceComparison, compare_texts
from msdscore.scoring.results import Score, known, numbers
from msdscore.scoring.rows import finish, scores_of
from msdscore.scoring.vocabulary import MISSING, NamedWord, Namer, Suggestion
from msdscore.text.words import Word, phrases, segment

KINDS = (*FIGURES, ".html", ".json")  # suffixes of files that explanations can be written to
REGIONS = 3  # named for every word and map
_SHARPER = 4  # factor of kappa in maps of words: more of their mass is on the object (docs/explain.md)
_FIRST = ("msd", "soft_msd", "similarity")  # of the score of an explanation; then those of the form
_LAST = ("match", "verdict", "uncertainty", "length", "candidates")
_namers: WeakKeyDictionary[Pipeline, Namer] = WeakKeyDictionary()  # values that depend only on a bank are computed once


@dataclass(frozen=True, eq=False, repr=False)  # without slots, for cached properties
class Explanation:
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
        return PRESENTATIONS[self.form.group]

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
        support, penalty = (maps.over_all(side, self.visible) for side in maps.PROJECTIONS[self.projection](self.terms))
        if self.projection == maps.CARRIED:
            support, penalty = (maps.region(side, self.patches.grid, self.visible) for side in (support, penalty))
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

    def leaning(self, unit: Unit) -> Floats:
        """Return the region that matches a word, rows by columns, adding up to 1; see `has_region`.

        It is the sharpened affinity of the word's tokens to patches, smoothed and weighted towards the centre.
        """
        if not unit.tokens:
            raise ConfigError(f"the encoder reads no token at {unit.text!r}, so it has no region")
        sharp = maps.sharpened(self.affinity[list(unit.tokens)], _SHARPER).mean(axis=0)
        return maps.region(sharp, self.patches.grid, self.visible).reshape(self.patches.grid)

    def has_region(self, unit: Unit) -> bool:
        """Whether the region of a word is worth showing: the image supports the word better than most true ones.

        Under the paper's form, which has no p-values, every word that the encoder reads has a region.
        """
        if not unit.tokens:
            return False
        return unit.p_value >= maps.SURE if unit.p_value is not None else unit.gap is not None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the pixels as plain values."""
        return document(self)

    def save(self, path: str | Path) -> None:
        """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        Explanations((self,)).save(path)

    def __str__(self) -> str:
        return "\n".join([str(self.score), *remarks(self)])

    def __repr__(self) -> str:
        least = f", least supported {self.ranked[0].text!r}" if self.ranked else ""
        return f"Explanation({self.score.caption!r}, msd {self.score.msd:+.4f}{least})"

    def _repr_html_(self) -> str:
        return Explanations((self,))._repr_html_()

    def _repr_png_(self) -> bytes | None:
        return Explanations((self,))._repr_png_()


@dataclass(frozen=True, slots=True)
class Explanations:
    """Explanations of captions of one image, shown next to each other on one scale."""

    items: tuple[Explanation, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Explanation:
        return self.items[index]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.items)

    def with_maps(self, projection: str) -> "Explanations":
        """Return the same explanations with other maps, e.g. `carried`: token terms projected onto the image.

        Raises:
            UnknownNameError: `projection` is not one of `msdscore.explain.maps.PROJECTIONS`.
        """
        maps.check_projection(projection)
        return Explanations(tuple(replace(item, projection=projection) for item in self.items))

    def save(self, path: str | Path) -> None:
        """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        check_target(Path(path), KINDS)
        put(Path(path), encoded(self.items, Path(path).suffix), overwrite=True)

    def __str__(self) -> str:
        return "\n\n".join(f"{item.score.caption}\n{item}" for item in self)

    def _repr_html_(self) -> str:
        return snippet(self.items)

    def _repr_png_(self) -> bytes | None:
        try:
            return encoded(self.items, "png")
        except MissingExtraError:
            return None


def joined_explanations(parts: Iterable[Explanations]) -> Explanations:
    """Merge explanations of one image by several encoders, to show them on one scale."""
    items = tuple(item for part in parts for item in part)
    forms = dict.fromkeys(item.form.name for item in items)
    if len(forms) > 1:
        raise ConfigError(f"encoders shown together need one form, got {' and '.join(forms)}; add --form paper")
    return Explanations(items)


def explain(
    pipeline: Pipeline,
    image: ImageSource,
    captions: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    doubt: float = ZERO,
) -> Explanations:
    """Score captions of one image as a candidate set, with all terms."""
    if isinstance(captions, str) or not captions:
        raise ConfigError("an explanation needs a list of at least one caption")
    return explain_embedded(pipeline, *embed_image(pipeline, image), captions, references, doubt=doubt)


def explain_pairs(
    pipeline: Pipeline,
    images: Sequence[ImageSource],
    captions: Sequence[str],
    references: Sequence[Sequence[str] | None] = (),
    *,
    doubt: float = ZERO,
) -> Iterator["Explanation | RowError"]:
    """Explain each caption with its image separately; an item that cannot be read yields its error.

    Images are encoded in batches of the pipeline's size.
    """
    for start in range(0, len(captions), pipeline.batch_size):
        chosen = slice(start, start + pipeline.batch_size)
        decoded = pipeline.decode(images[chosen], keep=True)
        embedded = pipeline.embed_images(decoded)
        for number, (item, caption) in enumerate(zip(decoded, captions[chosen], strict=True)):
            if number in embedded.errors or isinstance(item, RowError):
                yield embedded.errors[number]
                continue
            row = embedded.row(number)
            alone = Embedded(take(embedded.vectors, [row]), (0,), {}, embedded.keys[row : row + 1])
            try:
                said = references[start + number] if references else None
                yield explain_embedded(pipeline, image_of(item), alone, [caption], said, doubt=doubt)[0]
            except RowError as error:
                yield error


def embed_image(pipeline: Pipeline, image: ImageSource) -> tuple[Image, Embedded]:
    """Return an image in full size and its embedding."""
    (decoded,) = pipeline.decode([image], keep=True)
    embedded = pipeline.embed_images([decoded]).require()
    return image_of(decoded), embedded


def image_of(decoded: Decoded | RowError) -> Image:
    """Return the decoded image of a source."""
    assert isinstance(decoded, Decoded), "images that cannot be read have raised their error"
    assert decoded.image is not None, "the image was requested"
    return decoded.image


def explain_embedded(
    pipeline: Pipeline,
    image: Image,
    images: Embedded,
    captions: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    doubt: float = ZERO,
) -> Explanations:
    """Explain captions of an embedded image, with references if there are any.

    Words with a p-value below `doubt` are in doubt.
    """
    if not 0 < doubt < 1:
        raise ConfigError(f"the threshold of doubt is a p-value between 0 and 1, got {doubt!r}; 0.1 is usual")
    # A caption is read once, for the image and for the references.
    pipeline = pipeline if references is None else pipeline.remembering_texts()
    texts = pipeline.embed_texts(captions).require()
    measured, form = pipeline.measure(images, texts, [0] * len(captions), range(len(captions))), pipeline.form
    rows = numbers(measured, form)
    compared = [] if references is None else compare_texts(pipeline.embedder, captions, [references] * len(captions))
    if compared:
        rows = tuple(comparison.added_to(row) for comparison, row in zip(compared, rows, strict=True))
    scores = finish(
        scores_of(captions, rows, [0] * len(captions), form, pipeline.signature, verdict_at=pipeline.verdict_at), form
    )
    terms, layout = maps.terms_of(form, images, texts, measured), measured.patches[0]
    visible = to_numpy(images.vectors.mask)[0, : len(layout.boxes)]
    units = [form.units(measured, number) for number in range(len(captions))]
    words = [form.words(measured, number) for number in range(len(captions))]
    if compared:
        units = [_with_references(*each) for each in zip(units, words, compared, strict=True)]
    named = _named_words(pipeline, images, texts, units, words, doubt)
    explained = []
    for number, (score, judged, (missing, suggestions)) in enumerate(zip(scores, units, named, strict=True)):
        if compared:
            missing = _missing_words(missing, words[number], compared[number])
        if not score.readable:
            judged, missing, suggestions = _not_judged(judged), (), ()
        score = score.with_doubtful(_findings(judged, doubt))
        explained.append(Explanation(
            score, image, layout, measured.tokens[number], terms[number], visible, form,
            judged, missing, suggestions, doubt, PRESENTATIONS[form.group].projection,
        ))  # fmt: skip
    return Explanations(tuple(explained))


Named = tuple[tuple[NamedWord, ...], tuple[Suggestion, ...]]


def _named_words(
    pipeline: Pipeline,
    images: Embedded,
    texts: Embedded,
    units: Sequence[Sequence[Unit]],
    words: Sequence[Sequence[Word]],
    doubt: float,
) -> list[Named]:
    """Return the words missing from each caption, and words that would fit better than those in doubt.

    Both are empty if the form names no words, or the bank has no vocabulary.
    """
    vocabulary = None if pipeline.bank is None else pipeline.bank.bank.vocabulary
    if vocabulary is None or not PRESENTATIONS[pipeline.form.group].names_words:
        return [((), ())] * len(units)
    if pipeline not in _namers:
        _namers[pipeline] = Namer(pipeline, vocabulary)
    namer = _namers[pipeline]
    probabilities, named = namer.probabilities(images), list[Named]()
    for number, (judged, said) in enumerate(zip(units, words, strict=True)):
        doubtful = [at for at, unit in enumerate(judged) if unit.p_value is not None and unit.p_value < doubt]
        missing = namer.missing(probabilities, said, texts.vectors.points[texts.row(number)], doubtful)
        named.append((missing, tuple(namer.suggestions(probabilities, said, doubtful))))
    return named


def _with_references(units: Sequence[Unit], words: Sequence[Word], compared: ReferenceComparison) -> tuple[Unit, ...]:
    """Return the words of a caption with the number of references that have each, and p-values based on both."""
    counted, total = list(units), len(compared.references)
    for number, (unit, count) in enumerate(zip(units, compared.count_words(words), strict=True)):
        if count is not None:
            p_value = None if unit.p_value is None else p_value_with_references(unit.p_value, count, total)
            counted[number] = replace(unit, references=count, p_value=p_value)
    return tuple(counted)


def _missing_words(
    missing: Sequence[NamedWord], words: Sequence[Word], compared: ReferenceComparison
) -> tuple[NamedWord, ...]:
    """Return missing words of a caption: first those of several references, then those that the image shows."""
    said, total = {word.stem for word in words}, len(compared.references)
    agreed = agreed_words(compared.references) if total else []
    named = [NamedWord(word, round(count / total, 4), count) for stem, word, count in agreed if stem not in said]
    known = {word.word for word in named}
    return tuple([*named, *(word for word in missing if word.word not in known)][:MISSING])


def _findings(units: Sequence[Unit], doubt: float) -> dict[str, str] | None:
    """Return what is said about each word in doubt, the least supported first; None if no word has a p-value."""
    words = [unit for unit in ranked(units) if unit.p_value is not None]
    return {unit.text: found for unit in words if (found := finding(unit, doubt))} if words else None


def _not_judged(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Return the words of a caption that the encoder cannot read, with this reason and no number but their terms."""
    nothing = dict.fromkeys(("gap", "evidence", "p_value", "probability", "penalty"))
    reason = "the caption is in a language that this encoder does not read"
    return tuple(
        replace(unit, **nothing, judged=False, reason=reason) if unit.content else unit  # type: ignore[arg-type]
        for unit in units
    )


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


def encoded(items: Sequence[Explanation], kind: str) -> bytes:
    """Return the bytes of a file of a format: png, svg, pdf, html or json, by name or suffix."""
    kind = kind.lower().removeprefix(".")
    if kind == "html":
        return explanation_page(items).encode()
    if kind == "json":
        return to_json(items)
    # Letters that no installed font has are written as text, for the fonts of the viewer.
    as_text = kind == "svg" and lacks_glyphs(item.score.caption for item in items)
    return rendered(figure(items, warn=not as_text), kind, as_text=as_text)


def to_json(items: Sequence[Explanation]) -> bytes:
    """Return the numbers as JSON, one object per caption."""
    explanations = {"explanations": [document(item) for item in items]}
    return (json.dumps(explanations, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


def document(item: Explanation) -> dict[str, Any]:
    """Return everything but the pixels: score, terms, words, phrases, maps and their strongest regions.

    The terms of words are their contributions to MSD. Boxes are pixels of the image: left, top, right, bottom.
    """
    layout = item.patches
    people = [name for name in NAMES if name in item.score.columns]
    score = {name: known(getattr(item.score, name)) for name in (*_FIRST, *item.form.columns, *_LAST, *people)}
    facts = {
        "caption": item.score.caption,
        "signature": item.score.signature,
        "warnings": list(item.score.warnings),
        "readable": item.readable,
        "map": item.projection,
        "score": {name: value for name, value in score.items() if value is not None}
        | {name: getattr(item.form, name) for name in item.presentation.settings},
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
    if "omission" in item.presentation.maps:
        most = maps.strongest(item.coverage_terms, layout, REGIONS)
        facts |= {"coverage_terms": item.coverage_terms.tolist(), "most_omitted": most}
    return facts


def _named_word(word: NamedWord) -> dict[str, Any]:
    """Return a word with its probability, and the number of references that have it, if there are references."""
    return {name: value for name, value in asdict(word).items() if value is not None}


def _unit(unit: Unit) -> dict[str, Any]:
    names = ("gap",) if unit.gap is not None else ("evidence", "p_value", "probability", "penalty")
    people = () if unit.references is None else ("references",)
    return {name: getattr(unit, name) for name in ("text", "start", "end", "term", *names, *people)}


def _word(item: Explanation, unit: Unit) -> dict[str, Any]:
    regions = maps.strongest(item.leaning(unit).ravel(), item.patches, REGIONS) if item.has_region(unit) else []
    facts = {"kind": unit.kind, "content": unit.content, "judged": unit.judged}
    facts |= {"finding": found} if (found := finding(unit, item.doubt)) else {}
    facts |= {"reason": unit.reason} if unit.reason else {}
    return _unit(unit) | facts | {"leans_on": regions}
