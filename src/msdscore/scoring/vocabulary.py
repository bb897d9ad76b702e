"""Words that an image shows and a caption omits, and replacements for words in doubt.

Every word of a vocabulary has evidence under an image, like the words of captions. Together with its frequency in
captions, this determines the probability that people would name it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from msdscore.core.evidence import Vocabulary
from msdscore.core.mixture import Mixture, log_densities
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import Word

SAME = 0.75  # correlation over background images from which two words count as synonyms
MISSING, INSTEAD = 10, 3  # words named at most: missing from a caption, and instead of one of its words
LIKELY = 0.3  # least probability of a missing word
SURE = 0.45  # its least reliability: words that the encoder judges poorly are not suggested
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


def expected_densities(pipeline: Pipeline, points: Tensor) -> Tensor:
    """Return the mean log density of every word over the images of the bank."""
    assert pipeline.bank is not None, "the evidence form has a bank"
    return log_densities(pipeline.bank.bank.images.to(points.device), points.unsqueeze(0))[0].mean(dim=0)


def image_evidence(pipeline: Pipeline, images: Embedded, points: Tensor, expected: Tensor) -> Tensor:
    """Return the evidence of every word under every image, images by words, given their `expected_densities`."""
    measured = pipeline.fit_images(images)
    rows = [
        log_densities(measured.take(slice(start, start + _IMAGES)).to(points.device), points.unsqueeze(0))[0] - expected
        for start in range(0, len(measured), _IMAGES)
    ]
    return torch.cat(rows).double().cpu()


class Namer:
    """Names the words that images show, with one pipeline; values that depend only on the bank are computed once."""

    def __init__(self, pipeline: Pipeline, vocabulary: Vocabulary) -> None:
        self._pipeline = pipeline
        self._vocabulary = vocabulary
        assert pipeline.bank is not None, "a vocabulary comes with a bank"
        self._background = pipeline.bank.bank.images
        self._profiles = _profiles(self._background, vocabulary.points)
        self._expected = expected_densities(pipeline, vocabulary.points)
        self._images = OrderedDict[bytes, Tensor]()  # probabilities of the latest images, for edited captions
        self._number = {stem: number for number, stem in enumerate(vocabulary.stems)}
        words = pipeline.bank.bank.words
        assert words is not None, "a vocabulary comes with words"
        self._sure = [words.reliability.get(stem, words.other) >= SURE for stem in vocabulary.stems]

    def probabilities(self, images: Embedded) -> Tensor:
        """Return the probability of every word of the vocabulary under the first image."""
        key = sha256(images.vectors.points[0].float().cpu().numpy().tobytes()).digest()
        if key not in self._images:
            evidence = image_evidence(self._pipeline, images, self._vocabulary.points, self._expected)
            self._images[key] = self._vocabulary.probabilities(evidence[0])
            if len(self._images) > LATEST:
                self._images.popitem(last=False)
        return self._images[key]

    def missing(self, probabilities: Tensor, words: Sequence[Word], points: Tensor) -> tuple[NamedWord, ...]:
        """Return words that are probably true of the image and that the caption neither has nor implies.

        `points` are the vectors of the caption's tokens.
        """
        said = [number for word in words if (number := self._number.get(word.stem)) is not None]
        spoken = [token for word in words if word.content and not word.denied for token in word.tokens]
        near = torch.cat([self._profiles[said], _profiles(self._background, points[spoken].float().cpu())])
        chosen: list[int] = []
        for number in probabilities.argsort(descending=True).tolist():
            if len(chosen) == MISSING or probabilities[number] < LIKELY:
                break
            others = torch.cat([near, self._profiles[chosen]])
            if self._sure[number] and number not in said and not (others @ self._profiles[number] > SAME).any():
                chosen.append(number)
        return self._named(chosen, probabilities)

    def suggestions(
        self, probabilities: Tensor, words: Sequence[Word], doubtful: Sequence[int]
    ) -> Iterator[Suggestion]:
        """Yield, for each word in doubt, similar words that are likelier under the image."""
        stems = {word.stem for word in words}
        for number in doubtful:
            own = self._number.get(words[number].stem)
            if own is None:
                continue
            kind = [other for other in self._vocabulary.alike[own].tolist() if other >= 0]
            free = [other for other in kind if self._vocabulary.stems[other] not in stems]
            better = [other for other in free if probabilities[other] > probabilities[own]]
            best = sorted(better, key=lambda other: -float(probabilities[other]))[:INSTEAD]
            if best:
                yield Suggestion(number, words[number].text, self._named(best, probabilities))

    def _named(self, numbers: Sequence[int], probabilities: Tensor) -> tuple[NamedWord, ...]:
        words = self._vocabulary.words
        return tuple(NamedWord(words[number], round(float(probabilities[number]), 4)) for number in numbers)


def _profiles(background: Mixture, points: Tensor) -> Tensor:
    """Return log densities over background images, centred and of unit length: their products are correlations."""
    profiles = log_densities(background, points.unsqueeze(0))[0].T
    centred = profiles - profiles.mean(dim=1, keepdim=True)
    return torch.nn.functional.normalize(centred, dim=1)
