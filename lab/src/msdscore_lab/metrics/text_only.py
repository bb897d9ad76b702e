"""A reader without the image: a bag of words that learns from other images which words wrong captions have."""

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from msdscore.errors import ConfigError
from msdscore.intervals import Floats, Ints
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded

_WORD = re.compile(r"[\w'-]+")
FOLDS = 5
_RIDGE = 1.0  # L2 penalty
_NEWTON_STEPS = 8


def load_text_only() -> Loaded:
    """Whether words tell the first caption of a pair, the true one, from the second, in five folds of the images."""
    return Loaded(_score)


def _score(cases: Cases) -> CaseScores:
    if cases.captions.shape[1:] != (2,):
        raise ConfigError("metric text-only compares the captions of a pair, the true one first")
    count = int((~cases.control).sum())  # cases with the image of another item repeat these
    folds = [fold_of(cases.image_name(case)) for case in range(count)]
    gaps = word_gaps([cases.candidates(case) for case in range(count)], folds)
    values = np.stack([gaps, np.zeros(count)], axis=1)
    return CaseScores(np.tile(values, (len(cases) // count, 1)))


def fold_of(image: str) -> int:
    """Return the fold of an image."""
    return blake2b(image.encode(), digest_size=2).digest()[1] % FOLDS


def word_gaps(pairs: Sequence[Sequence[str]], folds: Sequence[int]) -> Floats:
    """Return how much the words of pairs (true, false) speak for the first one; weights are fitted on other folds."""
    bags = list[dict[str, int]]()
    for true, false in pairs:
        # Words that the wrong caption has more often than the true one, minus those that it has less often.
        counts = Counter(_WORD.findall(false.lower()))
        counts.subtract(_WORD.findall(true.lower()))
        bags.append({word: count for word, count in counts.items() if count})
    word_index = {word: index for index, word in enumerate(sorted({word for bag in bags for word in bag}))}
    width = max((len(bag) for bag in bags), default=0) or 1
    columns, values = np.zeros((len(bags), width), dtype=np.int64), np.zeros((len(bags), width))
    for row, bag in enumerate(bags):
        for index, (word, count) in enumerate(bag.items()):
            columns[row, index], values[row, index] = word_index[word], count
    held_out, gaps = np.asarray(folds), np.zeros(len(pairs))
    for fold in range(FOLDS):
        rows = held_out == fold
        weights = _fit(columns[~rows], values[~rows], max(1, len(word_index)))
        gaps[rows] = (weights[columns[rows]] * values[rows]).sum(axis=1)
    return gaps


def _fit(columns: Ints, values: Floats, size: int) -> Floats:
    """Fit the weights of words in a logistic model of the wrong caption, by Newton's method."""
    weights = np.zeros(size)
    for _ in range(_NEWTON_STEPS if len(columns) else 0):
        p = 1 / (1 + np.exp(-np.clip((weights[columns] * values).sum(axis=1), -30, 30)))
        gradient = _RIDGE * weights - np.bincount(columns.ravel(), ((1 - p)[:, None] * values).ravel(), minlength=size)
        hessian = np.zeros((size, size))
        scaled = (p * (1 - p))[:, None] * values
        for column in range(columns.shape[1]):
            np.add.at(hessian, (columns, columns[:, column : column + 1]), scaled * values[:, column : column + 1])
        weights -= np.linalg.solve(hessian + _RIDGE * np.eye(size), gradient)
    return weights
