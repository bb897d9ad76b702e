"""What an image shows and a caption does not say, and what would fit better than a word in doubt.

Every word of a vocabulary has evidence under an image, as the words of captions have. With how often captions use it,
that gives the probability that people would name it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from msdscore.core.evidence import Vocabulary
from msdscore.core.mixture import Mixture, log_densities
from msdscore.encoders.base import TokenLayout
from msdscore.scoring.bank import moved
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.logistic import fit_logistic
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import Word, segment

MOST = 1000  # words, the most frequent ones
RARE = 0.002  # share of images whose captions have a word, under which it is left out
NEIGHBOURS = 24  # words of a kind that are kept for each
SAME = 0.75  # correlation over background images from which two words mean the same thing to see
MISSING, INSTEAD = 10, 3  # words named at most: missing from a caption, and instead of one of its words
LIKELY = 0.3  # least probability of a missing word
SURE = 0.45  # its least reliability: words that the encoder hardly judges are no news
LATEST = 64  # images whose probabilities are kept
_IMAGES = 256  # compared at once


@dataclass(frozen=True, slots=True)
class NamedWord:
    """A word and the probability that it is true of the image."""

    word: str
    probability: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A word in doubt, by its number in the caption, and words of its kind that fit the image better."""

    number: int
    word: str
    instead: tuple[NamedWord, ...]


def build_vocabulary(
    pipeline: Pipeline, images: Embedded, captions: Sequence[Sequence[str]], others: Sequence[str]
) -> Vocabulary | None:
    """The vocabulary of captioned images; None where too few words are frequent enough."""
    counts, forms = Counter[str](), dict[str, Counter[str]]()
    stems = [_stems(texts, forms) for texts in captions]
    counts.update(stem for own in stems for stem in sorted(own))  # words of one count stay in this order
    frequent = [stem for stem, count in counts.most_common(MOST) if count >= max(RARE * len(captions), 3)]
    words = {stem: forms[stem].most_common(1)[0][0] for stem in frequent}
    points = _points(pipeline, list(words.values()))
    kept = [stem for stem in frequent if words[stem] in points]
    if len(kept) < 2:
        return None
    frequency = torch.tensor([counts[stem] / len(captions) for stem in kept], dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
    vectors = torch.stack([points[words[stem]] for stem in kept]).float()
    present = np.array([[stem in own for stem in kept] for own in stems])
    evidence = image_evidence(pipeline, images, vectors, expected_densities(pipeline, vectors)).numpy()
    logit = np.broadcast_to(torch.logit(frequency).numpy(), evidence.shape)
    features = np.stack([np.ones(evidence.size), evidence.ravel(), logit.ravel()], axis=1)
    fitted = fit_logistic(features, present.ravel(), balanced=False)
    alike = _alike(kept, [*(text for texts in captions for text in texts), *others])
    return Vocabulary(
        tuple(words[stem] for stem in kept), tuple(kept), frequency.float(), vectors.half().float(), alike,
        (fitted[0], fitted[1], fitted[2]),
    )  # fmt: skip


def expected_densities(pipeline: Pipeline, points: Tensor) -> Tensor:
    """The mean log density of every word over the images of the bank."""
    assert pipeline.bank is not None, "the evidence form has a bank"
    background = moved(pipeline.bank.bank, points.device).images
    return log_densities(background, points.unsqueeze(0))[0].mean(dim=0)


def image_evidence(pipeline: Pipeline, images: Embedded, points: Tensor, expected: Tensor) -> Tensor:
    """The evidence of every word under every image, images by words; `expected` are their `expected_densities`."""
    measured = pipeline.fit_images(images)
    rows = [
        log_densities(measured.take(slice(start, start + _IMAGES)).to(points.device), points.unsqueeze(0))[0] - expected
        for start in range(0, len(measured), _IMAGES)
    ]
    return torch.cat(rows).double().cpu()


class Namer:
    """Names what images show, with one pipeline; what depends on the bank alone is computed once."""

    def __init__(self, pipeline: Pipeline, vocabulary: Vocabulary) -> None:
        self._pipeline = pipeline
        self._vocabulary = vocabulary
        assert pipeline.bank is not None, "a vocabulary comes with a bank"
        self._background = pipeline.bank.bank.images
        self._profiles = _profiles(self._background, vocabulary.points)
        self._expected = expected_densities(pipeline, vocabulary.points)
        self._images = OrderedDict[bytes, Tensor]()  # probabilities of the latest images: captions are edited
        self._number = {stem: number for number, stem in enumerate(vocabulary.stems)}
        words = pipeline.bank.bank.words
        assert words is not None, "a vocabulary comes with words"
        self._sure = [words.reliability.get(stem, words.other) >= SURE for stem in vocabulary.stems]

    def probabilities(self, images: Embedded) -> Tensor:
        """The probability of every word of the vocabulary under the first of some images."""
        key = sha256(images.vectors.points[0].float().cpu().numpy().tobytes()).digest()
        if key not in self._images:
            evidence = image_evidence(self._pipeline, images, self._vocabulary.points, self._expected)
            self._images[key] = self._vocabulary.probabilities(evidence[0])
            if len(self._images) > LATEST:
                self._images.popitem(last=False)
        return self._images[key]

    def missing(self, probabilities: Tensor, words: Sequence[Word], points: Tensor) -> tuple[NamedWord, ...]:
        """Words that are probably true of the image and neither said nor meant by what is said.

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
        return tuple(self._named(number, probabilities) for number in chosen)

    def suggestions(
        self, probabilities: Tensor, words: Sequence[Word], doubtful: Sequence[int]
    ) -> Iterator[Suggestion]:
        """For each word in doubt, by its number, words of its kind that are likelier under the image."""
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
                instead = tuple(self._named(other, probabilities) for other in best)
                yield Suggestion(number, words[number].text, instead)

    def _named(self, number: int, probabilities: Tensor) -> NamedWord:
        return NamedWord(self._vocabulary.words[number], round(float(probabilities[number]), 4))


def _profiles(background: Mixture, points: Tensor) -> Tensor:
    """Log densities of points over background images, centred and of length one: their products are correlations."""
    profiles = log_densities(background, points.unsqueeze(0))[0].T
    centred = profiles - profiles.mean(dim=1, keepdim=True)
    return torch.nn.functional.normalize(centred, dim=1)


def _stems(texts: Sequence[str], forms: dict[str, Counter[str]]) -> set[str]:
    """Stems of the content words of an image's captions; `forms` counts how each is written."""
    stems = set()
    for text in texts:
        for word in segment(text, compounds=False):
            if word.content and not word.denied and word.text.isalpha():
                stems.add(word.stem)
                forms.setdefault(word.stem, Counter())[word.text.lower()] += 1
    return stems


def _points(pipeline: Pipeline, words: Sequence[str]) -> dict[str, Tensor]:
    """The vectors of words that the encoder reads as one token."""
    texts = pipeline.embed_texts(list(words))
    points = {}
    for item, word in enumerate(words):
        row = texts.rows[item]
        layout = None if row is None else texts.vectors.layout[row]
        if row is not None and isinstance(layout, TokenLayout) and len(layout.spans) == 1:
            points[word] = texts.vectors.points[row, 0].cpu()
    return points


def _alike(stems: Sequence[str], captions: Sequence[str]) -> Tensor:
    """For each word the numbers of the words that stand in the same contexts, most alike first; -1: none.

    A context is the word before and the word after; words are alike by the cosine of their positive pointwise mutual
    information with contexts.
    """
    number = {stem: place for place, stem in enumerate(stems)}
    contexts: dict[tuple[int, str], int] = {}
    counts = Counter[tuple[int, int]]()
    for caption in captions:
        words = [word.stem for word in segment(caption, compounds=False) if word.stem]
        around = ["", *words, ""]
        for place, stem in enumerate(words):
            if stem in number:
                for side, other in ((0, around[place]), (1, around[place + 2])):
                    counts[number[stem], contexts.setdefault((side, other), len(contexts))] += 1
    table = np.zeros((len(stems), len(contexts)), dtype=np.float32)
    for (row, column), count in counts.items():
        table[row, column] = count
    total = max(float(table.sum()), 1.0)
    rows, columns = table.sum(axis=1, keepdims=True), table.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.nan_to_num(np.maximum(np.log(table * total / (rows * columns)), 0.0), posinf=0.0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    cosines = table @ table.T
    np.fill_diagonal(cosines, -1.0)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
    alike = np.where(np.take_along_axis(cosines, nearest, axis=1) > 0, nearest, -1)
    return torch.from_numpy(alike.astype(np.int64))
