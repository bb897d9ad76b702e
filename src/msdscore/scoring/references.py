"""Compare captions with references: texts in, the numbers of the reference score out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from msdscore.core.arrays import Array, Bool, Float, namespace
from msdscore.encoders.base import TokenLayout
from msdscore.errors import RowError
from msdscore.forms.references import (
    NAMES,
    NO_REFERENCES,
    TEXT_ONLY,
    Background,
    background_captions,
    measure_references,
    said_in,
    split_references,
)
from msdscore.scoring.embedder import Embedded, Embedder
from msdscore.scoring.results import Numbers
from msdscore.text.normal import clean
from msdscore.text.words import Word

_MOST = 4  # backgrounds that are cached
_TEXTS = 64  # sentences per batch
_backgrounds: dict[tuple[str, str], Background] = {}  # by the signature and device of their encoder
_backgrounds_lock = Lock()  # never locked while an encoder runs


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """A caption compared with its references; `values` is None if there was no reference to compare it with.

    `meant` is True for the tokens of the caption that a reference means.
    """

    references: tuple[str, ...] = ()
    values: Mapping[str, float] | None = None
    warnings: tuple[str, ...] = ()
    meant: Bool[np.ndarray, "references tokens"] | None = None

    def added_to(self, numbers: Numbers) -> Numbers:
        """Return the numbers of the caption with those of its references, and their sum with MSD."""
        if self.values is None:  # missing, not absent: references were passed
            added: Mapping[str, float | None] = {**dict.fromkeys(NAMES), "reference_count": 0}
        else:
            added = {**self.values, "ref_msd": numbers.values["msd"] + self.values["reference_score"]}
        warnings = (*numbers.warnings, *self.warnings)
        # References judge words too, which only an explanation does: those of the image alone would contradict it.
        return replace(numbers, values={**numbers.values, **added}, warnings=warnings, doubtful=None)

    def alone(self, length: int, windows: int, warnings: Sequence[str]) -> Numbers | RowError:
        """Return the numbers of a caption without an image."""
        if self.values is None:
            return RowError("no image, and no reference to compare the caption with")
        return Numbers({"length": length, "windows": windows, **self.values}, (*warnings, *self.warnings, TEXT_ONLY))

    def count_words(self, words: Sequence[Word]) -> list[int | None]:
        """Return the number of references that say or mean each word of the caption.

        None for punctuation, for negated words, and without references.
        """
        said, meant = said_in(self.references), self.meant
        return [
            sum(
                word.stem in stems
                or (meant is not None and bool(word.tokens) and bool(meant[number, list(word.tokens)].all()))
                for number, stems in enumerate(said)
            )
            if said and word.content and not word.negated
            else None
            for word in words
        ]


def compare_texts(
    embedder: Embedder, captions: Sequence[str], references: Sequence[Sequence[str]]
) -> list[ReferenceComparison]:
    """Compare every caption with its references; a caption is never compared with itself."""
    split = [split_references(str(caption), listed) for caption, listed in zip(captions, references, strict=True)]
    compared = [index for index, (others, _) in enumerate(split) if others]
    if not compared:
        return [ReferenceComparison(warnings=warnings) for _, warnings in split]
    texts = list(dict.fromkeys(text for index in compared for text in (captions[index], *split[index][0])))
    embedded = embedder.texts(texts)
    row_of = {text: row for text, row in zip(texts, embedded.rows, strict=True) if row is not None}
    comparisons, pairs = list[ReferenceComparison](), dict[int, tuple[int, list[int]]]()
    for index, (others, warnings) in enumerate(split):
        readable = tuple(text for text in others if text in row_of)
        rows = [row_of[text] for text in readable]
        layouts = [layout for row in rows if isinstance(layout := embedded.vectors.layout[row], TokenLayout)]
        notes = [*warnings, *dict.fromkeys(f"references: {note}" for layout in layouts for note in layout.warnings)]
        if ignored := len(others) - len(readable):
            notes.append(f"{ignored} of {len(others)} references ignored: the encoder cannot read them")
        if others and not readable:
            notes.append(NO_REFERENCES)
        usable = bool(readable) and captions[index] in row_of
        comparisons.append(ReferenceComparison(readable if usable else (), None, tuple(notes)))
        if usable:
            pairs[index] = row_of[captions[index]], rows
    if pairs:
        sentences = _sentences(embedder, embedded)
        columns, meant = measure_references(embedded.vectors, sentences, list(pairs.values()), _background(embedder))
        for pair, index in enumerate(pairs):
            values = {name: column[pair] for name, column in columns.items()}
            comparisons[index] = replace(comparisons[index], values=values, meant=meant[pair])
    return comparisons


def _sentences(embedder: Embedder, texts: Embedded) -> Float[Array, "texts dim"]:
    """Return sentence vectors of embedded texts: the encoder's, else its pooled vectors."""
    encode = embedder.can.encode_sentences
    if encode is None:
        return texts.vectors.pooled
    # As for all texts of an encoder: without invisible characters, and texts of similar length together.
    plain = [text if (cleaned := clean(text)) is None else cleaned.text for text in texts.captions]
    distinct, vectors = sorted(set(plain), key=len), dict[str, Array]()
    for start in range(0, len(distinct), _TEXTS):
        batch = distinct[start : start + _TEXTS]
        vectors |= dict(zip(batch, encode(batch), strict=True))
    return namespace(texts.vectors.pooled).stack([vectors[text] for text in plain])


def _background(embedder: Embedder) -> Background:
    """Return the background captions of an encoder, encoded once; threads that meet here first each encode them."""
    key = embedder.signature, str(embedder.encoder.device)
    with _backgrounds_lock:
        background = _backgrounds.get(key)
    if background is None:
        background = Background.of(embedder.vectors(background_captions()))
        with _backgrounds_lock:
            background = _backgrounds.setdefault(key, background)
            while len(_backgrounds) > _MOST:
                del _backgrounds[next(iter(_backgrounds))]
    return background
