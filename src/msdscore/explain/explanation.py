"""Explanations of scores by words and regions: to compute, to print, to show in a notebook, and to save."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakKeyDictionary

from PIL.Image import Image

from msdscore.core.arrays import to_numpy
from msdscore.core.evidence import ZERO
from msdscore.errors import ConfigError, RowError
from msdscore.explain.attribution import Attribution
from msdscore.explain.figure import FIGURES, figure, rendered
from msdscore.explain.html import explanation_page, snippet
from msdscore.explain.look import remarks
from msdscore.explain.projections import check_projection, terms_of
from msdscore.forms.base import Unit, finding, numbers_of, ranked
from msdscore.io.images import ImageSource
from msdscore.io.targets import check_target, put
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import ReferenceComparison, agreed_words, compare_texts, p_value_with_references
from msdscore.scoring.rows import finish, scores_of
from msdscore.scoring.vocabulary import MISSING, NamedWord, Namer, Suggestion
from msdscore.text.words import Word

KINDS = (*FIGURES, ".html", ".json")  # suffixes of files that explanations can be written to
Named = tuple[tuple[NamedWord, ...], tuple[Suggestion, ...]]
_namers: WeakKeyDictionary[Pipeline, Namer] = WeakKeyDictionary()  # values that depend only on a bank are computed once


class Explanation(Attribution):
    """The score of one caption of one image, split into its terms; shown in notebooks, and saved as a file.

    The terms of `units` add up to the contribution of the words to MSD. Under the paper's form `coverage_terms` (one
    per patch) add up to `score.coverage` and `support_terms` (one per token) to `score.support`, in nats. Patches that
    the encoder masks are not `visible` and have zero everywhere. `missing` are words that are probably true of the
    image and not said, `suggestions` words that would fit better than a word in doubt; they are not part of the score.
    """

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
            UnknownNameError: `projection` is not one of `msdscore.explain.projections.PROJECTIONS`.
        """
        check_projection(projection)
        return Explanations(tuple(replace(item, projection=projection) for item in self.items))

    def save(self, path: str | Path) -> None:
        """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        check_target(Path(path), KINDS)
        put(Path(path), encoded(self.items, Path(path).suffix), overwrite=True)

    def __str__(self) -> str:
        return "\n\n".join(f"{item.score.caption}\n{item}" for item in self)

    def _repr_html_(self) -> str:
        return snippet(self.items)


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
    """Explain each caption with its image separately; an item that cannot be read yields its error."""
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        said = references[number] if references else None
        try:
            yield explain(pipeline, image, [caption], said, doubt=doubt)[0]
        except RowError as error:
            yield error


def embed_image(pipeline: Pipeline, image: ImageSource) -> tuple[Image, Embedded]:
    """Return an image in full size and its embedding."""
    (decoded,) = pipeline.decode([image], keep=True)
    embedded = pipeline.embedder.images([decoded]).require()
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
    namer = _namer_of(pipeline)
    # A caption is read once, for the image and for the references.
    pipeline = pipeline if references is None else pipeline.remembering_texts()
    texts = pipeline.embedder.texts(captions).require()
    measured, form = pipeline.measure(images, texts, [0] * len(captions), range(len(captions))), pipeline.form
    rows = numbers_of(measured, form)
    compared = [] if references is None else compare_texts(pipeline.embedder, captions, [references] * len(captions))
    if compared:
        rows = tuple(comparison.added_to(row) for comparison, row in zip(compared, rows, strict=True))
    scores = finish(scores_of(pipeline, captions, rows, [0] * len(captions)), form)
    terms, layout = terms_of(form, images, texts, measured), measured.patches[0]
    visible = to_numpy(images.vectors.mask)[0, : len(layout.boxes)]
    units = [form.units(measured, number) for number in range(len(captions))]
    words = [form.words(measured, number) for number in range(len(captions))]
    if compared:
        units = [_with_references(*each) for each in zip(units, words, compared, strict=True)]
    named = _named_words(namer, images, texts, units, words, doubt)
    explained = []
    for number, (score, judged, (missing, suggestions)) in enumerate(zip(scores, units, named, strict=True)):
        if compared:
            missing = _missing_words(missing, words[number], compared[number])
        if not score.readable:
            judged, missing, suggestions = _not_judged(judged), (), ()
        score = score.with_doubtful(findings(judged, doubt))
        explained.append(Explanation(
            score, image, layout, measured.tokens[number], terms[number], visible, form,
            judged, missing, suggestions, doubt, form.projection,
        ))  # fmt: skip
    return Explanations(tuple(explained))


def _namer_of(pipeline: Pipeline) -> Namer | None:
    """Return the namer of a pipeline, built once; None if the form names no words, or the bank has no vocabulary."""
    vocabulary = None if pipeline.bank is None else pipeline.bank.bank.vocabulary
    if vocabulary is None or not pipeline.form.has_p_values:
        return None
    if pipeline not in _namers:
        _namers[pipeline] = Namer(pipeline, vocabulary)
    return _namers[pipeline]


def _named_words(
    namer: Namer | None,
    images: Embedded,
    texts: Embedded,
    units: Sequence[Sequence[Unit]],
    words: Sequence[Sequence[Word]],
    doubt: float,
) -> list[Named]:
    """Return the words missing from each caption, and words that would fit better than those in doubt."""
    if namer is None:
        return [((), ())] * len(units)
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


def findings(units: Sequence[Unit], doubt: float) -> dict[str, str] | None:
    """Return what is said about each word in doubt, the least supported first; None if no word has a p-value."""
    words = [unit for unit in ranked(units) if unit.p_value is not None]
    found = {unit.text: finding(unit.text, unit.p_value, unit.probability, doubt) for unit in words}
    return {text: said for text, said in found.items() if said} if words else None


def _not_judged(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Return the words of a caption that the encoder cannot read, with this reason and no number but their terms."""
    nothing = dict.fromkeys(("gap", "evidence", "p_value", "probability", "penalty"))
    reason = "the caption is in a language that this encoder does not read"
    return tuple(
        replace(unit, **nothing, judged=False, reason=reason) if unit.content else unit  # type: ignore[arg-type]
        for unit in units
    )


def encoded(items: Sequence[Explanation], kind: str) -> bytes:
    """Return the bytes of a file of a format: png, svg, pdf, html or json, by name or suffix."""
    kind = kind.lower().removeprefix(".")
    if kind == "html":
        return explanation_page(items).encode()
    if kind == "json":
        return to_json(items)
    return rendered(figure(items), kind)


def to_json(items: Sequence[Explanation]) -> bytes:
    """Return the numbers as JSON, one object per caption."""
    explanations = {"explanations": [item.to_dict() for item in items]}
    return (json.dumps(explanations, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()
