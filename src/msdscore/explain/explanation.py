"""Explanations to print, to show in a notebook, and to save."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from PIL.Image import Image

from msdscore.core.arrays import Array, Float, to_numpy
from msdscore.core.embeddings import take
from msdscore.core.evidence import ZERO
from msdscore.errors import ConfigError, MissingExtraError, RowError
from msdscore.explain.html import snippet
from msdscore.explain.look import remarks
from msdscore.explain.maps import check_projection
from msdscore.explain.presentation import presentation_of
from msdscore.explain.save import KINDS, document, encoded
from msdscore.explain.terms import Attribution, image_of, terms_of
from msdscore.forms.base import Unit
from msdscore.forms.references import agreed_words, p_value_with_references
from msdscore.io.images import ImageSource
from msdscore.io.targets import check_target, put
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import ReferenceComparison, compare_texts
from msdscore.scoring.results import Scores, numbers
from msdscore.scoring.vocabulary import MISSING, NamedWord, Namer, Suggestion
from msdscore.text.words import Word


class Explanation(Attribution):
    """The score of one caption of one image, split into its terms; see `Attribution`."""

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
        raise ConfigError(f"encoders shown together need one form, got {' and '.join(forms)}; add --preset paper")
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
                known = references[start + number] if references else None
                yield explain_embedded(pipeline, image_of(item), alone, [caption], known, doubt=doubt)[0]
            except RowError as error:
                yield error


def embed_image(pipeline: Pipeline, image: ImageSource) -> tuple[Image, Embedded]:
    """Return an image in full size and its embedding."""
    (decoded,) = pipeline.decode([image], keep=True)
    embedded = pipeline.embed_images([decoded]).require()
    return image_of(decoded), embedded


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
    scores = Scores.of(captions, rows, [0] * len(captions), form, pipeline.signature)
    terms = terms_of(form, images, texts, measured)
    layout, projection, name_words = measured.patches[0], presentation_of(form).projection, _namer(pipeline, images)
    visible = to_numpy(images.vectors.mask)[0, : len(layout.boxes)]
    explained = []
    for number, score in enumerate(scores):
        units, words = form.units(measured, number), form.words(measured, number)
        if compared:
            units = _with_references(units, words, compared[number])
        missing, suggestions = name_words(units, words, texts.vectors.points[texts.row(number)], doubt)
        if compared:
            missing = _missing_words(missing, words, compared[number])
        if not score.readable:
            units, missing, suggestions = _not_judged(units), (), ()
        explained.append(Explanation(
            score, image, layout, measured.tokens[number], terms[number], visible, form,
            units, missing, suggestions, doubt, projection,
        ))  # fmt: skip
    return Explanations(tuple(explained))


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


def _not_judged(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Return the words of a caption that the encoder cannot read, with this reason and no number but their terms."""
    nothing = dict.fromkeys(("gap", "evidence", "p_value", "probability", "penalty"))
    reason = "the caption is in a language that this encoder does not read"
    return tuple(
        replace(unit, **nothing, judged=False, reason=reason) if unit.content else unit  # type: ignore[arg-type]
        for unit in units
    )


Named = tuple[tuple[NamedWord, ...], tuple[Suggestion, ...]]


def _namer(
    pipeline: Pipeline, images: Embedded
) -> Callable[[Sequence[Unit], Sequence[Word], Float[Array, "tokens dim"], float], Named]:
    """Return a function from a caption's words and token vectors to missing words and words that would fit better."""
    vocabulary = None if pipeline.bank is None else pipeline.bank.bank.vocabulary
    if vocabulary is None or not presentation_of(pipeline.form).names_words:
        return lambda units, words, points, doubt: ((), ())
    if pipeline not in _namers:
        _namers[pipeline] = Namer(pipeline, vocabulary)
    namer = _namers[pipeline]
    probabilities = namer.probabilities(images)

    def name_words(
        units: Sequence[Unit], words: Sequence[Word], points: Float[Array, "tokens dim"], doubt: float
    ) -> Named:
        doubtful = [number for number, unit in enumerate(units) if unit.p_value is not None and unit.p_value < doubt]
        suggestions = tuple(namer.suggestions(probabilities, words, doubtful))
        return namer.missing(probabilities, words, points, doubtful), suggestions

    return name_words


_namers: WeakKeyDictionary[Pipeline, Namer] = WeakKeyDictionary()  # values that depend only on a bank are computed once
