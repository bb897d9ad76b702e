"""Words of a caption in colour: one rule for background, ink and tooltip, for pages, figures and terminals alike."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from msdscore.core.evidence import ZERO
from msdscore.explain.colours import WHITE, Role, css, ink
from msdscore.explain.document import p_text
from msdscore.explain.overlay import ColourScale
from msdscore.explain.terms import Attribution, Unit
from msdscore.scoring.config import Paper

FULL = 0.01  # p-value at which a word in doubt has full colour
LIKELY = 0.5  # p-value from which a word is blue
PALEST, BLUEST = 0.2, 0.7  # strengths of the least colour that is seen as one, and of a word with p-value 1
LEGEND = "fewer than one true word in ten looks this unsupported"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a caption: a word with its number, tooltip, background and ink; or the text between words."""

    text: str
    number: int = -1
    title: str = ""
    back: str = ""
    ink: str = ""


def spans(item: Attribution, scale: ColourScale, paper: tuple[int, int, int] = WHITE) -> list[TextPiece]:
    """The caption part by part, with the colours of its words on a paper and everything between them as it was."""
    caption, pieces, end = item.score.caption, [], 0
    for number, unit in enumerate(item.units):
        role, strength = word_colour(unit, scale)
        colours = (css(role, strength, paper), ink(role, strength, paper)) if strength > 0.05 else ("", "")
        pieces += [TextPiece(caption[end : unit.start]), TextPiece(unit.text, number, tooltip(unit), *colours)]
        end = unit.end
    return [piece for piece in (*pieces, TextPiece(caption[end:])) if piece.text]


def word_scale(items: Iterable[Attribution]) -> ColourScale:
    """One scale for the gaps of the words of several captions under the paper's form: up to the largest of them."""
    gaps = [abs(unit.gap) for item in items for unit in item.ranked if unit.gap is not None]
    return ColourScale(max(gaps, default=1.0))


def word_colour(unit: Unit, scale: ColourScale) -> tuple[Role, float]:
    """Hue and strength of a word.

    By its p-value: towards `penalty` below 0.1, in full from 0.01 down, white up to 0.5, towards `support` above. Under
    the paper's form by its gap: white at zero, towards `penalty` above it, towards `support` below it.
    """
    if not unit.content or (unit.p_value is None and unit.gap is None):
        return "penalty", 0.0
    if unit.p_value is None:
        strength = float(scale.strength(unit.gap or 0.0))
        return ("penalty", strength) if strength >= 0 else ("support", -strength)
    if unit.p_value < ZERO:
        depth = log(ZERO / max(unit.p_value, FULL)) / log(ZERO / FULL)
        return "penalty", min(PALEST + (1 - PALEST) * depth, 1.0)
    if unit.p_value < LIKELY:
        return "support", 0.0
    return "support", PALEST + (BLUEST - PALEST) * (unit.p_value - LIKELY) / (1 - LIKELY)


def tooltip(unit: Unit) -> str:
    """What a word's numbers say, or why it has none; nothing for marks that no encoder reads."""
    if unit.p_value is not None and unit.probability is not None:
        return f"{p_text(unit)}; true with probability {unit.probability:.2f}; adds {unit.term or 0.0:+.3f}"
    if unit.gap is not None:
        return f"{unit.gap:+.2f} nats; adds {unit.term or 0.0:+.3f}"
    if unit.kind == "mark":
        return ""
    return f"not judged: {unit.reason}" if unit.reason else "not judged"


def legend(items: Iterable[Attribution]) -> list[tuple[str, str, str]]:
    """What the colours of words say: text, background and ink of every entry."""
    items = tuple(items)
    if all(isinstance(item.form, Paper) for item in items):
        limit = word_scale(items).limit
        return _entries(
            (f"supported, {-limit:.2g} nats or less", "support", 1.0),
            ("white is 0", "support", 0.0),
            (f"not supported, {limit:+.2g} or more", "penalty", 1.0),
        )
    return _entries(
        (LEGEND, "penalty", 1.0), ("neither", "support", 0.0), ("looks as true words do", "support", BLUEST)
    )


def _entries(*entries: tuple[str, Role, float]) -> list[tuple[str, str, str]]:
    return [(text, css(role, strength), ink(role, strength)) for text, role, strength in entries]
