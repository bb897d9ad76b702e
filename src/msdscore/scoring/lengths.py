"""Calibration of short captions, from parts of the captions of an image.

A part of a caption is as true as the caption. Parts of captions of similar images contain likely but absent words.
Words for persons are one family: on an image with a person every one of them counts as true, also in captions in which
it was exchanged for another, so that a low p-value says that no person is there, and nothing about sex and age.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from msdscore.core.evidence import LENGTHS, WordCalibration, WordKind, length_class, length_weights
from msdscore.scoring.logistic import fit_logistic
from msdscore.text.judged import PERSONS
from msdscore.text.parts import parts
from msdscore.text.words import each_word, stem

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

PARTS = 2  # of each class that are taken from the captions of an image, and from those of similar images
FEWEST = 60  # true and absent mentions of a kind and a class; with fewer, those of all classes are used
_SHORT = 1  # the last class of parts whose words must all be confirmed
_RARER = 0.3  # subtracted from the log-odds of captions of one word: a noun at random is absent more often than not
_OTHERS = {"man": "woman", "woman": "man", "boy": "girl", "girl": "boy", "men": "women", "women": "men", "lady": "man",
           "guy": "woman", "boys": "girls", "girls": "boys", "ladies": "men", "guys": "women"}  # fmt: skip


class Mentions(NamedTuple):
    """Mentions of words in whole captions and in parts, one entry each.

    `kind` is the index of the word's kind, that of persons after all others; `length` the content words of the text.
    `true` are words that several captions of the image have, `absent` those that none has.
    """

    kind: Ints
    length: Ints
    evidence: Floats
    true: Flags
    absent: Flags


def short_texts(captions: Sequence[str], similar: Sequence[str], seed: int) -> Iterator[tuple[str, bool]]:
    """Yield parts of captions of an image (True) and of similar images (False), some of each class of length."""
    draw = Random(seed)
    for texts, is_true in ((captions, True), (similar, False)):
        by_class: dict[int, list[str]] = {}
        for text in texts:
            for part, count in parts(text):
                by_class.setdefault(length_class(count), []).append(part)
        for number in sorted(by_class):
            distinct = sorted(set(by_class[number]))
            chosen = draw.sample(distinct, min(PARTS, len(distinct)))
            yield from ((part, is_true) for part in chosen)


def is_sure(stems: frozenset[str], counts: Mapping[str, int], *, is_true: bool) -> bool:
    """Whether a part is clearly true, or clearly false, of an image whose captions have words by `counts`.

    One or two words that only one person says are often not visible, and parts of captions of other images are often
    true. A longer part is false if one of its words is.

    >>> is_sure(frozenset({"dog"}), {"dog": 1, "man": 3}, is_true=True), is_sure(frozenset({"cat"}), {}, is_true=False)
    (False, True)
    """
    known = [counts.get(word, 0) for word in stems]
    if length_class(len(stems)) <= _SHORT:
        return all(count >= 2 for count in known) if is_true else not any(known)
    return is_true or not all(known)


def exchanged(caption: str) -> str:
    """Return a caption with words for persons exchanged for those of the other sex; the same if it has none.

    >>> exchanged("A man and two girls.")
    'a woman and two boys'
    """
    words = list(each_word(caption))
    return " ".join(_OTHERS.get(word, word) for word in words) if not _OTHERS.keys().isdisjoint(words) else caption


def names_person(captions: Sequence[str]) -> int:
    """Return the number of captions with a word for a person."""
    return sum(any(stem(word) in PERSONS for word in each_word(caption)) for caption in captions)


def fit_lengths(words: WordCalibration, mentions: Mentions, steps: int) -> tuple[tuple[WordKind, ...], ...]:
    """Return the distributions of true and absent words by class of length, for every kind and for persons."""
    classes = np.array([length_class(count) for count in mentions.length.tolist()])
    fitted: list[tuple[WordKind, ...]] = []
    for number in range(len(LENGTHS)):
        kinds = []
        for kind in range(len(words.kinds) + 1):
            own = mentions.kind == kind
            here = own & (classes == number)
            if min((here & mentions.true).sum(), (here & mentions.absent).sum()) < FEWEST:
                here = own  # too few of this length
            true, absent = here & mentions.true, here & mentions.absent
            fallback = words.kinds[min(kind, len(words.kinds) - 1)]
            if min(true.sum(), absent.sum()) < 2:
                kinds.append(fallback)
                continue
            chosen = true | absent
            features = np.stack([np.ones(chosen.sum()), mentions.evidence[chosen]], axis=1)
            intercept, slope = fit_logistic(features, true[chosen])
            quantiles = np.quantile(mentions.evidence[true], np.linspace(0, 1, steps + 1))
            kinds.append(
                WordKind(fallback.reliability, tuple(np.round(quantiles, 3).tolist()), max(slope, 0.0), intercept)
            )
        fitted.append(tuple(kinds))
    return tuple(fitted)


def match_features(scores: Floats, counts: Floats) -> Floats:
    """Return the features of `match`: 1, the weights of all classes but the first, and all weights times the score."""
    weights = length_weights(counts)
    return np.concatenate([np.ones((len(scores), 1)), weights[:, 1:], weights * scores[:, None]], axis=1)


def match_lengths(fitted: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return constant and slope of every class from the coefficients of `match_features`; no slope is negative.

    >>> match_lengths([1.0, 0.5, 0.0, 0.0, 0.0, 2.0, 3.0, 2.0, 2.0, 2.0])[:2]
    ((0.7, 2.0), (1.5, 3.0))
    """
    first, *others = fitted[: len(LENGTHS)]
    constants = (first - _RARER, *(first + other for other in others))
    return tuple(
        (float(constant), max(float(slope), 0.0))
        for constant, slope in zip(constants, fitted[len(LENGTHS) :], strict=True)
    )
