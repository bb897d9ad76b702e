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
    \text{doubt} = \sigma\Bigl(\frac{\sum w\,o}{\sum w}\Bigr) \sum w \max(h - o, 0)

Precision is a weighted mean of margins, information their sum in units of its spread :math:`s` over background images.
A mean over forty words hides the one that is false; doubt is a sum over the words that are less supported than usual,
times how far the caption belongs to the image at all: on a wrong image every word is in doubt, and without that factor
the longer caption would lose. Words that cannot be judged, and words that the caption negates, are excluded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core.mixture import Mixture
from msdscore.core.paper import total

WordTerms = Float[Tensor, "pairs words"]

ZERO = 0.1  # p-value below which words are orange, and have terms below zero
TYPICAL = 0.5  # p-value from which words are blue, and raise no doubt
PRIOR = 0.9  # share of true words in captions by people and good captioners
JUDGED = 0.1  # minimum reliability of a judged word: present and absent mentions have an AUC of 0.66


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
        """The log-odds from which a word raises no doubt: 1, or those of the median true word if they are lower."""
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

    def kind_of(self, stem: str) -> int | None:
        """The index of a word's kind; None for a word that cannot be judged.

        >>> kinds = (WordKind(0.1, (0.0, 1.0), 1.0, 0.0), WordKind(0.5, (0.0, 1.0), 1.0, 0.0))
        >>> words = WordCalibration({"dog": 0.7, "thing": 0.05}, 0.2, kinds, 2.0)
        >>> words.kind_of("dog"), words.kind_of("zebra"), words.kind_of("thing")
        (1, 0, None)
        """
        value = self.reliability.get(stem, self.other)
        if value < JUDGED:
            return None
        return max((number for number, kind in enumerate(self.kinds) if value >= kind.reliability), default=0)

    def weight_of(self, stem: str) -> float:
        """The weight of a word in precision and information: its reliability, 0 if it is not judged."""
        value = self.reliability.get(stem, self.other)
        return value if value >= JUDGED else 0.0

    def p_values(self, evidence: Float[Tensor, " words"], kind: Int[Tensor, " words"]) -> Float[Tensor, " words"]:
        """The share of true words of the same kind whose evidence is at most that of each word.

        >>> kind = WordKind(0.1, (0.0, 1.0, 2.0), 1.0, 0.0)
        >>> WordCalibration({}, 0.2, (kind,), 2.0).p_values(torch.tensor([-1.0, 0.5, 9.0]), torch.tensor([0, 0, 0]))
        tensor([0.0000, 0.2500, 1.0000], dtype=torch.float64)
        """
        wide = evidence.double()
        p_values = torch.empty_like(wide)
        for number, chosen in enumerate(self.kinds):
            here = kind == number
            values, quantiles = wide[here], torch.tensor(chosen.quantiles, dtype=torch.float64)
            # The rank among the quantiles, linear between them.
            after = torch.searchsorted(quantiles, values.contiguous()).clamp(1, len(quantiles) - 1)
            low, high = quantiles[after - 1], quantiles[after]
            share = ((values - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
            p_values[here] = (after - 1 + share) / (len(quantiles) - 1)
        return p_values

    def probabilities(self, evidence: Float[Tensor, " words"], kind: Int[Tensor, " words"]) -> Float[Tensor, " words"]:
        """The probability that each word is true, if a share `PRIOR` of words is."""
        even = self.of_kinds("slope", kind) * evidence.double() + self.of_kinds("intercept", kind)
        return torch.sigmoid(even + torch.logit(torch.tensor(PRIOR, dtype=torch.float64)))

    def of_kinds(self, name: str, kind: Int[Tensor, "*words"]) -> Float[Tensor, "*words"]:
        """A number of the kind of each word, by its name: `zero`, `slope`, `intercept` or `settled`.

        >>> kinds = (WordKind(0.1, (0.0, 1.0), 1.0, 0.0), WordKind(0.5, (0.0, 1.0), 3.0, 0.0))
        >>> WordCalibration({}, 0.2, kinds, 2.0).of_kinds("slope", torch.tensor([[1, 0]]))
        tensor([[3., 1.]], dtype=torch.float64)
        """
        return torch.tensor([getattr(own, name) for own in self.kinds], dtype=torch.float64)[kind]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Common caption words, for naming image content that a caption omits.

    `points` is the unit vector of each isolated word, `frequency` the share of images whose captions have it, `alike`
    the indices of words with similar contexts, most similar first (−1: none). The log-odds that captions of an
    image contain a word are `coefficients` times (1, its evidence, the logit of its frequency).
    """

    words: tuple[str, ...]
    stems: tuple[str, ...]
    frequency: Float[Tensor, " words"]
    points: Float[Tensor, "words dim"]
    alike: Int[Tensor, "words neighbours"]
    coefficients: tuple[float, float, float]

    def probabilities(self, evidence: Float[Tensor, " words"]) -> Float[Tensor, " words"]:
        """The probability that captions of an image contain each word, from its evidence."""
        constant, slope, prior = self.coefficients
        return torch.sigmoid(constant + slope * evidence.double() + prior * torch.logit(self.frequency.double()))


def word_evidence(evidence: Float[Tensor, "pairs tokens"], words: Int[Tensor, "pairs words pieces"]) -> WordTerms:
    """The evidence of words: the mean over their tokens, whose indices are `words` (−1: none).

    >>> word_evidence(torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[[0, 1], [2, -1]]]))
    tensor([[2., 5.]])
    """
    real = words >= 0
    flat = evidence.gather(1, words.clamp_min(0).flatten(1)).view(words.shape)
    count = real.sum(dim=2)
    sums = total((flat * real).flatten(0, 1)).view(count.shape)
    return sums / count.clamp_min(1)


def precision_terms(margin: WordTerms, weights: WordTerms) -> WordTerms:
    """Terms whose sum is precision.

    >>> precision_terms(torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 3.0]]))
    tensor([[ 0.5000, -0.7500]])
    """
    return weights * margin / total(weights).unsqueeze(1).clamp_min(torch.finfo(margin.dtype).tiny)


def information_terms(margin: WordTerms, weights: WordTerms, *, spread: float) -> WordTerms:
    """Terms whose sum is information.

    >>> information_terms(torch.tensor([[2.0, -1.0]]), torch.tensor([[3.0, 4.0]]), spread=0.5)
    tensor([[ 2.4000, -1.6000]])
    """
    length = total(weights.square()).sqrt().unsqueeze(1)
    return weights * margin / (spread * length.clamp_min(torch.finfo(margin.dtype).tiny))


def doubt_terms(odds: WordTerms, settled: WordTerms, weights: WordTerms) -> WordTerms:
    """Terms that add up to doubt; `settled` are the log-odds from which words of each kind raise none.

    >>> doubt_terms(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, 2.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([[0.0000, 1.5000]])
    """
    mean = total(weights * odds) / total(weights).clamp_min(torch.finfo(odds.dtype).tiny)
    return torch.sigmoid(mean).unsqueeze(1) * weights * (settled - odds).clamp_min(0)


@dataclass(frozen=True, slots=True)
class Match:
    r"""The probability that a caption belongs to its image, from its score and its length.

    .. math:: \sigma\bigl(c_0 + c_1 x + c_2 \log L + c_3 x \log L\bigr)

    with :math:`x` the score and :math:`L` the number of judged words. `settings` are those that it was fitted with; it
    does not apply to others.
    """

    coefficients: tuple[float, float, float, float]
    settings: str

    def __call__(self, scores: Float[Tensor, " pairs"], words: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """The probability for every score.

        >>> Match((-1.0, 2.0, 0.0, 0.0), "")(torch.tensor([0.5]), torch.tensor([7.0]))
        tensor([0.5000])
        """
        first, slope, offset, steeper = self.coefficients
        length = words.clamp_min(1).log()
        return torch.sigmoid(first + slope * scores + offset * length + steeper * scores * length)


READINGS = ((0.7, "good"), (0.3, "doubtful"), (0.0, "poor"))  # of a match: lower bounds


def reading(match: float | None, *, is_caption: bool = True) -> str | None:
    """A match in one word; a text without the form of a caption is never good.

    >>> reading(0.8), reading(0.5), reading(0.1), reading(None), reading(0.8, is_caption=False)
    ('good', 'doubtful', 'poor', None, 'doubtful')
    """
    if match is None:
        return None
    return next(word for least, word in READINGS if match >= least and (is_caption or word != READINGS[0][1]))


@dataclass(frozen=True, slots=True)
class Bank:
    """Background images, which calibrate tokens, and background captions, which calibrate patches.

    For the evidence form `words` calibrates evidence, `match` turns a score into a probability, and `vocabulary`
    names image content that a caption omits.
    """

    images: Mixture
    texts: Mixture | None = None
    words: WordCalibration | None = None
    match: Match | None = None
    vocabulary: Vocabulary | None = None
