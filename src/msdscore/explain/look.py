"""Appearance of explanations in all backends: colours, words, the score as a sum, remarks, and how each form is shown.

Colours are hues that colour-blind readers can distinguish, in even steps of lightness. Ramps run from the paper (white,
or the dark of a page) to a hue of Okabe and Ito's palette along a straight line of OKLab, whose distances are those
that people see; so equal steps of a value look equally large. Figures, pages, reports and terminals use these colours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from msdscore.core.evidence import TYPICAL, ZERO
from msdscore.forms.base import CHECK, LIKELY_WRONG, Floats, Unit
from msdscore.forms.base import finding as finding_of
from msdscore.forms.columns import Group
from msdscore.forms.registry import facts_of, score_name

if TYPE_CHECKING:
    from msdscore.explain.explanation import Explanation

Colour = tuple[int, int, int]
Role = Literal["support", "penalty", "omission", "leaning"]  # of a colour
ScoreStep = tuple[str, float, Role]  # a step from the similarity to the score: its name, its size and its colour
Entry = tuple[str, Role, float]  # of the legend of word colours: its text, the colour and its strength

FULL = 0.01  # p-value at which a word in doubt has full colour
PALEST = 0.2  # strength of the least colour that is seen as one
MIDDLE = 0.5  # least strength of a word that is likely wrong
BLUEST = 0.7  # strength of the colour of a word with p-value 1
_ENDS: dict[Role, Colour] = {
    "support": (0, 90, 160),  # blue
    "penalty": (196, 72, 0),  # vermilion
    "omission": (140, 50, 110),  # reddish purple
    "leaning": (0, 110, 90),  # bluish green
}
_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
_FROM_LMS, _FROM_LAB = np.linalg.inv(_TO_LMS), np.linalg.inv(_TO_LAB)
WHITE, DARK = (255, 255, 255), (29, 32, 38)  # papers: of figures and light pages, of the cards of dark pages


def ramp(role: Role, strength: npt.ArrayLike, paper: Colour = WHITE) -> npt.NDArray[np.uint8]:
    """Return RGB colours for strengths from 0 (the paper) to 1 (the role's full colour), along a new last axis.

    >>> ramp("support", [0.0, 1.0]).tolist()
    [[255, 255, 255], [0, 90, 160]]
    """
    share = np.clip(np.asarray(strength, dtype=np.float64), 0, 1)[..., None]
    start, end = oklab(np.array(paper)), oklab(np.array(_ENDS[role]))
    linear = np.clip(((start + share * (end - start)) @ _FROM_LAB.T) ** 3 @ _FROM_LMS.T, 0, 1)
    shown = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.round(np.clip(shown, 0, 1) * 255).astype(np.uint8)


def css(role: Role, strength: float, paper: Colour = WHITE) -> str:
    """Return one colour of the ramp as CSS.

    >>> css("penalty", 1.0)
    '#c44800'
    """
    return "#" + bytes(ramp(role, strength, paper).tolist()).hex()


def ink(role: Role, strength: float, paper: Colour = WHITE) -> str:
    """Return black or white, whichever has more contrast with the colour; at least 4.5 to 1, as WCAG requires for text.

    >>> ink("penalty", 0.1), ink("penalty", 1.0)
    ('#000', '#fff')
    """
    # Relative luminance as WCAG 2 defines it.
    light = float(_linear(ramp(role, strength, paper)) @ np.array([0.2126, 0.7152, 0.0722])) + 0.05
    return "#000" if light / 0.05 >= 1.05 / light else "#fff"


def oklab(rgb: npt.NDArray[np.generic]) -> Floats:
    """Return the OKLab coordinates of sRGB values from 0 to 255."""
    lab: Floats = np.cbrt(_linear(rgb) @ _TO_LMS.T) @ _TO_LAB.T
    return lab


def _linear(rgb: npt.NDArray[np.generic]) -> Floats:
    """Return linear light of sRGB values from 0 to 255."""
    share = np.asarray(rgb, dtype=np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def page_colours(role: Role, strength: float) -> tuple[str, str, str, str]:
    """Return background and ink of a text on light pages, then those on dark pages."""
    return (
        css(role, strength, WHITE), ink(role, strength, WHITE), css(role, strength, DARK), ink(role, strength, DARK)
    )  # fmt: skip


def scaled(values: npt.ArrayLike, limit: float) -> Floats:
    """Return values divided by a limit and clipped to −1 … 1."""
    shares = np.asarray(values, dtype=np.float64) / (limit if limit > 0 else 1.0)
    return np.clip(shares, -1.0, 1.0)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a caption: a word with its number, tooltip, background and ink, on light and dark pages; or the text
    between words.
    """

    text: str
    number: int = -1
    title: str = ""
    back: str = ""
    ink: str = ""
    dark_back: str = ""
    dark_ink: str = ""


def spans(item: "Explanation", limit: float) -> list[TextPiece]:
    """Return the parts of the caption: words with their colours (see `word_limit`) and the text between them."""
    caption, pieces, end = item.score.caption, [], 0
    for number, unit in enumerate(item.units):
        role, strength = word_colour(unit, limit, item.doubt)
        colours = page_colours(role, strength) if strength > 0.05 else ()
        pieces += [TextPiece(caption[end : unit.start]), TextPiece(unit.text, number, tooltip(unit), *colours)]
        end = unit.end
    return [piece for piece in (*pieces, TextPiece(caption[end:])) if piece.text]


def word_limit(items: "Iterable[Explanation]") -> float:
    """Return the gap that gets the full colour, for several captions under the paper's form: the largest one."""
    gaps = [abs(unit.gap) for item in items for unit in item.ranked if unit.gap is not None]
    return max(gaps, default=1.0)


def word_colour(unit: Unit, limit: float, doubt: float = ZERO) -> tuple[Role, float]:
    """Return hue and strength of a word.

    By its p-value: towards `penalty` if it is in doubt (pale for a word to check, stronger for one that is likely
    wrong, in full at a tenth of `doubt`), white up to 0.5, towards `support` above. Under the paper's form by its gap:
    white at zero, towards `penalty` above it, towards `support` below it.
    """
    if not unit.content:
        return "penalty", 0.0
    if unit.p_value is None:
        strength = float(scaled(unit.gap or 0.0, limit))
        return ("penalty", strength) if strength >= 0 else ("support", -strength)
    found = finding(unit, doubt)
    if found == CHECK:
        return "penalty", PALEST
    if found == LIKELY_WRONG:
        full = FULL * doubt / ZERO
        depth = log(doubt / max(unit.p_value, full)) / log(doubt / full)
        return "penalty", min(MIDDLE + (1 - MIDDLE) * depth, 1.0)
    if unit.p_value < TYPICAL:
        return "support", 0.0
    return "support", PALEST + (BLUEST - PALEST) * (unit.p_value - TYPICAL) / (1 - TYPICAL)


def finding(unit: Unit, doubt: float) -> str:
    """Return what an explanation says about a word: `likely wrong`, `check`, or nothing."""
    return finding_of(unit.text, unit.p_value, unit.probability, doubt)


def p_text(unit: Unit) -> str:
    """Format the p-value of a word."""
    return "" if unit.p_value is None else "p < 0.001" if unit.p_value < 0.001 else f"p {unit.p_value:.3f}"


def tooltip(unit: Unit) -> str:
    """Return the numbers of a word as text, or why it has none; empty for punctuation."""
    if unit.probability is not None:
        penalty = f"; penalty {unit.penalty:.2f}" if unit.penalty else ""
        return f"{p_text(unit)}; true with probability {unit.probability:.2f}{penalty}; adds {unit.term or 0.0:+.3f}"
    if unit.gap is not None:
        return f"{unit.gap:+.2f} nats; adds {unit.term or 0.0:+.3f}"
    if unit.kind == "mark":
        return ""
    return f"not judged: {unit.reason}" if unit.reason else "not judged"


def legend(items: "Iterable[Explanation]") -> list[tuple[str, str, str]]:
    """Return the legend of word colours: text, background and ink of every entry."""
    items = tuple(items)
    entries = items[0].presentation.legend(word_limit(items), items[0].doubt)
    return [(text, css(role, strength), ink(role, strength)) for text, role, strength in entries]


def signatures(items: "Sequence[Explanation]") -> str:
    """Return the signatures of explanations that are shown together, separated by spaces."""
    return " ".join(dict.fromkeys(item.score.signature for item in items))


def remarks(item: "Explanation", items: "Sequence[Explanation]" = ()) -> list[str]:
    """Return remarks on the words, line by line; the encoder first if `items`, shown together, have several."""
    lines: list[str] = []
    if len({facts_of(other.score.signature)["enc"] for other in items}) > 1:
        lines.append(f"encoder {facts_of(item.score.signature)['enc']}")
    if not item.readable:
        return [*lines, "cannot be judged: this encoder only reads captions in English"]
    lines += item.presentation.remarks(item)
    if item.score.reference_count > 0:
        lines += _reference_remarks(item, int(item.score.reference_count))
    missing = [word.word for word in item.missing if word.references is None]
    return [*lines, f"probably missing from the caption: {', '.join(missing)}"] if missing else lines


def _reference_remarks(item: "Explanation", count: int) -> list[str]:
    """Return which words are in the references and which are not, and what else several of them say."""
    counted = [unit for unit in item.units if unit.references is not None]
    lists = {
        "in the references too": [f"{unit.text} ({unit.references} of {count})" for unit in counted if unit.references],
        "in no reference": [unit.text for unit in counted if not unit.references],
        "references also say": [
            f"{word.word} ({word.references} of {count})" for word in item.missing if word.references
        ],
    }
    return [f"{title}: {', '.join(words)}" for title, words in lists.items() if words]


class WaterfallStep(NamedTuple):
    """A part of the score on the way from zero to it: from `start` to `start + size`; `role` says its colour."""

    name: str
    start: float
    size: float
    role: Role | None = None

    @property
    def colour(self) -> str:
        """The colour as CSS; the similarity is grey."""
        return "#8a8a8a" if self.role is None else css(self.role, 0.85)


def waterfall(item: "Explanation") -> list[WaterfallStep]:
    """Return the similarity and the weighted contributions of words and regions; the last step ends at Soft-MSD."""
    steps = [WaterfallStep("similarity", 0.0, item.score.similarity)]
    for name, size, role in item.presentation.parts(item.form, item.score):
        steps.append(WaterfallStep(name, steps[-1].start + steps[-1].size, size, role))
    return steps


def sum_lines(item: "Explanation") -> list[str]:
    """Return the score as text: the match, the sum that figures draw, references and warnings."""
    score, title = item.score, score_name(item.score.signature)
    numbers = [(f"{step.size:+.3f}", step.name) for step in waterfall(item)]
    terms = " ".join(f"{number[0]} {number[1:]} {name}" for number, name in numbers)
    name = title if score.candidates == 1 else f"Soft-{title}"
    lines = [score.headline] if score.headline else []
    lines.append(f"{name} {score.soft_msd:+.3f} = {terms.removeprefix('+ ')}")
    if score.reference_count > 0:
        total = f"{score.msd:.3f} {title} + {score.reference_score:.3f} reference score"
        lines.append(f"Ref-{title} {score.ref_msd:+.3f} = {total}")
    return lines + [f"warning: {warning}" for warning in score.warnings]


def waterfall_span(items: "Iterable[Explanation]") -> tuple[float, float]:
    """Return the limits of a common axis for the sums of several captions, including zero."""
    ends = [0.0, *(step.start + step.size for item in items for step in waterfall(item))]
    low, high = min(ends), max(ends)
    pad = 0.02 * ((high - low) or 1.0)
    return low - pad, high + pad


def equation(item: "Explanation") -> str:
    """Return the formula of the score with its numbers."""
    return item.presentation.equation(item.form, item.score).replace("-", "−")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """How explanations present the terms of one form."""

    maps: tuple[Role, ...]  # that are drawn
    map_unit: str  # of carried terms
    projection: str  # how terms become maps unless chosen, by name: see `maps.PROJECTIONS`
    word_columns: tuple[WordColumn, ...]  # numbers of words in tables
    word_note: str  # meaning of the number next to a word in a figure
    settings: tuple[str, ...]  # of the form that are included
    names_words: bool  # whether words that the caption omits are named, if the bank has a vocabulary
    parts: Callable[[Any, Any], list[ScoreStep]]  # of a form and a `Score`: from the similarity to Soft-MSD, in order
    equation: Callable[[Any, Any], str]  # of a form and a `Score`: the formula with its numbers
    legend: Callable[[float, float], list[Entry]]  # of the largest gap and of the p-value below which is doubt
    remarks: "Callable[[Explanation], list[str]]"  # on the words of a caption, line by line


def paper_parts(form: Any, score: Any) -> list[ScoreStep]:
    """Return the contributions of regions and words, unless they have no weight."""
    weight, beta = score.uncertainty * form.alpha, score.beta
    regions, words = -weight * beta * score.coverage, -weight * (1 - beta) * score.support
    parts: list[ScoreStep] = []
    if beta > 0:
        parts.append(("regions covered" if regions > 0 else "regions not mentioned", regions, "omission"))
    if beta < 1:
        parts.append(("words supported" if words > 0 else "words likely wrong", words, "penalty"))
    return [(name, size, "support" if size > 0 else role) for name, size, role in parts]


def paper_equation(form: Any, score: Any) -> str:
    """Return similarity minus the weighted divergence."""
    return f"g − α·u·d = {score.similarity:.3f} − {form.alpha:g}·{score.uncertainty:.2f}·({score.divergence:.2f})"


def paper_legend(limit: float, doubt: float) -> list[Entry]:
    """Colours by gap: white at 0, full at `limit`."""
    return [
        (f"supported, {-limit:.2g} nats or less", "support", 1.0),
        ("white is 0", "support", 0.0),
        (f"likely wrong, {limit:+.2g} or more", "penalty", 1.0),
    ]


def paper_remarks(item: "Explanation") -> list[str]:
    """Return the three least supported words with their gaps."""
    listed = ", ".join(f"{unit.text} ({unit.gap:+.2f})" for unit in item.ranked[:3])
    return [f"least supported, nats: {listed or 'none'}"]


def evidence_parts(form: Any, score: Any) -> list[ScoreStep]:
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


def evidence_equation(form: Any, score: Any) -> str:
    """Return the weighted sum of similarity, negation, precision, information and penalty."""
    gate = "" if score.candidates == 1 else f"·{score.uncertainty:.2f}"
    first, second = form.weights
    negation = f" - {gate[1:]}{gate and '·'}{score.negation:.3f}" if score.negation else ""
    return (
        f"{score.similarity:.3f}{negation} + {first:g}{gate}·({score.precision:.2f})"
        f" + {second:g}{gate}·({score.information:.2f}) - {form.delta:g}{gate}·{score.penalty:.2f}"
    )


def evidence_legend(limit: float, doubt: float) -> list[Entry]:
    """Colours by p-value."""
    return [
        (f"likely wrong (p < {doubt:g})", "penalty", 1.0),
        ("check", "penalty", PALEST),
        ("neither", "support", 0.0),
        ("supported", "support", BLUEST),
    ]


def evidence_remarks(item: "Explanation") -> list[str]:
    """Return the words in doubt, in reading order, with words that would fit better, and what is not judged."""
    instead = {
        suggestion.number: ", ".join(word.word for word in suggestion.instead) for suggestion in item.suggestions
    }
    ranked, lines = item.ranked, list[str]()
    for number, unit in enumerate(item.units):
        if unit in ranked and (found := finding(unit, item.doubt)):
            better = f"; try: {instead[number]}" if number in instead else ""
            lines.append(f"{found}: {unit.text} ({p_text(unit)}){better}")
    hints = [f"{unit.text}: {unit.reason}" for unit in item.units if unit.reason.endswith("?")]
    notes = dict.fromkeys(unit.reason for unit in item.units if unit.reason.endswith("not judged"))
    return [*lines, *hints, *notes]


PRESENTATIONS: dict[Group, Presentation] = {  # by the group of a form's columns
    "paper": Presentation(
        maps=("support", "penalty", "omission"),
        map_unit="nats",
        projection="influence",  # has coverage too, which token terms do not
        word_columns=(WordColumn("gap", "gap, nats", "+.2f"),),
        word_note="the word's gap in nats; above 0 the image does not support it",
        settings=("alpha",),
        names_words=False,
        parts=paper_parts,
        equation=paper_equation,
        legend=paper_legend,
        remarks=paper_remarks,
    ),
    "evidence": Presentation(
        maps=("support",),  # words in doubt have no reliable region
        map_unit="MSD",
        projection="carried",  # docs/explain.md has the comparison with boxes
        word_columns=(
            WordColumn("p_value", "p-value", ".3f"),
            WordColumn("probability", "probably true", ".0%", phrases=False),
            WordColumn("penalty", "penalty", ".2f"),
        ),
        word_note="p-value, the fraction of true words with evidence this low",
        settings=("alpha", "balance", "delta"),
        names_words=True,
        parts=evidence_parts,
        equation=evidence_equation,
        legend=evidence_legend,
        remarks=evidence_remarks,
    ),
}
