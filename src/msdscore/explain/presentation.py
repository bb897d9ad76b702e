"""How the terms of each form are presented: maps, numbers of words, the score as a sum, legend and remarks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from msdscore.forms.base import Form, Unit
from msdscore.forms.columns import Group
from msdscore.text.judged import PERSONS
from msdscore.text.words import stem

Role = Literal["support", "penalty", "omission", "leaning"]  # of a colour
ScoreStep = tuple[str, float, Role]  # a step from the similarity to the score: its name, its size and its colour
Entry = tuple[str, Role, float]  # of the legend of word colours: its text, the colour and how strong it is

LIKELY_WRONG, CHECK = "likely wrong", "check"
EVEN = 0.5  # probability of a word below which it is more probably false than true
PALEST = 0.2  # strength of the least colour that is seen as one
BLUEST = 0.7  # strength of the colour of a word with p-value 1


class WordColumn(NamedTuple):
    """A number of a word in the tables of an explanation; `phrases` is True if phrases have it too."""

    name: str
    heading: str
    format: str
    phrases: bool = True

    def cell(self, unit: Unit) -> str:
        """Return the number of a word or phrase as text; empty if it has none."""
        value = getattr(unit, self.name)
        return "" if value is None else format(value, self.format).replace("%", " %")


def finding(unit: Unit, doubt: float) -> str:
    """Return what an explanation says about a word: `likely wrong`, `check`, or nothing.

    A word is likely wrong if few true words have so little support (a p-value below `doubt`) and it is more probably
    false than true; if only the first holds, it is worth a check. Words for persons are at most that: man and woman
    are confused too often (docs/trust.md).

    >>> from dataclasses import replace
    >>> unit = Unit("dog", 0, 3, "word", True, (0,), p_value=0.05, probability=0.4)
    >>> finding(unit, 0.1), finding(replace(unit, probability=0.6), 0.1), finding(unit, 0.01)
    ('likely wrong', 'check', '')
    """
    if unit.p_value is None or unit.p_value >= doubt:
        return ""
    is_false = unit.probability is not None and unit.probability < EVEN
    return LIKELY_WRONG if is_false and stem(unit.text.casefold()) not in PERSONS else CHECK


def p_text(unit: Unit) -> str:
    """Format the p-value of a word."""
    return "" if unit.p_value is None else "p < 0.001" if unit.p_value < 0.001 else f"p {unit.p_value:.3f}"


class Presentation(ABC):
    """How explanations present the terms of one form."""

    maps: ClassVar[tuple[Role, ...]]  # that are drawn
    map_unit: ClassVar[str]  # of carried terms
    projection: ClassVar[str]  # how terms become maps unless chosen, by name: see `maps.PROJECTIONS`
    word_columns: ClassVar[tuple[WordColumn, ...]]  # numbers of words in tables
    word_note: ClassVar[str]  # meaning of the number next to a word in a figure
    settings: ClassVar[tuple[str, ...]]  # of the form that are included
    names_words: ClassVar[bool]  # whether words that the caption omits are named, if the bank has a vocabulary

    @abstractmethod
    def parts(self, form: Any, score: Any) -> list[ScoreStep]:
        """Return the steps from the similarity to Soft-MSD of a `Score`, in order."""

    @abstractmethod
    def equation(self, form: Any, score: Any) -> str:
        """Return the formula of a `Score` with its numbers."""

    @abstractmethod
    def legend(self, limit: float, doubt: float) -> list[Entry]:
        """Return the legend of word colours; `limit` is the largest gap, `doubt` the p-value below which is doubt."""

    @abstractmethod
    def remarks(
        self, units: Sequence[Unit], ranked: Sequence[Unit], instead: Mapping[int, str], doubt: float
    ) -> list[str]:
        """Return remarks on the words, line by line.

        `ranked` are the judged content words of `units`, the least supported first; `instead` are words that would fit
        better, by the position of the word in `units`.
        """


class PaperPresentation(Presentation):
    """Regions and words by their divergence in nats."""

    maps = ("support", "penalty", "omission")
    map_unit = "nats"
    projection = "influence"  # has coverage too, which token terms do not
    word_columns = (WordColumn("gap", "gap, nats", "+.2f"),)
    word_note = "the word's gap in nats; above 0 the image does not support it"
    settings = ("alpha",)
    names_words = False

    def parts(self, form: Any, score: Any) -> list[ScoreStep]:
        """Return the contributions of regions and words, unless they have no weight."""
        weight, beta = score.uncertainty * form.alpha, score.beta
        regions, words = -weight * beta * score.coverage, -weight * (1 - beta) * score.support
        parts: list[ScoreStep] = []
        if beta > 0:
            parts.append(("regions covered" if regions > 0 else "regions not mentioned", regions, "omission"))
        if beta < 1:
            parts.append(("words supported" if words > 0 else "words likely wrong", words, "penalty"))
        return [(name, size, "support" if size > 0 else role) for name, size, role in parts]

    def equation(self, form: Any, score: Any) -> str:
        """Return similarity minus the weighted divergence."""
        return f"g − α·u·d = {score.similarity:.3f} − {form.alpha:g}·{score.uncertainty:.2f}·({score.divergence:.2f})"

    def legend(self, limit: float, doubt: float) -> list[Entry]:
        """Colours by gap: white at 0, full at `limit`."""
        return [
            (f"supported, {-limit:.2g} nats or less", "support", 1.0),
            ("white is 0", "support", 0.0),
            (f"likely wrong, {limit:+.2g} or more", "penalty", 1.0),
        ]

    def remarks(
        self, units: Sequence[Unit], ranked: Sequence[Unit], instead: Mapping[int, str], doubt: float
    ) -> list[str]:
        """Return the three least supported words with their gaps."""
        listed = ", ".join(f"{unit.text} ({unit.gap:+.2f})" for unit in ranked[:3])
        return [f"least supported, nats: {listed or 'none'}"]


class EvidencePresentation(Presentation):
    """Words by their p-value."""

    maps = ("support",)  # words in doubt have no reliable region
    map_unit = "MSD"
    projection = "carried"  # docs/explain.md has the comparison with boxes
    word_columns = (
        WordColumn("p_value", "p-value", ".3f"),
        WordColumn("probability", "probably true", ".0%", phrases=False),
        WordColumn("penalty", "penalty", ".2f"),
    )
    word_note = "p-value, the fraction of true words with evidence this low"
    settings = ("alpha", "balance", "delta")
    names_words = True

    def parts(self, form: Any, score: Any) -> list[ScoreStep]:
        """Return the contributions of negation (if any), precision, information and the penalty."""
        first, second = form.weights
        sizes: list[ScoreStep] = [
            ("negation", -score.negation, "penalty"),
            ("precision", first * score.precision, "support"),
            ("information", second * score.information, "leaning"),
            ("penalty", -form.delta * score.penalty, "penalty"),
        ]
        return [
            (name, score.uncertainty * size, "penalty" if size < 0 else role)
            for name, size, role in sizes
            if size or name != "negation"
        ]

    def equation(self, form: Any, score: Any) -> str:
        """Return the weighted sum of similarity, negation, precision, information and penalty."""
        gate = "" if score.candidates == 1 else f"·{score.uncertainty:.2f}"
        first, second = form.weights
        negation = f" - {gate[1:]}{gate and '·'}{score.negation:.3f}" if score.negation else ""
        return (
            f"{score.similarity:.3f}{negation} + {first:g}{gate}·({score.precision:.2f})"
            f" + {second:g}{gate}·({score.information:.2f}) - {form.delta:g}{gate}·{score.penalty:.2f}"
        )

    def legend(self, limit: float, doubt: float) -> list[Entry]:
        """Colours by p-value."""
        return [
            (f"likely wrong (p < {doubt:g})", "penalty", 1.0),
            ("check", "penalty", PALEST),
            ("neither", "support", 0.0),
            ("supported", "support", BLUEST),
        ]

    def remarks(
        self, units: Sequence[Unit], ranked: Sequence[Unit], instead: Mapping[int, str], doubt: float
    ) -> list[str]:
        """Return the words in doubt, in reading order, with words that would fit better, and what is not judged."""
        lines = []
        for number, unit in enumerate(units):
            if unit in ranked and (found := finding(unit, doubt)):
                better = f"; try: {instead[number]}" if number in instead else ""
                lines.append(f"{found}: {unit.text} ({p_text(unit)}){better}")
        notes = dict.fromkeys(unit.reason for unit in units if unit.reason.endswith("not judged"))
        hints = [f"{unit.text}: {unit.reason}" for unit in units if unit.reason.endswith("?")]
        return [*lines, *hints, *notes]


PRESENTATIONS: dict[Group, Presentation] = {"paper": PaperPresentation(), "evidence": EvidencePresentation()}


def presentation_of(form: Form) -> Presentation:
    """Return how a form is presented, by the group of its columns."""
    return PRESENTATIONS[form.group]
