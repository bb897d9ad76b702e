r"""The evidence form: precision, information and penalty of the words of a caption, as evidence for its image.

`core.evidence` has the formulas and the calibration of words. With :math:`g` the similarity and :math:`\lambda` the
`balance`,

.. math:: \text{MSD} = g - \text{negation} + \alpha\,(1-\lambda)\,\text{precision}
    + \gamma\,\lambda\,\text{information} - \delta\,\text{penalty}

The vector of "no dog" is near that of a dog, so a positive similarity counts only by the share :math:`a` of the
distinct content words that the caption does not deny: :math:`\text{negation} = (1 - a) \max(g, 0)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from msdscore.core import evidence
from msdscore.core.arrays import Array, Float, Int, float64, from_numpy, take_rows
from msdscore.core.divergence import log_ratio, total
from msdscore.core.evidence import ZERO, Bank, Match, WordCalibration, WordTerms
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.errors import ConfigError
from msdscore.forms.base import (
    MOST_COMPONENTS,
    MOST_ITERATIONS,
    Column,
    Floats,
    Form,
    Gallery,
    Measurement,
    PointMask,
    PointTerms,
    Role,
    ScoreStep,
    Sides,
    Unit,
    Values,
    check_count,
    check_number,
    check_share,
    exact,
    finding,
    match_settings,
    units_of,
)
from msdscore.text.warnings import NOTHING_JUDGED, UNFAMILIAR
from msdscore.text.words import PERSONS, Word, segment, unjudged

NEGATION = "negated words are not scored"  # warning of captions with "no", "without", "isn't"
TokenIndices = Int[np.ndarray, "texts words tokens"]
WordKinds = Int[np.ndarray, "pairs words"]


@dataclass(frozen=True)  # without slots, for the cached properties
class WordMeasurement:
    """The evidence of the distinct judged words of every pair, padded; `judged` are their positions in `spoken`.

    `weights` are how well each word can be judged, `kinds` the indices of their kinds; both are 0 for padding. `match`
    turns scores into probabilities; None if the bank has none for these settings.
    """

    evidence: WordTerms
    weights: WordTerms
    kinds: WordKinds
    spoken: tuple[tuple[Word, ...], ...]  # words and marks of every pair's caption
    judged: tuple[tuple[int, ...], ...]
    calibration: WordCalibration
    image_mixtures: Mixture
    match: Match | None = None
    familiarity: Float[Array, " pairs"] | None = None  # of the images
    least_familiar: float = -1.0  # below which an image is unlike those that the encoder knows

    @cached_property
    def terms(self) -> tuple[WordTerms, WordTerms, WordTerms]:
        """Terms that add up to precision, to information and to the penalty.

        They are computed from the margin of each word, its log-odds, and the log-odds from which it adds no penalty;
        the log-odds are those of a true word of its kind against a likely absent one, with an even prior.
        """
        values = float64(self.evidence)
        names = ("zero", "slope", "intercept", "settled")
        zero, slope, intercept, settled = (self.calibration.of_kinds(name, self.kinds) for name in names)
        margin, odds = values - zero, slope * values + intercept
        return (
            evidence.precision_terms(margin, self.weights),
            evidence.information_terms(margin, self.weights, spread=self.calibration.spread),
            evidence.penalty_terms(odds, settled, self.weights),
        )

    @property
    def invented(self) -> Values:
        """The expected share of the shown words of every pair that are false; 0 if there is none."""
        shares = []
        for pair, judged in enumerate(self.judged):
            unshown, (_, true) = self.unshown[pair], self.findings[pair]
            false = [1 - value for number, value in zip(judged, true, strict=True) if number not in unshown]
            shares.append(sum(false) / max(len(false), 1))
        return np.array(shares)

    @cached_property
    def unshown(self) -> list[dict[int, str]]:
        """Why words of each caption have no p-value, by position, although they are part of the score."""
        return [unjudged(words, self.calibration.reliability) for words in self.spoken]

    def ranked(self, pair: int) -> list[tuple[float, int, float]]:
        """P-value, position and probability of the shown words of a caption, by rising p-value."""
        rows = zip(*self.findings[pair], self.judged[pair], strict=True)
        unshown = self.unshown[pair]
        return sorted((p_value, number, true) for p_value, true, number in rows if number not in unshown)

    @cached_property
    def counts(self) -> Floats:
        """The number of distinct content words of every caption."""
        return np.array([float(len({word.stem for word in words if word.content})) for words in self.spoken])

    @cached_property
    def findings(self) -> list[tuple[list[float], list[float]]]:
        """P-values and probabilities of the judged words of every pair."""
        shape, calibration = self.evidence.shape, self.calibration
        kinds = self.kinds.copy()
        for pair, judged in enumerate(self.judged if calibration.lengths else ()):
            for column, number in enumerate(judged):
                if self.spoken[pair][number].stem in PERSONS:
                    kinds[pair, column] = len(calibration.kinds)
        counts = np.broadcast_to(self.counts[:, None], shape)
        both = calibration.judge(float64(self.evidence), kinds, counts)
        rows = zip(*(values.tolist() for values in both), self.judged, strict=True)
        return [(p_values[: len(judged)], true[: len(judged)]) for p_values, true, judged in rows]


Measured = Measurement[WordMeasurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Form):
    """Settings of the evidence form, MSD-E.

    Args:
        components: Mixture components of an image; those of the bank.
        kappa: Concentration of the components; that of the bank.
        iterations: Iterations of EM.
        alpha: Weight of precision if `balance` is 0.
        gamma: Weight of information if `balance` is 1.
        balance: Balance between precision (0) and information (1).
        delta: Weight of the penalty.
        temperature: Temperature of the uncertainty in Soft-MSD.

    >>> Evidence(balance=2.0)
    Traceback (most recent call last):
    msdscore.errors.ConfigError: balance must be between 0 and 1, got 2.0
    """

    name: ClassVar[str] = "MSD-E"  # a separate name, since the paper does not define this form
    table: ClassVar[tuple[Column, ...]] = (
        Column(
            "negation", "negation", "similarity that comes from negated words", ".3f",
            lower_is_better=True, shown=7, logged=4,
        ),
        Column("precision", "precision", "is what is said true of the image?", "+.3f", shown=8, logged=5),
        Column("information", "information", "how much is said about the image?", "+.3f", shown=9, logged=6),
        Column("penalty", "penalty", "what doubtful words subtract, before the weight", lower_is_better=True),
        Column(
            "invented", "invented", "expected share of false words", ".2f", lower_is_better=True, shown=10, logged=7
        ),
        Column("familiarity", "familiarity", "nearness of the image to captions of known images"),
    )  # fmt: skip
    compounds: ClassVar[bool] = False
    has_p_values: ClassVar[bool] = True
    maps: ClassVar[tuple[Role, ...]] = ("support",)  # words in doubt have no reliable region
    shown_settings: ClassVar[tuple[str, ...]] = ("alpha", "balance", "delta")
    plotted: ClassVar[tuple[str, str]] = ("precision", "information")
    galleries: ClassVar[tuple[Gallery, ...]] = (
        # Without a map: a word in doubt has no reliable region.
        Gallery("Worst captions", "match", "lowest match"),
        Gallery("Most doubtful words", "invented", "highest invented"),
        Gallery(
            "Least informative captions", "information",
            "lowest information, one caption per image, with words that are probably missing", "support", True,
        ),
    )  # fmt: skip
    needs_bank: ClassVar[bool] = True  # evidence is relative to background images

    components: int = 8  # of an image's mixture; docs/lab/decisions.md
    kappa: float = 20.0  # paper, concentration sweep
    iterations: int = 20  # paper, EM details
    alpha: float = 0.1  # weight of precision at balance 0; paper, weight of the local terms
    gamma: float = 0.04  # weight of information at balance 1; docs/lab/evidence.md
    balance: float = 0.5  # between precision (0) and information (1); docs/lab/evidence.md has the curve
    delta: float = 0.1  # weight of the penalty; docs/lab/evidence.md has the curve
    temperature: float = 0.2  # xi of Soft-MSD, paper

    def __post_init__(self) -> None:
        check_count("components", self.components, most=MOST_COMPONENTS)
        check_count("iterations", self.iterations, most=MOST_ITERATIONS)
        for name in ("kappa", "temperature"):
            check_number(name, getattr(self, name), positive=True)
        for name in ("alpha", "gamma", "delta"):
            check_number(name, getattr(self, name))
        check_share("balance", self.balance)

    @property
    def image_fit(self) -> FitSettings:
        """Fit settings of the mixtures of images."""
        return FitSettings(components=self.components, kappa=float(self.kappa), iterations=self.iterations)

    @property
    def weights(self) -> tuple[float, float]:
        """The weights of precision and information."""
        return self.alpha * (1 - self.balance), self.gamma * self.balance

    def check_bank(self, bank: Bank, name: str) -> None:
        """Raise `ConfigError` for a bank that was not built from captioned images."""
        if bank.words is None:
            raise ConfigError(
                f"the evidence form needs a bank that was built from captioned images, but {name} was not; "
                "build one with: msdscore bank IMAGES --pairs ROWS.jsonl"
            )

    @classmethod
    def of_bank(cls, bank: Bank) -> "Evidence | None":
        """Return the form with the mixtures of a bank that was built from captioned images."""
        if bank.words is None:
            return None
        return cls(components=bank.images.means.shape[1], kappa=bank.images.kappa)

    def facts(self, bank: str | None = None) -> dict[str, str]:
        """Return everything that can change a score, abbreviated for signatures."""
        numbers = {"k": self.components, "kappa": self.kappa, "it": self.iterations, "a": self.alpha}
        numbers |= {"i": self.gamma, "balance": self.balance, "d": self.delta, "xi": self.temperature}
        facts = {"form": "evidence"} | {name: exact(value) for name, value in numbers.items()}
        return facts | ({} if bank is None else {"bank": bank})

    def terms(self, sides: Sides, bank: Bank | None) -> WordMeasurement:
        """Compute the evidence of every pair's words from that of its tokens."""
        assert bank is not None, "the evidence form has a bank"
        assert bank.words is not None, "the bank was checked"
        mixtures = sides.fit(sides.images, self.image_fit)
        tokens = log_ratio(
            sides.texts, mixtures, item_of=sides.text_of, mixture_of=sides.image_of, background=bank.images
        )
        spoken = [
            segment(text, layout.spans, compounds=self.compounds)
            for text, layout in zip(sides.captions, sides.layouts, strict=True)
        ]
        judged, *padded = _judged_words(spoken, bank.words)
        text_rows, known = sides.rows[1], bank.familiarity
        word_tokens, weights, kinds = (array[np.array(text_rows, dtype=np.int64)] for array in padded)
        return WordMeasurement(
            evidence.word_evidence(tokens, from_numpy(word_tokens, tokens)),
            weights,
            kinds,
            tuple(spoken[row] for row in text_rows),
            tuple(judged[row] for row in text_rows),
            bank.words,
            mixtures,
            bank.match if bank.match is not None and bank.match.settings == match_settings(self) else None,
            None if known is None else take_rows(known(sides.images.pooled), sides.image_of),
            -1.0 if known is None else known.limit,
        )

    def numbers(self, measured: Measured) -> dict[str, Values]:
        """Return similarity, the columns of the form, MSD and match of every pair, in float64 on the CPU."""
        words = measured.terms
        similarity = float64(measured.similarity)
        # Of the distinct content words, those that the caption does not deny; all if there are none.
        content = [[not word.negated for word in spoken if word.content and word.new] for spoken in words.spoken]
        affirmed = np.array([sum(flags) / len(flags) if flags else 1.0 for flags in content], dtype=np.float64)
        negation = (1 - affirmed) * np.maximum(similarity, 0)
        precision, information, penalty = map(total, words.terms)
        first, second = self.weights
        msd = similarity - negation + first * precision + second * information - self.delta * penalty
        values = {"similarity": similarity, "negation": negation, "precision": precision, "information": information}
        values |= {"penalty": penalty, "invented": words.invented, "msd": msd}
        familiarity = np.full(len(msd), np.nan) if words.familiarity is None else float64(words.familiarity)
        values["familiarity"] = familiarity.round(4)  # products of matrices depend on the batch in the last digits
        if words.match is not None:
            judged = np.array([len(judged) for judged in words.judged], dtype=np.float64)
            values["match"] = words.match(msd, words.counts if words.match.lengths else judged)
        return values

    def warnings(self, measured: Measured, pair: int) -> tuple[str, ...]:
        """Return warnings about negated words, a caption without judged words, and an image of an unknown kind."""
        words = measured.terms
        negates = any(word.negated and word.content for word in words.spoken[pair])
        is_known = words.familiarity is None or float(words.familiarity[pair]) >= words.least_familiar
        is_judged = any(number not in words.unshown[pair] for number in words.judged[pair])
        applies = {NEGATION: negates, NOTHING_JUDGED: not is_judged, UNFAMILIAR: not is_known}
        return tuple(warning for warning, is_due in applies.items() if is_due)

    def words(self, measured: Measured, pair: int) -> Sequence[Word]:
        """Return the words and marks of the caption of a pair."""
        return measured.terms.spoken[pair]

    def worst(self, measured: Measured, count: int) -> list[tuple[str, ...]]:
        """Return at most `count` judged words of every pair's caption, by rising p-value."""
        words = measured.terms
        return [
            tuple(spoken[number].text for _, number, _ in words.ranked(pair)[:count])
            for pair, spoken in enumerate(words.spoken)
        ]

    def doubtful(self, measured: Measured) -> list[dict[str, str]]:
        """Return the words in doubt of every pair's caption with their finding, by rising p-value."""
        words = measured.terms
        return [
            {
                spoken[number].text: finding(spoken[number].text, p_value, true)
                for p_value, number, true in words.ranked(pair)
                if p_value < ZERO
            }
            for pair, spoken in enumerate(words.spoken)
        ]

    def parts(self, score: Any) -> list[ScoreStep]:
        """Return the contributions of negation (if any), precision, information and the penalty."""
        first, second = self.weights
        sizes: list[ScoreStep] = [
            ("negation", -score.negation, "penalty"),
            ("precision", first * score.precision, "support"),
            ("information", second * score.information, "leaning"),
            ("penalty", -self.delta * score.penalty, "penalty"),
        ]
        return [
            (name, score.uncertainty * size, "penalty" if size < 0 else role)
            for name, size, role in sizes
            if size or name != "negation"
        ]

    def word_terms(self, words: WordMeasurement) -> Float[np.ndarray, "pairs words"]:
        """Return the contribution of every judged word to MSD."""
        (first, second), (precision, information, penalty) = self.weights, words.terms
        return first * precision + second * information - self.delta * penalty

    def units(self, measured: Measured, pair: int) -> tuple[Unit, ...]:
        """Return the words and marks of a caption; judged words with their numbers."""
        words, judged = measured.terms, measured.terms.judged[pair]
        values = float64(words.evidence)[pair, : len(judged)]
        columns = (
            self.word_terms(words)[pair].tolist(),
            values.tolist(),
            *words.findings[pair],
            words.terms[2][pair].tolist(),
        )
        names = ("term", "evidence", "p_value", "probability", "penalty")
        rows = zip(judged, *columns, strict=False)  # some columns are padded
        facts: dict[int, dict[str, Any]] = {number: dict(zip(names, numbers, strict=True)) for number, *numbers in rows}
        for number, reason in words.unshown[pair].items():
            term = {"term": facts[number]["term"]} if number in facts else {}
            facts[number] = {**term, "judged": False, "reason": reason}
        return units_of(words.spoken[pair], facts)

    def point_terms(self, measured: Measured, pair: int, patches: PointMask, tokens: PointMask) -> PointTerms:
        """Return the terms of words, divided among their tokens; coverage is not part of the form."""
        words, count = measured.terms, int(tokens.sum())
        support, shares = np.zeros(count), np.zeros(count)
        terms, weights = self.word_terms(words)[pair].tolist(), words.weights[pair].tolist()
        for number, term, weight in zip(words.judged[pair], terms, weights, strict=False):
            word_tokens = list(words.spoken[pair][number].tokens)
            support[word_tokens] = -term / len(word_tokens)
            shares[word_tokens] = weight / len(word_tokens)
        return PointTerms(np.zeros(int(patches.sum())), support, 0.0, shares / (shares.sum() or 1.0))


def _judged_words(
    spoken: Sequence[Sequence[Word]], calibration: WordCalibration
) -> tuple[list[tuple[int, ...]], TokenIndices, WordTerms, WordKinds]:
    """Return the positions of the judged words of every caption, and their token indices, weights and kinds.

    Judged are content words with tokens that are not negated, the first of each stem. Arrays are padded, token indices
    with −1.
    """
    judged: list[tuple[int, ...]] = []
    found: list[tuple[int, int, float, tuple[int, ...]]] = []  # text, column, weight and tokens of every judged word
    for text, words in enumerate(spoken):
        numbers: list[int] = []
        for number, word in enumerate(words):
            if word.content and word.new and not word.negated and word.tokens:
                weight = calibration.weight_of(word.stem)
                if weight > 0:
                    found.append((text, len(numbers), weight, word.tokens))
                    numbers.append(number)
        judged.append(tuple(numbers))
    shape = (len(judged), max(map(len, judged), default=0) or 1)
    most = max((len(tokens) for *_, tokens in found), default=1)
    padded, weights, kinds = np.full((*shape, most), -1, dtype=np.int64), np.zeros(shape), np.zeros(shape, np.int64)
    if found:
        texts, columns, values, tokens = zip(*found, strict=True)
        padded[texts, columns] = [(*own, *[-1] * (most - len(own))) for own in tokens]
        weights[texts, columns] = values
        kinds[texts, columns] = calibration.kinds_of(values)
    return judged, padded, weights, kinds


# Beyond the paper: precision, information and penalty; needs a bank built from captioned images.
NAMED = {"evidence": Evidence()}
