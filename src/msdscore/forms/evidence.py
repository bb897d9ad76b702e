r"""The evidence form: precision, information and doubt of the words of a caption, as evidence for its image.

`core.evidence` has the formulas and the calibration of words. With :math:`g` the similarity and :math:`\lambda` the
`balance`,

.. math:: \text{MSD} = g - \text{denial} + \alpha\,(1-\lambda)\,\text{precision}
    + \gamma\,\lambda\,\text{information} - \delta\,\text{doubt}

The vector of "no dog" is near that of a dog, so a positive similarity counts only by the share :math:`a` of the
distinct content words that the caption does not deny: :math:`\text{denial} = (1 - a) \max(g, 0)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from msdscore.core import evidence
from msdscore.core.device import sent
from msdscore.core.evidence import Bank, Match, WordCalibration, WordTerms
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.core.paper import total
from msdscore.core.schedule import fit_all, token_evidence
from msdscore.errors import ConfigError
from msdscore.forms.base import (
    BLUEST,
    MOST_COMPONENTS,
    MOST_ITERATIONS,
    Column,
    Entry,
    Form,
    Measurement,
    PointMask,
    PointTerms,
    Role,
    ScoreStep,
    Sides,
    Unit,
    Values,
    WordColumn,
    check_count,
    check_number,
    check_share,
    exact,
    match_settings,
    p_text,
    units_of,
)
from msdscore.text.words import Word, segment

DENIAL = "denied words are not judged"  # warning of captions with "no", "without", "isn't"
LEGEND = "likely wrong: under a tenth of true words look like this"
TokenIndices = Int[Tensor, "texts words tokens"]
WordKinds = Int[Tensor, "pairs words"]

COLUMNS = (
    Column("denial", "denial", ".3f", lower_is_better=True),
    Column("precision", "precision", "+.3f"),
    Column("information", "information", "+.3f"),
    Column("doubt", "doubt", ".3f", lower_is_better=True),
)


@dataclass(frozen=True, slots=True)
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

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The evidence; everything else is on the CPU already."""
        return (self.evidence,)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """Return the same words with this evidence."""
        return replace(self, evidence=tensors[0])

    @property
    def sides(self) -> tuple[WordTerms, WordTerms, WordTerms]:
        """The margin of each word, its log-odds, and the log-odds from which it raises no doubt.

        The log-odds are those of a true word of its kind against a likely absent one, with an even prior.
        """
        values = self.evidence.cpu().double()
        names = ("zero", "slope", "intercept", "settled")
        zero, slope, intercept, settled = (self.calibration.of_kinds(name, self.kinds) for name in names)
        return values - zero, slope * values + intercept, settled

    @property
    def terms(self) -> tuple[WordTerms, WordTerms, WordTerms]:
        """Terms that add up to precision, to information and to doubt."""
        margin, odds, settled = self.sides
        return (
            evidence.precision_terms(margin, self.weights),
            evidence.information_terms(margin, self.weights, spread=self.calibration.spread),
            evidence.doubt_terms(odds, settled, self.weights),
        )

    @property
    def p_values(self) -> list[list[float]]:
        """The p-values of the judged words of every pair."""
        values = self.calibration.p_values(self.evidence.cpu().flatten(), self.kinds.flatten())
        rows = values.view(self.evidence.shape).tolist()
        return [row[: len(judged)] for row, judged in zip(rows, self.judged, strict=True)]


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
        delta: Weight of doubt.
        temperature: Temperature of the uncertainty in Soft-MSD.

    >>> Evidence(balance=2.0)
    Traceback (most recent call last):
    msdscore.errors.ConfigError: balance must be between 0 and 1, got 2.0
    """

    name: ClassVar[str] = "MSD-E"  # a separate name, since the paper does not define this form
    columns: ClassVar[tuple[str, ...]] = tuple(column.name for column in COLUMNS)
    maps: ClassVar[tuple[Role, ...]] = ("support", "penalty")
    projection: ClassVar[str] = "carried"  # docs/explain.md has the comparison with boxes
    word_columns: ClassVar[tuple[WordColumn, ...]] = (
        WordColumn("p_value", "p-value", ".3f"),
        WordColumn("probability", "probably true", ".0%", phrases=False),
        WordColumn("doubt", "doubt", ".2f"),
    )
    word_note: ClassVar[str] = "p-value, the share of true words that look as unsupported"
    explained: ClassVar[tuple[str, ...]] = ("alpha", "balance", "delta")
    compounds: ClassVar[bool] = False
    names_words: ClassVar[bool] = True
    needs_bank: ClassVar[bool] = True  # evidence is relative to background images
    text_fit: ClassVar[None] = None  # captions have no mixtures

    components: int = 8  # of an image's mixture; docs/decisions.md
    kappa: float = 20.0  # paper, concentration sweep
    iterations: int = 20  # paper, EM details
    alpha: float = 0.1  # weight of precision at balance 0; paper, weight of the local terms
    gamma: float = 0.04  # weight of information at balance 1; docs/evidence.md
    balance: float = 0.5  # between precision (0) and information (1); docs/evidence.md has the curve
    delta: float = 0.1  # weight of doubt; docs/evidence.md has the curve
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

    def facts(self, bank: str | None = None) -> dict[str, str]:
        """Return everything that can change a score, abbreviated for signatures."""
        numbers = {"k": self.components, "kappa": self.kappa, "it": self.iterations, "a": self.alpha}
        numbers |= {"i": self.gamma, "balance": self.balance, "d": self.delta, "xi": self.temperature}
        facts = {"form": "evidence"} | {name: exact(value) for name, value in numbers.items()}
        return facts | ({} if bank is None else {"bank": bank})

    def measure(self, sides: Sides, bank: Bank | None) -> WordMeasurement:
        """Compute the evidence of every pair's words from that of its tokens."""
        assert bank is not None, "the evidence form has a bank"
        assert bank.words is not None, "the bank was checked"
        mixtures = fit_all(sides.images, self.image_fit)
        tokens = token_evidence(sides.texts, mixtures, bank.images, image_of=sides.image_of, text_of=sides.text_of)
        spoken = [
            segment(text, layout.spans, compounds=self.compounds)
            for text, layout in zip(sides.captions, sides.layouts, strict=True)
        ]
        judged, *padded = _judged_words(spoken, bank.words)
        text_rows = sides.rows[1]
        word_tokens, weights, kinds = (tensor[torch.tensor(text_rows, dtype=torch.int64)] for tensor in padded)
        return WordMeasurement(
            evidence.word_evidence(tokens, sent(word_tokens, tokens.device)),
            weights,
            kinds,
            tuple(spoken[row] for row in text_rows),
            tuple(judged[row] for row in text_rows),
            bank.words,
            mixtures,
            bank.match if bank.match is not None and bank.match.settings == match_settings(self) else None,
        )

    def numbers(self, measured: Measured) -> dict[str, Values]:
        """Return similarity, the columns of the form, MSD and match of every pair, in float64 on the CPU."""
        words = measured.terms
        similarity = measured.similarity.double().cpu()
        denial = (1 - affirmed(words.spoken)) * similarity.clamp_min(0)
        precision, information, doubt = map(total, words.terms)
        first, second = self.weights
        msd = similarity - denial + first * precision + second * information - self.delta * doubt
        values = {"similarity": similarity, "denial": denial, "precision": precision, "information": information}
        values |= {"doubt": doubt, "msd": msd}
        if words.match is not None:
            count = torch.tensor([len(judged) for judged in words.judged], dtype=torch.float64)
            values["match"] = words.match(msd, count)
        return values

    def warnings(self, measured: Measured, pair: int) -> tuple[str, ...]:
        """Return a warning if the caption denies words."""
        denies = any(word.denied and word.content for word in measured.terms.spoken[pair])
        return (DENIAL,) if denies else ()

    def words(self, measured: Measured, pair: int) -> Sequence[Word]:
        """Return the words and marks of the caption of a pair."""
        return measured.terms.spoken[pair]

    def worst(self, measured: Measured, count: int) -> list[tuple[str, ...]]:
        """Return at most `count` judged words of every pair's caption, by rising p-value."""
        words = measured.terms
        return [
            tuple(spoken[number].text for _, number in sorted(zip(values, judged, strict=True))[:count])
            for spoken, judged, values in zip(words.spoken, words.judged, words.p_values, strict=True)
        ]

    def word_terms(self, words: WordMeasurement) -> Float[Tensor, "pairs words"]:
        """Return the contribution of every judged word to MSD."""
        (first, second), (precision, information, doubt) = self.weights, words.terms
        return first * precision + second * information - self.delta * doubt

    def units(self, measured: Measured, pair: int) -> tuple[Unit, ...]:
        """Return the words and marks of a caption; judged words with their numbers."""
        words, judged = measured.terms, measured.terms.judged[pair]
        values = words.evidence[pair, : len(judged)].double().cpu()
        columns = (
            self.word_terms(words)[pair].tolist(),
            values.tolist(),
            words.p_values[pair],
            words.calibration.probabilities(values, words.kinds[pair, : len(judged)]).tolist(),
            words.terms[2][pair].tolist(),
        )
        names = ("term", "evidence", "p_value", "probability", "doubt")
        rows = zip(judged, *columns, strict=False)  # some columns are padded
        facts = {number: dict(zip(names, numbers, strict=True)) for number, *numbers in rows}
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

    def parts(self, score: Any) -> list[ScoreStep]:
        """Return the contributions of denial (if any), precision, information and doubt."""
        first, second = self.weights
        sizes: list[tuple[str, float, Role]] = [
            ("denial", -score.denial, "penalty"),
            ("precision", first * score.precision, "support"),
            ("information", second * score.information, "leaning"),
            ("doubt", -self.delta * score.doubt, "penalty"),
        ]
        return [
            (name, score.uncertainty * size, "penalty" if size < 0 else role)
            for name, size, role in sizes
            if size or name != "denial"
        ]

    def equation(self, score: Any) -> str:
        """Return the formula of the score with its numbers."""
        gate = "" if score.candidates == 1 else f"·{score.uncertainty:.2f}"
        first, second = self.weights
        denial = f" - {gate[1:]}{gate and '·'}{score.denial:.3f}" if score.denial else ""
        return (
            f"{score.similarity:.3f}{denial} + {first:g}{gate}·({score.precision:.2f})"
            f" + {second:g}{gate}·({score.information:.2f}) - {self.delta:g}{gate}·{score.doubt:.2f}"
        )

    def legend(self, limit: float) -> list[Entry]:
        """Colours by p-value."""
        return [(LEGEND, "penalty", 1.0), ("neither", "support", 0.0), ("supported", "support", BLUEST)]

    def remarks(
        self, units: Sequence[Unit], ranked: Sequence[Unit], instead: Mapping[int, str], doubt: float
    ) -> list[str]:
        """Return the words in doubt, in reading order, with words that would fit better."""
        lines = []
        for number, unit in enumerate(units):
            if unit in ranked and unit.p_value is not None and unit.p_value < doubt:
                better = f"; try: {instead[number]}" if number in instead else ""
                lines.append(f"likely wrong: {unit.text} ({p_text(unit)}){better}")
        return lines


def _judged_words(
    spoken: Sequence[Sequence[Word]], calibration: WordCalibration
) -> tuple[list[tuple[int, ...]], TokenIndices, WordTerms, WordKinds]:
    """Return the positions of the judged words of every caption, and their token indices, weights and kinds.

    Judged are content words with tokens that are not denied, the first of each stem. Tensors are padded, token indices
    with −1.
    """
    judged = [
        {
            number: word
            for number, word in enumerate(words)
            if word.content and word.new and not word.denied and word.tokens and calibration.weight_of(word.stem) > 0
        }
        for words in spoken
    ]
    shape = (len(judged), max(map(len, judged), default=0) or 1)
    most_tokens = max((len(word.tokens) for words in judged for word in words.values()), default=1)
    tokens = torch.full((*shape, most_tokens), -1, dtype=torch.int64)
    weights, kinds = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.int64)
    for text, words in enumerate(judged):
        for column, word in enumerate(words.values()):
            kind = calibration.kind_of(word.stem)
            assert kind is not None, "judged words have a kind"
            tokens[text, column, : len(word.tokens)] = torch.tensor(word.tokens)
            weights[text, column] = calibration.weight_of(word.stem)
            kinds[text, column] = kind
    return list(map(tuple, judged)), tokens, weights, kinds


def affirmed(spoken: Sequence[Sequence[Word]]) -> Values:
    """Return the share of distinct content words that every caption does not deny; 1 without content words."""
    content = [[not word.denied for word in words if word.content and word.new] for words in spoken]
    return torch.tensor([sum(flags) / len(flags) if flags else 1.0 for flags in content], dtype=torch.float64)


# Beyond the paper: precision, information and doubt; needs a bank built from captioned images.
PRESETS = {"evidence": Evidence()}
