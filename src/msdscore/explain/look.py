"""Appearance of explanations in all backends: colours, words, the score as a sum, remarks, and how each form is shown.

Colours are hues that colour-blind readers can distinguish, in even steps of lightness. Ramps run from the paper (white,
or the dark of a page) to a hue of Okabe and Ito's palette along a straight line of OKLab, whose distances are those
that people see; so equal steps of a value look equally large. Figures, pages, reports and terminals use these colours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from msdscore.core.evidence import TYPICAL, ZERO
from msdscore.explain.attribution import Attribution
from msdscore.forms.base import CHECK, LIKELY_WRONG, Floats, Form, Role, Unit, finding
from msdscore.forms.registry import facts_of, score_name

Colour = tuple[int, int, int]
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


def spans(item: Attribution, limit: float) -> list[TextPiece]:
    """Return the parts of the caption: words with their colours (see `word_limit`) and the text between them."""
    caption, pieces, end = item.score.caption, [], 0
    for number, unit in enumerate(item.units):
        role, strength = word_colour(unit, limit, item.doubt)
        colours = page_colours(role, strength) if strength > 0.05 else ()
        pieces += [TextPiece(caption[end : unit.start]), TextPiece(unit.text, number, tooltip(unit), *colours)]
        end = unit.end
    return [piece for piece in (*pieces, TextPiece(caption[end:])) if piece.text]


def word_limit(items: Iterable[Attribution]) -> float:
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
    found = finding(unit.text, unit.p_value, unit.probability, doubt)
    if found == CHECK:
        return "penalty", PALEST
    if found == LIKELY_WRONG:
        full = FULL * doubt / ZERO
        depth = log(doubt / max(unit.p_value, full)) / log(doubt / full)
        return "penalty", min(MIDDLE + (1 - MIDDLE) * depth, 1.0)
    if unit.p_value < TYPICAL:
        return "support", 0.0
    return "support", PALEST + (BLUEST - PALEST) * (unit.p_value - TYPICAL) / (1 - TYPICAL)


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


def legend(items: Iterable[Attribution]) -> list[tuple[str, str, str]]:
    """Return the legend of word colours: text, background and ink of every entry."""
    items = tuple(items)
    entries = legend_of(items[0].form, word_limit(items), items[0].doubt)
    return [(text, css(role, strength), ink(role, strength)) for text, role, strength in entries]


def legend_of(form: Form, limit: float, doubt: float) -> list[Entry]:
    """Return the legend of the words of a form; without p-values, the largest gap of words is `limit`."""
    if form.has_p_values:
        return [
            (f"likely wrong (p < {doubt:g}, probably false)", "penalty", 1.0),
            (f"check (p < {doubt:g})", "penalty", PALEST),
            ("neither", "support", 0.0),
            (f"supported (p ≥ {TYPICAL:g})", "support", BLUEST),
        ]
    return [
        (f"supported, {-limit:.2g} nats or less", "support", 1.0),
        ("white is 0", "support", 0.0),
        (f"likely wrong, {limit:+.2g} or more", "penalty", 1.0),
    ]


def signatures(items: Sequence[Attribution]) -> str:
    """Return the signatures of explanations that are shown together, separated by spaces."""
    return " ".join(dict.fromkeys(item.score.signature for item in items))


def remarks(item: Attribution, items: Sequence[Attribution] = ()) -> list[str]:
    """Return remarks on the words, line by line; the encoder first if `items`, shown together, have several."""
    lines: list[str] = []
    if len({facts_of(other.score.signature)["enc"] for other in items}) > 1:
        lines.append(f"encoder {facts_of(item.score.signature)['enc']}")
    if not item.readable:
        return [*lines, "cannot be judged: this encoder only reads captions in English"]
    lines += _word_remarks(item)
    if item.score.reference_count > 0:
        lines += _reference_remarks(item, int(item.score.reference_count))
    missing = [word.word for word in item.missing if word.references is None]
    return [*lines, f"probably missing from the caption: {', '.join(missing)}"] if missing else lines


def _reference_remarks(item: Attribution, count: int) -> list[str]:
    """Return what words are judged by, which are in the references and which are not, and what several of them add."""
    counted = [unit for unit in item.units if unit.references is not None]
    lists = {
        "in the references too": [f"{unit.text} ({unit.references} of {count})" for unit in counted if unit.references],
        "in no reference": [unit.text for unit in counted if not unit.references],
        "references also say": [
            f"{word.word} ({word.references} of {count})" for word in item.missing if word.references
        ],
    }
    rule = ["words are judged by the image and its references together"] if item.form.has_p_values else []
    return rule + [f"{title}: {', '.join(words)}" for title, words in lists.items() if words]


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


def waterfall(item: Attribution) -> list[WaterfallStep]:
    """Return the similarity and the weighted contributions of words and regions; the last step ends at Soft-MSD."""
    steps = [WaterfallStep("similarity", 0.0, item.score.similarity)]
    for name, size, role in item.form.parts(item.score):
        steps.append(WaterfallStep(name, steps[-1].start + steps[-1].size, size, role))
    return steps


def sum_lines(item: Attribution) -> list[str]:
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


def waterfall_span(items: Iterable[Attribution]) -> tuple[float, float]:
    """Return the limits of a common axis for the sums of several captions, including zero."""
    ends = [0.0, *(step.start + step.size for item in items for step in waterfall(item))]
    low, high = min(ends), max(ends)
    pad = 0.02 * ((high - low) or 1.0)
    return low - pad, high + pad


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


def word_columns(form: Form) -> tuple[WordColumn, ...]:
    """Return the numbers of words in tables."""
    if not form.has_p_values:
        return (WordColumn("gap", "gap, nats", "+.2f"),)
    return (
        WordColumn("p_value", "p-value", ".3f"),
        WordColumn("probability", "probably true", ".0%", phrases=False),
        WordColumn("penalty", "penalty", ".2f"),
    )


def _word_remarks(item: Attribution) -> list[str]:
    """Return the words in doubt, in reading order, with words that would fit better, and what is not judged.

    Without p-values, the three least supported words with their gaps.
    """
    if not item.form.has_p_values:
        listed = ", ".join(f"{unit.text} ({unit.gap:+.2f})" for unit in item.ranked[:3])
        return [f"least supported, nats: {listed or 'none'}"]
    instead = {
        suggestion.number: ", ".join(word.word for word in suggestion.instead) for suggestion in item.suggestions
    }
    ranked, lines = item.ranked, list[str]()
    for number, unit in enumerate(item.units):
        if unit in ranked and (found := item.finding(unit)):
            better = f"; try: {instead[number]}" if number in instead else ""
            lines.append(f"{found}: {unit.text} ({p_text(unit)}){better}")
    hints = [f"{unit.text}: {unit.reason}" for unit in item.units if unit.reason.endswith("?")]
    notes = dict.fromkeys(unit.reason for unit in item.units if unit.reason.endswith("not judged"))
    return [*lines, *hints, *notes]
