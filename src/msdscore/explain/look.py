"""Appearance of explanations in all backends: colours, words, maps over the image, the score as a sum, remarks.

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
from PIL import Image

from msdscore.core.evidence import TYPICAL, ZERO
from msdscore.encoders.base import PatchLayout
from msdscore.explain.maps import pixels
from msdscore.explain.presentation import BLUEST, CHECK, PALEST, Role, finding, p_text
from msdscore.explain.terms import CARRIED, Attribution
from msdscore.forms.base import Floats, Unit
from msdscore.forms.registry import facts_of, score_name

Colour = tuple[int, int, int]

FULL = 0.01  # p-value at which a word in doubt has full colour
MIDDLE = 0.5  # least strength of a word that is likely wrong
TITLES: dict[Role, str] = {
    "support": "regions of supported words",
    "penalty": "regions of doubtful words",
    "omission": "not mentioned",
    "leaning": "regions of the word",
}
_EFFECTS: dict[Role, str] = {"support": "raises the score", "penalty": "lowers the score"}  # titles of other maps
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
        papers = (WHITE, DARK) if strength > 0.05 else ()
        colours = [draw(role, strength, paper) for paper in papers for draw in (css, ink)]
        pieces += [TextPiece(caption[end : unit.start]), TextPiece(unit.text, number, tooltip(unit), *colours)]
        end = unit.end
    return [piece for piece in (*pieces, TextPiece(caption[end:])) if piece.text]


def word_limit(items: Iterable[Attribution]) -> float:
    """Return the gap that gets the full colour, for several captions under the paper's form: the largest one."""
    gaps = [abs(unit.gap) for item in items for unit in item.ranked if unit.gap is not None]
    return max(gaps, default=1.0)


def word_colour(unit: Unit, limit: float, doubt: float = ZERO) -> tuple[Role, float]:
    """Return hue and strength of a word.

    By its p-value: towards `penalty` below `doubt`, pale for a word to check, in full from a tenth of it down for one
    that is likely wrong, white up to 0.5, towards `support` above. Under the paper's form by its gap: white at zero,
    towards `penalty` above it, towards `support` below it.
    """
    if not unit.content or (unit.p_value is None and unit.gap is None):
        return "penalty", 0.0
    if unit.p_value is None:
        strength = float(_strength(unit.gap or 0.0, limit))
        return ("penalty", strength) if strength >= 0 else ("support", -strength)
    if (found := finding(unit, doubt)) == CHECK:
        return "penalty", PALEST
    if found:
        full = FULL * doubt / ZERO
        depth = log(doubt / max(unit.p_value, full)) / log(doubt / full)
        return "penalty", min(MIDDLE + (1 - MIDDLE) * depth, 1.0)
    if unit.p_value < TYPICAL:
        return "support", 0.0
    return "support", PALEST + (BLUEST - PALEST) * (unit.p_value - TYPICAL) / (1 - TYPICAL)


def tooltip(unit: Unit) -> str:
    """Return the numbers of a word as text, or why it has none; empty for marks that no encoder reads."""
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
    entries = items[0].presentation.legend(word_limit(items), items[0].doubt)
    return [(text, css(role, strength), ink(role, strength)) for text, role, strength in entries]


def signatures(items: Sequence[Attribution]) -> str:
    """Return the signatures of explanations that are shown together, separated by spaces."""
    return " ".join(dict.fromkeys(item.score.signature for item in items))


def remarks(item: Attribution, items: Sequence[Attribution] = ()) -> list[str]:
    """Return remarks on the words, line by line; the encoder first if `items`, shown together, have several."""
    several = len({facts_of(other.score.signature)["enc"] for other in items}) > 1
    encoder = [f"encoder {facts_of(item.score.signature)['enc']}"] if several else []
    if not item.readable:
        return [*encoder, "cannot be judged: the caption is not in English, which this encoder reads"]
    instead = {
        suggestion.number: ", ".join(word.word for word in suggestion.instead) for suggestion in item.suggestions
    }
    lists: dict[str, list[str]] = {}
    if item.score.reference_count > 0:
        count = int(item.score.reference_count)
        counted = [unit for unit in item.units if unit.references is not None]
        lists["people say it too"] = [
            f"{unit.text} (in {unit.references} of {count} references)" for unit in counted if unit.references
        ]
        lists["in no reference"] = [unit.text for unit in counted if not unit.references]
        named = [word for word in item.missing if word.references]
        lists["references also say"] = [f"{word.word} ({word.references} of {count})" for word in named]
    lists["probably missing from the caption"] = [word.word for word in item.missing if word.references is None]
    lines = [f"{title}: {', '.join(words)}" for title, words in lists.items() if words]
    return [*encoder, *item.presentation.remarks(item.units, item.ranked, instead, item.doubt), *lines]


@dataclass(frozen=True, slots=True)
class Map:
    """Values over the image, rows by columns: white at zero, in full colour from `limit` on, `low` and `high` under it.

    `below` is the colour of values below zero, for roles whose maps have them.
    """

    role: Role
    title: str
    values: Floats
    limit: float
    low: str
    high: str
    below: Role | None = None

    @property
    def strength(self) -> Floats:
        """Values divided by the limit and clipped to −1 … 1."""
        return _strength(self.values, self.limit)

    def shades(self, steps: int) -> npt.NDArray[np.uint8]:
        """Return the colours of the legend, from low to high."""
        above = ramp(self.role, np.linspace(0, 1, steps))
        return above if self.below is None else np.concatenate([ramp(self.below, np.linspace(1, 0, steps)), above])


def _strength(values: npt.ArrayLike, limit: float) -> Floats:
    shares = np.asarray(values, dtype=np.float64) / (limit if limit > 0 else 1.0)
    return np.clip(shares, -1.0, 1.0)


def maps_of(items: Sequence[Attribution], roles: Sequence[Role] = ()) -> list[dict[Role, Map]]:
    """Return the maps of each caption, by default of all roles, scaled by the largest value of all captions.

    Omissions that have no weight in any score have a separate scale; values below zero are regions that a caption
    mentions.
    """
    shown = items[0].presentation.maps
    values: list[dict[Role, Floats]] = [
        {"support": item.support_map, "penalty": item.penalty_map, "omission": item.omission_map} for item in items
    ]
    if any(item.terms.beta > 0 for item in items):
        scales: tuple[tuple[Role, ...], ...] = (shown,)
    else:
        scales = (("support", "penalty"), ("omission",))
    limits = {
        role: max(float(np.abs(own[name]).max()) for own in values for name in together)
        for together in scales
        for role in together
    }
    signed = any(_has_mentions(own["omission"]) for own in values)
    return [
        {
            role: _omissions(item, own["omission"], limits[role], signed=signed)
            if role == "omission"
            else _effects(item, role, own[role], limits[role])
            for role in roles or shown
        }
        for item, own in zip(items, values, strict=True)
    ]


def _has_mentions(omissions: Floats) -> bool:
    return bool(omissions.min() < 0)


def _omissions(item: Attribution, values: Floats, limit: float, *, signed: bool) -> Map:
    """Return the map of omissions; `signed` if a caption shown with it has values below zero."""
    title = TITLES["omission"]
    if item.terms.beta == 0:
        title = "not mentioned (unscored)"
    elif _has_mentions(values):
        title = "mentioned or not"
    if signed:
        return Map("omission", title, values, limit, f"mentioned −{limit:.2g}", f"+{limit:.2g} nats", "support")
    return Map("omission", title, values, limit, "0", f"{limit:.2g} nats")


def _effects(item: Attribution, role: Role, values: Floats, limit: float) -> Map:
    """Return the map of regions that support or contradict the caption."""
    carried = item.projection == CARRIED
    unit = item.presentation.map_unit if carried else "nats"
    return Map(role, TITLES[role] if carried else _EFFECTS[role], values, limit, "0", f"{limit:.2g} {unit}")


def word_map(item: Attribution, unit: Unit) -> Map:
    """Return the map of a word, scaled to its maximum."""
    spread = item.leaning(unit)
    highest, name = float(spread.max()), f"“{unit.text}”"
    return Map("leaning", f"where {name} looks", spread, highest, "0 %", f"{100 * highest:.2g} % of {name}")


def thumbnail(image: Image.Image, longest: int) -> Image.Image:
    """Return the image, reduced if a side is longer than `longest`."""
    if max(image.size) <= longest:
        return image
    share = longest / max(image.size)
    size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
    return image.resize(size, Image.Resampling.LANCZOS)


def overlay(image: Image.Image, layout: PatchLayout, drawn: Map) -> Image.Image:
    """Return the image in light grey, tinted by the values of a map; regions that the encoder did not see are darkened.

    Values above zero have the colour of the role; those below it, which only omissions have, that of support.
    """
    heat = pixels(drawn.values.ravel(), layout, image.size)
    signed = _strength(np.nan_to_num(heat, nan=0.0), drawn.limit)
    strength = np.abs(signed)
    grey = np.asarray(image.convert("L"), dtype=np.float64)[..., None] / 255
    # Strong colours reduce the grey, so that dark parts of the photograph do not look like high values.
    light = 0.45 + 0.55 * grey + 0.30 * strength[..., None] * (1 - grey)
    colour = np.where((signed >= 0)[..., None], ramp(drawn.role, strength), ramp("support", strength))
    tinted = np.where(np.isnan(heat)[..., None], 90 * grey + 40, light * colour)
    return Image.fromarray(np.clip(tinted, 0, 255).astype(np.uint8))


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
    for name, size, role in item.presentation.parts(item.form, item.score):
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


def equation(item: Attribution) -> str:
    """Return the formula of the score with its numbers."""
    return item.presentation.equation(item.form, item.score).replace("-", "−")
