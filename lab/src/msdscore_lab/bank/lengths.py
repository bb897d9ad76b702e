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
from msdscore.intervals import Floats, Ints
from msdscore.text.words import PERSONS, Word, each_word, segment, stem

Flags = npt.NDArray[np.bool_]

PARTS = 2  # of each class that are taken from the captions of an image, and from those of similar images
FEWEST = 60  # mentions of a kind and a class that a distribution is fitted to; with fewer, those of all classes are
ENOUGH = 200  # true mentions in whole captions of a kind and a class, from which those in parts are left out
_SHORT = 1  # the last class of parts whose words must all be confirmed
_RARER = 0.3  # subtracted from the log-odds of captions of one word: a noun at random is absent more often than not
_NEWTON_STEPS = 100
_RIDGE = 1e-6  # of standardised features: bounds the slopes if the two classes do not overlap
_DETERMINERS = frozenset(
    ["a", "an", "the", "some", "several", "many", "his", "her", "its", "their", "this", "that", "another"]
)
_VERBS = ("ing", "ed")
_OTHERS = {"man": "woman", "woman": "man", "boy": "girl", "girl": "boy", "men": "women", "women": "men", "lady": "man",
           "guy": "woman", "boys": "girls", "girls": "boys", "ladies": "men", "guys": "women"}  # fmt: skip


class Mentions(NamedTuple):
    """Mentions of words in whole captions and in parts, one entry each.

    `kind` is the index of the word's kind, that of persons after all others; `length` the content words of the text.
    `true` are words that several captions of the image have, `absent` those that none has; `whole` is whether the text
    is a caption, not a part of one.
    """

    kind: Ints
    length: Ints
    evidence: Floats
    true: Flags
    absent: Flags
    whole: Flags


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
            true, absent = own & mentions.true, own & mentions.absent
            fallback = words.kinds[min(kind, len(words.kinds) - 1)]
            if min(true.sum(), absent.sum()) < 2:
                kinds.append(fallback)
                continue
            # Words have more evidence in captions than in parts that are as long.
            if (here & mentions.true & mentions.whole).sum() >= ENOUGH:
                here &= mentions.whole
            spread = true & here if (true & here).sum() >= FEWEST else true
            quantiles = np.quantile(mentions.evidence[spread], np.linspace(0, 1, steps + 1))
            chosen = true | absent
            if min((true & here).sum(), (absent & here).sum()) >= FEWEST:
                chosen &= here
            features = np.stack([np.ones(chosen.sum()), mentions.evidence[chosen]], axis=1)
            intercept, slope = fit_logistic(features, mentions.true[chosen])
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


def fit_logistic(features: Floats, truth: Flags, *, balanced: bool = True) -> tuple[float, ...]:
    """Return the coefficients of the log-odds of `truth`; the first feature is the constant 1.

    With `balanced`, both sides count as equally frequent. Coefficients are rounded to six digits.

    >>> values = np.array([0.0, 1.0, 1.2, 3.0])
    >>> constant, slope = fit_logistic(np.stack([np.ones(4), values], axis=1), np.array([False, False, True, True]))
    >>> slope > 0, 1.0 < -constant / slope < 1.3
    (True, True)
    """
    mean, scale = features.mean(axis=0), features.std(axis=0)
    mean[0], scale[scale == 0] = 0.0, 1.0
    x, y = (features - mean) / scale, truth.astype(np.float64)
    share = np.full(len(y), 1 / len(y))
    if balanced:
        share = np.where(truth, 0.5 / max(y.mean(), 1e-9), 0.5 / max(1 - y.mean(), 1e-9)) / len(y)
    ridge = _RIDGE * np.eye(x.shape[1])
    w = np.zeros(x.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ w, -40, 40)))
        gradient = x.T @ (share * (p - y)) + ridge @ w
        curve = (x * (share * np.maximum(p * (1 - p), 1e-9))[:, None]).T @ x + ridge
        step = np.linalg.solve(curve, gradient)
        w -= step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-10:
            break
    plain = w / scale
    plain[0] = w[0] - float(plain[1:] @ mean[1:])
    return tuple(float(f"{value:.6g}") for value in plain)


def parts(caption: str) -> list[tuple[str, int]]:
    """Return parts of a caption with their numbers of distinct content words, each once.

    >>> parts("A man is riding a brown horse.")[:4]
    [('A man', 1), ('A man is riding', 2), ('A man is riding a brown horse', 4), ('a horse', 1)]
    """
    words = segment(caption, compounds=False)
    runs = _runs(words)
    found: dict[str, int] = {}
    for number, run in enumerate(runs):
        first, last = run[0], run[-1]
        if _is_verb(words[first]):
            continue
        start = first - 1 if first and words[first - 1].text.lower() in _DETERMINERS else first
        if len(run) > 1 and not _is_verb(words[last]):
            determiner = f"{words[start].text} " if start < first else ""
            found[determiner + words[last].text] = 1  # the noun without its adjectives
        for end in runs[number:]:
            stems = {word.stem for word in words[start : end[-1] + 1] if word.content}
            found[caption[words[start].start : words[end[-1]].end]] = len(stems)
    return list(found.items())


def _runs(words: tuple[Word, ...]) -> list[list[int]]:
    """Return the positions of adjacent content words, separated before verbs."""
    runs: list[list[int]] = [[]]
    for number, word in enumerate(words):
        if not word.content or word.negated:
            runs.append([])
            continue
        if runs[-1] and _is_verb(word):
            runs.append([])
        runs[-1].append(number)
    return [run for run in runs if run]


def _is_verb(word: Word) -> bool:
    return word.text.lower().endswith(_VERBS)
