r"""The evidence form of the score: each word of a caption as evidence for its image.

The evidence of a word is the mean over its tokens of

.. math:: e = \log P_{img}(y) - \tfrac1B \textstyle\sum_b \log P_b(y)

how many nats more this image expects it than background images do. The caption's mixture cancels and is not fitted.
A word's `margin` is its evidence minus the zero of its kind, :math:`t = e - z`: one true word in ten is below zero,
and colours have the same zero. Its log-odds :math:`o`, linear in the evidence, are those of a true word against
a likely absent one of its kind; :math:`h` is 1, or the log-odds of the median true word if they are lower. With
:math:`w` how well the encoder can judge a word, sums over the distinct judged words of a caption yield

.. math::
    \text{precision} = \frac{\sum w\,t}{\sum w},\qquad
    \text{information} = \frac{\sum w\,t}{s \sqrt{\sum w^2}},\qquad
    \text{penalty} = \sigma\Bigl(\frac{\sum w\,o}{\sum w}\Bigr) \sum w \max(h - o, 0)

Precision is a weighted mean of margins, information their sum in units of its spread :math:`s` over background images.
A mean over forty words hides the one that is false; the penalty is a sum over the words that are less supported than
usual, times how far the caption belongs to the image at all: on a wrong image every word is in doubt, and without that
factor the longer caption would lose. It is therefore low for a caption that is entirely wrong; `invented`, the expected
share of false words, is not. Words that cannot be judged, and words that the caption negates, are excluded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.core.arrays import Array, Float, Int, astype, at_least, from_numpy, gather, namespace, sigmoid
from msdscore.core.divergence import total
from msdscore.core.mixture import Mixture
from msdscore.errors import ConfigError

Floats = npt.NDArray[np.float64]
WordTerms = Float[Array, "pairs words"]
WordNumbers = Float[np.ndarray, "*words"]  # on the host
WordKinds = Int[np.ndarray, "*words"]  # indices of kinds

ZERO = 0.1  # p-value below which words are orange, and have terms below zero
TYPICAL = 0.5  # p-value from which words are blue, and add no penalty
NEAREST = 5  # captions that familiarity is a mean over
PRIOR = 0.9  # share of true words in captions by people and good captioners
JUDGED = 0.1  # minimum reliability of a judged word: present and absent mentions have an AUC of 0.66


# The evidence of a word and the score of a caption grow with the sentence, since vectors of tokens are contextual. So
# p-values, probabilities and `match` are calibrated separately for captions of 1, 2, 3 to 4, 5 to 8 and more content
# words. Between the typical lengths of these classes, values are linear in the logarithm of the number of words.
LENGTHS = (1.0, 2.0, 3.5, 6.5, 12.0)  # typical numbers of content words of the classes
_LIMITS = (2, 3, 5, 9)  # least numbers of content words of all classes but the first


def length_class(words: int) -> int:
    """Return the class of captions with a number of content words.

    >>> [length_class(words) for words in (0, 1, 2, 4, 8, 40)]
    [0, 0, 1, 2, 3, 4]
    """
    return sum(words >= limit for limit in _LIMITS)


def length_weights(counts: Floats) -> Floats:
    """Return the weights of the classes for numbers of content words, along a further axis; they add up to 1.

    >>> length_weights(np.array([1.0, 99.0])).tolist()
    [[1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    """
    at = np.interp(np.log(np.maximum(counts, 1)), np.log(LENGTHS), np.arange(len(LENGTHS)))
    return np.maximum(1 - np.abs(at[..., None] - np.arange(len(LENGTHS))), 0)


@dataclass(frozen=True, slots=True)
class WordKind:
    """Words that the encoder judges about equally well, with the distribution of the evidence of true and absent ones.

    `quantiles` are those of the evidence of true words, at equal steps of probability from 0 to 1. The log-odds of a
    true word against a likely absent one are `slope` times its evidence plus `intercept`.
    """

    reliability: float  # minimum over its words
    quantiles: tuple[float, ...]
    slope: float
    intercept: float

    @property
    def zero(self) -> float:
        """The evidence that nine of ten true words exceed."""
        # Calibration stores quantiles at steps that divide this share, and `TYPICAL`.
        return self.quantiles[round(ZERO * (len(self.quantiles) - 1))]

    @property
    def settled(self) -> float:
        """The log-odds from which a word adds no penalty: 1, or those of the median true word if they are lower."""
        typical = self.quantiles[round(TYPICAL * (len(self.quantiles) - 1))]
        return min(self.slope * typical + self.intercept, 1.0)


@dataclass(frozen=True, slots=True)
class WordCalibration:
    """Calibration of word evidence for one encoder, measured on captioned images that it was not trained on.

    `reliability` of known words by stem is :math:`(2\\,\\text{AUC} - 1)^2` of present against likely absent mentions;
    `other` is that of all other words. `kinds` are in ascending order of reliability. `spread` is the standard
    deviation of a word's evidence over background images.
    """

    reliability: Mapping[str, float]
    other: float
    kinds: tuple[WordKind, ...]
    spread: float
    # By class of length (see `LENGTHS`): the kinds, then words for persons; none in earlier banks.
    lengths: tuple[tuple[WordKind, ...], ...] = ()

    def kind_of(self, stem: str) -> int | None:
        """The index of a word's kind; None for a word that cannot be judged.

        >>> kinds = (WordKind(0.1, (0.0, 1.0), 1.0, 0.0), WordKind(0.5, (0.0, 1.0), 1.0, 0.0))
        >>> words = WordCalibration({"dog": 0.7, "thing": 0.05}, 0.2, kinds, 2.0)
        >>> words.kind_of("dog"), words.kind_of("zebra"), words.kind_of("thing")
        (1, 0, None)
        """
        weight = self.weight_of(stem)
        return int(self.kinds_of([weight])[0]) if weight else None

    def kinds_of(self, weights: Sequence[float]) -> npt.NDArray[np.int64]:
        """The indices of the kinds of judged words, by their weights."""
        least = [kind.reliability for kind in self.kinds]
        return np.maximum(np.searchsorted(least, weights, side="right") - 1, 0)

    def weight_of(self, stem: str) -> float:
        """The weight of a word in precision and information: its reliability, 0 if it is not judged."""
        value = self.reliability.get(stem, self.other)
        return value if value >= JUDGED else 0.0

    def judge(self, evidence: Floats, kind: npt.NDArray[np.int64], counts: Floats) -> tuple[Floats, Floats]:
        """P-values and probabilities of words, in captions with `counts` content words.

        The p-value is the share of true words of the same kind, in captions of this length, whose evidence is at most
        that of the word. The probability is that of a true word if a share `PRIOR` of words is true. A `kind` after the
        last one is that of persons.

        >>> kind = WordKind(0.1, (0.0, 1.0, 2.0), 1.0, 0.0)
        >>> words = WordCalibration({}, 0.2, (kind,), 2.0)
        >>> words.judge(np.array([-1.0, 0.5, 9.0]), np.zeros(3, dtype=np.int64), np.ones(3))[0]
        array([0.  , 0.25, 1.  ])
        """
        levels = self.lengths or (self.kinds,) * len(LENGTHS)
        p_values, odds = np.zeros(evidence.shape), np.zeros(evidence.shape)
        weights = length_weights(counts)
        for number in sorted(set(kind.ravel().tolist())):
            for length, level in enumerate(levels):
                chosen = (kind == number) & (weights[..., length] > 0)
                share, values, own = weights[chosen, length], evidence[chosen], level[number]
                ranks = np.interp(values, own.quantiles, np.linspace(0, 1, len(own.quantiles)))
                p_values[chosen] += share * ranks
                odds[chosen] += share * (own.slope * values + own.intercept)
        return p_values, 1 / (1 + np.exp(-odds) * (1 - PRIOR) / PRIOR)

    def probabilities(self, evidence: WordNumbers, kind: WordKinds) -> WordNumbers:
        """The probability that each word is true, if a share `PRIOR` of words is."""
        even = self.of_kinds("slope", kind) * evidence + self.of_kinds("intercept", kind)
        return sigmoid(even + math.log(PRIOR / (1 - PRIOR)))

    def of_kinds(self, name: str, kind: WordKinds) -> WordNumbers:
        """A number of the kind of each word, by its name: `zero`, `slope`, `intercept` or `settled`.

        >>> kinds = (WordKind(0.1, (0.0, 1.0), 1.0, 0.0), WordKind(0.5, (0.0, 1.0), 3.0, 0.0))
        >>> WordCalibration({}, 0.2, kinds, 2.0).of_kinds("slope", np.array([[1, 0]])).tolist()
        [[3.0, 1.0]]
        """
        return np.array([getattr(own, name) for own in self.kinds], dtype=np.float64)[kind]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Common caption words, for naming image content that a caption omits.

    `points` is the unit vector of each isolated word, `frequency` the share of images whose captions have it, `alike`
    the indices of words with similar contexts, most similar first (−1: none). The log-odds that captions of an
    image contain a word are `coefficients` times (1, its evidence, the logit of its frequency).
    """

    words: tuple[str, ...]
    stems: tuple[str, ...]
    frequency: Float[np.ndarray, " words"]
    points: Float[np.ndarray, "words dim"]
    alike: Int[np.ndarray, "words neighbours"]
    coefficients: tuple[float, float, float]

    def probabilities(self, evidence: WordNumbers) -> WordNumbers:
        """The probability that captions of an image contain each word, from its evidence in float64."""
        constant, slope, prior = self.coefficients
        frequency = self.frequency.astype(np.float64)
        return sigmoid(constant + slope * evidence + prior * np.log(frequency / (1 - frequency)))


def word_evidence(evidence: Float[Array, "pairs tokens"], words: Int[Array, "pairs words pieces"]) -> WordTerms:
    """The evidence of words: the mean over their tokens, whose indices are `words` (−1: none).

    >>> word_evidence(np.array([[1.0, 3.0, 5.0]]), np.array([[[0, 1], [2, -1]]])).tolist()
    [[2.0, 5.0]]
    """
    xp, (pairs, count, pieces) = namespace(evidence), words.shape
    real = astype(words >= 0, evidence.dtype)
    chosen = gather(evidence, xp.reshape(at_least(words, 0), (pairs, count * pieces)))
    sums = total(xp.reshape(chosen, (pairs * count, pieces)) * xp.reshape(real, (pairs * count, pieces)))
    return xp.reshape(sums, (pairs, count)) / at_least(xp.sum(real, axis=2), 1)


def precision_terms(margin: WordTerms, weights: WordTerms) -> WordTerms:
    """Terms whose sum is precision.

    >>> precision_terms(np.array([[2.0, -1.0]]), np.array([[1.0, 3.0]])).tolist()
    [[0.5, -0.75]]
    """
    return weights * margin / at_least(total(weights), _least(margin))[:, None]


def information_terms(margin: WordTerms, weights: WordTerms, *, spread: float) -> WordTerms:
    """Terms whose sum is information.

    >>> information_terms(np.array([[2.0, -1.0]]), np.array([[3.0, 4.0]]), spread=0.5).round(4).tolist()
    [[2.4, -1.6]]
    """
    length = namespace(weights).sqrt(total(weights * weights))[:, None]
    return weights * margin / (spread * at_least(length, _least(margin)))


def penalty_terms(odds: WordTerms, settled: WordTerms, weights: WordTerms) -> WordTerms:
    """Terms that add up to the penalty; `settled` are the log-odds from which words of each kind raise none.

    >>> penalty_terms(np.array([[1.0, -1.0]]), np.array([[0.5, 2.0]]), np.array([[1.0, 1.0]])).tolist()
    [[0.0, 1.5]]
    """
    mean = total(weights * odds) / at_least(total(weights), _least(odds))
    return sigmoid(mean)[:, None] * weights * at_least(settled - odds, 0)


def _least(values: WordTerms) -> float:
    """The smallest divisor that is not zero."""
    return float(namespace(values).finfo(values.dtype).smallest_normal)


@dataclass(frozen=True, slots=True)
class Match:
    r"""The probability that a caption belongs to its image, from its score and its length.

    .. math:: \sigma\bigl(c_0 + c_1 x + c_2 \log L + c_3 x \log L\bigr)

    with :math:`x` the score and :math:`L` the number of judged words; in newer banks with a constant and a slope for
    each class of length, by the number of content words, and linear between the classes. `settings` are those that it
    was fitted with; it does not apply to others.
    """

    coefficients: tuple[float, float, float, float]
    settings: str
    # Constant and slope by class of length (see `LENGTHS`), used instead; none in earlier banks.
    lengths: tuple[tuple[float, float], ...] = ()

    def __call__(
        self, scores: Float[np.ndarray, " pairs"], words: Float[np.ndarray, " pairs"]
    ) -> Float[np.ndarray, " pairs"]:
        """The probability for every score.

        >>> Match((-1.0, 2.0, 0.0, 0.0), "")(np.array([0.5]), np.array([7.0])).tolist()
        [0.5]
        """
        if self.lengths:
            constants, slopes = np.array(self.lengths).T
            weights = length_weights(np.asarray(words, dtype=np.float64))
            return sigmoid(weights @ constants + (weights @ slopes) * scores)
        first, slope, offset, steeper = self.coefficients
        length = np.log(np.maximum(words, 1))
        return sigmoid(first + slope * scores + offset * length + steeper * scores * length)


# The words for a match: they answer whether a caption belongs to this image rather than to another one, not whether
# every word of it is true. `VERDICT_AT` are the limits between them unless chosen, by the curves of docs/numbers.md.
VERDICTS = ("off topic", "unsure", "on topic")
VERDICT_AT = (0.2, 0.5)


def verdict(match: float | None, *, at: tuple[float, float] = VERDICT_AT, withheld: bool = False) -> str | None:
    """Return a match in words, those of the number with two decimals; None if it is unknown or `withheld`.

    >>> verdict(0.8), verdict(0.496), verdict(0.494), verdict(0.1)
    ('on topic', 'on topic', 'unsure', 'off topic')
    >>> verdict(None), verdict(0.8, withheld=True), verdict(0.8, at=(0.3, 0.9))
    (None, None, 'unsure')
    """
    return None if match is None or withheld else VERDICTS[sum(round(match, 2) >= limit for limit in at)]


def verdict_ranges(at: tuple[float, float] = VERDICT_AT) -> dict[str, tuple[float, float]]:
    """Return the matches that each verdict is for, best first.

    >>> verdict_ranges()
    {'on topic': (0.5, 1.0), 'unsure': (0.2, 0.5), 'off topic': (0.0, 0.2)}
    """
    low, high = at
    return dict(zip(reversed(VERDICTS), ((high, 1.0), (low, high), (0.0, low)), strict=True))


def limits_text(at: tuple[float, float]) -> str:
    """Return the limits of verdicts as text, for the metadata of tables.

    >>> limits_text(VERDICT_AT)
    '0.2,0.5'
    """
    return ",".join(f"{limit:g}" for limit in at)


def checked_limits(at: Any) -> tuple[float, float]:
    """Return the limits of verdicts; raise `ConfigError` unless they are two rising numbers between 0 and 1.

    >>> checked_limits([0.3, 0.6])
    (0.3, 0.6)
    """
    values = tuple(at) if isinstance(at, tuple | list) else ()
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(values) != 2 or len(numbers) != 2 or not 0 <= values[0] <= values[1] <= 1:
        raise ConfigError(f"verdict_at must be two rising limits between 0 and 1, such as (0.2, 0.5), got {at!r}")
    return float(values[0]), float(values[1])


@dataclass(frozen=True, slots=True, eq=False)
class Familiarity:
    """How near an image is to captions of many images: the mean cosine with the nearest of them.

    Photographs of everyday things are near some caption; drawings, documents and satellite images are not. An image
    below `limit` is unlike those that the encoder was calibrated on, so its captions get no verdict.
    """

    captions: Float[np.ndarray, "captions dim"]  # pooled unit vectors
    limit: float

    def __call__(self, pooled: Float[Array, "images dim"]) -> Float[Array, " images"]:
        """The mean cosine of every image with its nearest captions.

        >>> Familiarity(np.eye(3), 0.2)(np.array([[1.0, 0.0, 0.0]])).round(2).tolist()
        [0.33]
        """
        xp, captions = namespace(pooled), from_numpy(self.captions, pooled)
        cosines = astype(pooled, captions.dtype) @ xp.matrix_transpose(captions)
        return xp.mean(xp.sort(cosines, axis=1)[:, -NEAREST:], axis=1)


@dataclass(frozen=True, slots=True)
class Bank:
    """Background images, which calibrate tokens, and background captions, which calibrate patches.

    For the evidence form `words` calibrates evidence, `match` turns a score into a probability, `vocabulary`
    names image content that a caption omits, and `familiarity` tells images that the encoder knows from others.
    `digest` is the hash of its content if a verified file lists it; `replace` does not copy it.
    """

    images: Mixture
    texts: Mixture | None = None
    words: WordCalibration | None = None
    match: Match | None = None
    vocabulary: Vocabulary | None = None
    familiarity: Familiarity | None = None
    digest: str = field(default="", init=False, compare=False)
