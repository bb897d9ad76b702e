"""Words that an image shows and a caption omits, and replacements for words in doubt.

Every word of a vocabulary has evidence under an image, like the words of captions. Together with its frequency in
captions, this determines the probability that people would name it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from msdscore.core.arrays import Array, to_numpy
from msdscore.core.embeddings import unit
from msdscore.core.evidence import Vocabulary
from msdscore.core.mixture import Mixture, log_densities
from msdscore.scoring.embedder import Embedded, Recent
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import COLOURS, NUMBERS, PERSONS, Word, stem

Vectors = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
SAME = 0.75  # correlation over background images from which two words count as synonyms
MISSING = 10  # words named at most as missing from a caption
LIKELY = (
    0.85  # least probability of a missing word: two of three are confirmed by other captions (docs/lab/evidence.md)
)
LIKELIER = 0.5  # least probability of a suggestion: seven of ten are confirmed
NEAREST = 8  # words in the most similar contexts, among which a suggestion is looked for
SURE = 0.3  # least reliability of a missing word
LATEST = 64  # images whose probabilities are cached
_IMAGES = 256  # images per batch


@dataclass(frozen=True, slots=True)
class NamedWord:
    """A word and the probability that it is true of the image; for a word of references, the share that has it.

    `references` is the number of references that have it.
    """

    word: str
    probability: float
    references: int | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A word in doubt, with its index in the caption, and similar words that fit the image better."""

    number: int
    word: str
    instead: tuple[NamedWord, ...]


def expected_densities(pipeline: Pipeline, points: Vectors) -> Vectors:
    """Return the mean log density of every word over the images of the bank."""
    assert pipeline.bank is not None, "the evidence form has a bank"
    return log_densities(pipeline.bank.bank.images, points[np.newaxis])[0].mean(axis=0)


def image_evidence(pipeline: Pipeline, images: Embedded, points: Vectors, expected: Vectors) -> Floats:
    """Return the evidence of every word under every image, images by words, from `expected_densities`."""
    measured = pipeline.fit_images(images).on("cpu")
    rows = [
        log_densities(measured.part(start, start + _IMAGES), points[np.newaxis])[0] - expected
        for start in range(0, len(measured), _IMAGES)
    ]
    return np.concatenate(rows).astype(np.float64)


class Namer:
    """Names the words that images show, with one pipeline; values that depend only on the bank are computed once."""

    def __init__(self, pipeline: Pipeline, vocabulary: Vocabulary) -> None:
        self._pipeline = pipeline
        self._vocabulary = vocabulary
        assert pipeline.bank is not None, "a vocabulary comes with a bank"
        self._background = pipeline.bank.bank.images
        self._profiles = _profiles(self._background, vocabulary.points)
        self._expected = expected_densities(pipeline, vocabulary.points)
        self._images = Recent[bytes, Floats](LATEST)  # whose captions are edited
        self._number = {stem: number for number, stem in enumerate(vocabulary.stems)}
        words = pipeline.bank.bank.words
        assert words is not None, "a vocabulary comes with words"
        self._sure = [words.reliability.get(stem, words.other) >= SURE for stem in vocabulary.stems]

    def probabilities(self, images: Embedded) -> Floats:
        """Return the probability of every word of the vocabulary under the first image."""

        def compute() -> Floats:
            evidence = image_evidence(self._pipeline, images, self._vocabulary.points, self._expected)
            return self._vocabulary.probabilities(evidence[0])

        return self._images.get(sha256(to_numpy(images.vectors.points[0]).tobytes()).digest(), compute)

    def missing(
        self, probabilities: Floats, words: Sequence[Word], points: Array, doubtful: Sequence[int] = ()
    ) -> tuple[NamedWord, ...]:
        """Return words that are probably true of the image and that the caption neither has nor implies.

        For a caption without content words they are the most probable words of the image, with a lower limit.
        `points` are the vectors of the caption's tokens; words in doubt, by position, imply nothing.
        """
        has_person = any(word.stem in PERSONS for word in words)  # sex and age are not judged
        known = {position: self._number[word.stem] for position, word in enumerate(words) if word.stem in self._number}
        said = list(known.values())
        trusted = [number for position, number in known.items() if position not in doubtful]
        spoken = [token for word in words if word.content and not word.negated for token in word.tokens]
        least = LIKELY if spoken else LIKELIER
        near = np.concatenate([self._profiles[said], _profiles(self._background, to_numpy(points)[spoken])])
        chosen: list[int] = []
        alike = self._vocabulary.alike
        for number in np.argsort(-probabilities, kind="stable").tolist():
            if len(chosen) == MISSING or probabilities[number] < least:
                break
            if not self._sure[number] or number in said or (has_person and self._vocabulary.stems[number] in PERSONS):
                continue
            # Words in the same contexts: a caption with one of them rarely needs the other.
            if any((alike[number] == word).any() or (alike[word] == number).any() for word in (*trusted, *chosen)):
                continue
            others = np.concatenate([near, self._profiles[chosen]])
            if not (others @ self._profiles[number] > SAME).any():
                chosen.append(number)
        return self._named(chosen, probabilities)

    def suggestions(
        self, probabilities: Floats, words: Sequence[Word], doubtful: Sequence[int]
    ) -> Iterator[Suggestion]:
        """Yield, for each word in doubt, a word of its class that is likely under the image, if there is one."""
        stems = {word.stem for word in words}
        for number in doubtful:
            doubted = self._number.get(words[number].stem)
            if doubted is None:
                continue
            text = words[number].text.lower()
            likely = [
                other
                for other in self._vocabulary.alike[doubted, :NEAREST].tolist()
                if other >= 0
                and probabilities[other] >= max(LIKELIER, float(probabilities[doubted]))
                and self._vocabulary.stems[other] not in stems
                and is_exchange(text, self._vocabulary.words[other])
            ]
            if likely:
                best = max(likely, key=lambda other: float(probabilities[other]))
                yield Suggestion(number, words[number].text, self._named([best], probabilities))

    def _named(self, numbers: Sequence[int], probabilities: Floats) -> tuple[NamedWord, ...]:
        words = self._vocabulary.words
        return tuple(NamedWord(words[number], round(float(probabilities[number]), 4)) for number in numbers)


def is_exchange(word: str, other: str) -> bool:
    """Whether another word is of the same class, not a form of the same verb or noun, and names no person.

    >>> is_exchange("dog", "cat"), is_exchange("two", "white"), is_exchange("running", "runs")
    (True, False, False)
    >>> is_exchange("woman", "boy"), is_exchange("dog", "boy")
    (False, False)
    """
    return stem(other) not in PERSONS and _class(word) == _class(other) and _root(word) != _root(other)


def _class(word: str) -> str:
    """A class that shows in the word itself: colours, numbers and forms in -ing."""
    return "colour" if word in COLOURS else "number" if word in NUMBERS else "ing" if word.endswith("ing") else ""


def _root(word: str) -> str:
    """A word without the endings of verbs and plurals, and without the consonant that they double."""
    root = re.sub(r"(ing|ed|es|s)$", "", word) if len(word) > 4 else word.removesuffix("s")
    return (root[:-1] if len(root) > 2 and root[-1] == root[-2] else root).rstrip("e")


def _profiles(background: Mixture, points: Vectors) -> Vectors:
    """Return log densities over background images, centred and of unit length: their products are correlations."""
    profiles = log_densities(background, points[np.newaxis])[0].T
    centred = profiles - profiles.mean(axis=1, keepdims=True)
    return unit(centred)
