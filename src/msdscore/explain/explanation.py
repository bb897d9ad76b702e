"""Explanations: the score of a caption taken apart, to print, to look at in a notebook, to save."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from PIL.Image import Image

from msdscore.core.evidence import ZERO
from msdscore.encoders.base import PatchLayout, TokenLayout
from msdscore.errors import ConfigError, MissingExtraError
from msdscore.explain import maps
from msdscore.explain.terms import PROJECTION, Unit, image_of, joined, ranked, terms_of, units_of
from msdscore.io.images import ImageSource
from msdscore.scoring.config import Form, Paper
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.measurement import Measurement, numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores
from msdscore.scoring.score import Score
from msdscore.scoring.vocabulary import NamedWord, Namer, Suggestion
from msdscore.text.words import phrases, segment

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)  # without slots: computed parts are kept
class Explanation:
    """The score of one caption of one image, taken apart.

    The terms of `units` add up to what the words add to MSD. Under the paper's form `coverage_terms` (one per patch)
    add up to `score.coverage` and `support_terms` (one per token) to `score.support`, in nats. Patches that the encoder
    masks are not `visible` and have zero everywhere. `missing` are words that are probably true of the image and not
    said, `suggestions` words that would fit better than a word in doubt; they explain, and do not enter the score.
    """

    score: Score
    image: Image
    patches: PatchLayout
    tokens: TokenLayout
    terms: maps.Terms
    visible: npt.NDArray[np.bool_]  # one per patch of `patches`
    form: Form
    units: tuple[Unit, ...]  # words and marks in reading order
    missing: tuple[NamedWord, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def picture(self) -> Image:
        """The image, by the name that it had before."""
        return self.image

    @property
    def coverage_terms(self) -> Floats:
        """One per patch, adding up to the coverage divergence; zero under the evidence form."""
        return maps.over_all(self.terms.coverage, self.visible)

    @property
    def support_terms(self) -> Floats:
        """One per token, adding up to the support divergence; under the evidence form minus what tokens add to MSD."""
        return self.terms.support

    @property
    def affinity(self) -> Floats:
        """How every token spreads over the patches; rows add up to 1."""
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
        """Words with a p-value under 0.1, the least supported first."""
        return tuple(unit for unit in self.ranked if unit.p_value is not None and unit.p_value < ZERO)

    @cached_property
    def phrases(self) -> tuple[Unit, ...]:
        """Adjacent content words together ("cup of milk"), the least supported first."""
        words = segment(self.score.caption, compounds=isinstance(self.form, Paper))
        return ranked(joined(self.score.caption, [self.units[n] for n in numbers]) for numbers in phrases(words))

    @cached_property
    def regions(self) -> maps.Regions:
        """For each patch one number for the caption and one against it; the maps show where they are above zero."""
        regions = maps.project(self.terms, PROJECTION)
        return maps.Regions(*(maps.over_all(side, self.visible) for side in (regions.support, regions.penalty)))

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

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pixels, as plain values."""
        from msdscore.explain.save import document

        return document(self)

    def save(self, path: str | Path) -> None:
        """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        Explanations((self,)).save(path)

    def __str__(self) -> str:
        from msdscore.explain.look import in_words

        return "\n".join([str(self.score), *in_words(self)])

    def __repr__(self) -> str:
        least = f", least supported {self.ranked[0].text!r}" if self.ranked else ""
        return f"Explanation({self.score.caption!r}, msd {self.score.msd:+.4f}{least})"

    def _repr_html_(self) -> str:
        return Explanations((self,))._repr_html_()

    def _repr_png_(self) -> bytes | None:
        return Explanations((self,))._repr_png_()


@dataclass(frozen=True, slots=True)
class Explanations:
    """Explanations of captions of one image, shown side by side on one scale."""

    items: tuple[Explanation, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Explanation:
        return self.items[index]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.items)

    def save(self, path: str | Path) -> None:
        """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        from msdscore.explain.save import save

        save(self.items, Path(path))

    def __str__(self) -> str:
        return "\n\n".join(f"{item.score.caption}\n{item}" for item in self)

    def _repr_html_(self) -> str:
        from msdscore.explain.html import snippet

        return snippet(self.items)

    def _repr_png_(self) -> bytes | None:
        from msdscore.explain.save import encoded

        try:
            return encoded(self.items, "png")
        except MissingExtraError:
            return None


def explain(pipeline: Pipeline, image: ImageSource, captions: Sequence[str]) -> Explanations:
    """Score captions of one image as a candidate set and keep every term."""
    if isinstance(captions, str) or not captions:
        raise ConfigError("an explanation needs a list of at least one caption")
    return explain_embedded(pipeline, *embed_image(pipeline, image), captions)


def embed_image(pipeline: Pipeline, image: ImageSource) -> tuple[Image, Embedded]:
    """An image in full size and its vectors."""
    (decoded,) = pipeline.decode([image], keep=True)
    embedded = pipeline.embed_images([decoded]).require()
    return image_of(decoded), embedded


def explain_embedded(pipeline: Pipeline, image: Image, images: Embedded, captions: Sequence[str]) -> Explanations:
    """Explanations of captions of an image of which the vectors are known."""
    texts = pipeline.embed_texts(captions).require()
    measured = pipeline.measure(images, texts, [0] * len(captions), range(len(captions)))
    form = pipeline.config
    scores = Scores.of(captions, numbers(measured, form), [0] * len(captions), form, pipeline.signature)
    terms = terms_of(form, images, texts, measured)
    units = [units_of(form, measured, number, caption) for number, caption in enumerate(captions)]
    named = _named(pipeline, images, texts, measured, units)
    layout = measured.patches[0]
    visible = images.vectors.mask[0, : len(layout.boxes)].cpu().numpy()
    return Explanations(
        tuple(
            Explanation(
                score, image, layout, measured.tokens[number], terms[number], visible, form,
                units[number], *named[number],
            )
            for number, score in enumerate(scores)
        )
    )  # fmt: skip


def _named(
    pipeline: Pipeline, images: Embedded, texts: Embedded, measured: Measurement, units: Sequence[Sequence[Unit]]
) -> list[tuple[tuple[NamedWord, ...], tuple[Suggestion, ...]]]:
    """For every caption the words that it does not say, and those that would fit better."""
    vocabulary = None if pipeline.bank is None else pipeline.bank.bank.vocabulary
    if vocabulary is None or measured.words is None:
        return [((), ())] * len(units)
    if pipeline not in _namers:
        _namers[pipeline] = Namer(pipeline, vocabulary)
    namer = _namers[pipeline]
    probabilities = namer.probabilities(images)
    named = []
    for number, own in enumerate(units):
        words = measured.words.spoken[number]
        points = texts.vectors.points[int(measured.text_of[number])]
        doubtful = [place for place, unit in enumerate(own) if unit.p_value is not None and unit.p_value < ZERO]
        suggestions = tuple(namer.suggestions(probabilities, words, doubtful))
        named.append((namer.missing(probabilities, words, points), suggestions))
    return named


_namers: WeakKeyDictionary[Pipeline, Namer] = WeakKeyDictionary()  # what depends on a bank alone is computed once
