"""A caption broken into lines of placed words, measured with fonts that hold its letters."""

import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from msdscore.errors import require
from msdscore.explain.words import TextPiece

MOST_LINES = 12  # a paragraph longer than this is better read as a page
INCH = 72.0
BASE = "DejaVu Sans"  # comes with Matplotlib: Latin, Greek, Cyrillic, Hebrew, Arabic
# Families that hold further scripts, where the machine has them; the first that holds a letter is taken.
FURTHER = (
    "Noto Sans CJK",
    "Noto Sans",
    "Noto Emoji",
    "Arial Unicode",
    "PingFang",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala UI",
    "Segoe UI",
    "Symbola",
    "WenQuanYi",
    "Droid Sans Fallback",
)
NO_GLYPH = "some letters are in no font of this machine; install Noto fonts, or save a page (.html)"


@dataclass(frozen=True, slots=True)
class Placed:
    """Text on a line, `left` inches from its start, with its background and ink where it has any."""

    text: str
    left: float
    back: str = ""
    ink: str = ""


Line = tuple[Placed, ...]


def set_lines(pieces: Sequence[TextPiece], width: float, points: float) -> list[Line]:
    """The words and marks of a caption on lines of `width` inches; cut with an ellipsis after `MOST_LINES`.

    A word that is longer than a line is broken. Captions in scripts that run from right to left begin at the right.
    """
    caption = "".join(piece.text for piece in pieces)
    measure = Ruler(points, families(caption))
    space = (measure(" n") - measure("n")) * 1.3
    lines: list[list[Placed]] = [[]]
    cursor, gap = 0.0, 0.0
    for piece in pieces:
        if piece.number < 0:
            gap = space
            continue
        for number, text in enumerate(_pieces(piece.text, width, measure)):
            wide = measure(text)
            if lines[-1] and (number or cursor + gap + wide > width):
                lines.append([])
                cursor = gap = 0.0
            gap = gap if lines[-1] else 0.0
            lines[-1].append(Placed(text, cursor + gap, piece.back, piece.ink))
            cursor, gap = cursor + gap + wide, 0.0
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], [Placed("… (the page form shows all)", 0.0)]]
    if runs_from_the_right(caption):
        lines = [_mirrored(line, width, measure) for line in lines]
    return [tuple(line) for line in lines]


def runs_from_the_right(text: str) -> bool:
    """Whether the first letter with a direction belongs to a script that runs from right to left.

    >>> runs_from_the_right("12 dogs"), runs_from_the_right("كلب dog")
    (False, True)
    """
    directions = (unicodedata.bidirectional(char) for char in text)
    return next((way != "L" for way in directions if way in ("L", "R", "AL")), False)


def families(text: str) -> list[str]:
    """Font families for a text: the base, and one further for every letter that those before do not hold."""
    chosen = [BASE]
    for char in _letters(text):
        if not any(ord(char) in _letters_of(family) for family in chosen):
            holder = next((family for family in _further() if ord(char) in _letters_of(family)), None)
            chosen += [] if holder is None else [holder]
    return chosen


def lacks_letters(texts: Iterable[str]) -> bool:
    """Whether some letter is in none of this machine's fonts."""
    return any(
        all(ord(char) not in _letters_of(family) for family in families(text))
        for text in texts
        for char in _letters(text)
    )


@contextmanager
def any_letters() -> Iterator[None]:
    """Let captions hold letters that no font holds: boxes stand for them, and the figure says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from", category=UserWarning)
        yield


def _letters(text: str) -> list[str]:
    """Characters that need a glyph; joiners and variation selectors do not."""
    return [
        char for char in dict.fromkeys(text) if not char.isspace() and unicodedata.category(char) not in ("Cf", "Mn")
    ]


def _pieces(text: str, width: float, measure: "Ruler") -> list[str]:
    """The text, broken where it is wider than a line."""
    pieces = [""]
    for char in text if measure(text) > width else [text]:
        if pieces[-1] and measure(pieces[-1] + char) > width:
            pieces.append("")
        pieces[-1] += char
    return pieces


def _mirrored(line: list[Placed], width: float, measure: "Ruler") -> list[Placed]:
    return [replace(placed, left=width - placed.left - measure(placed.text)) for placed in line]


@cache
def _further() -> tuple[str, ...]:
    fonts: Any = require("matplotlib.font_manager", extra="figures")
    names = sorted({entry.name for entry in fonts.fontManager.ttflist})
    return tuple(name for start in FURTHER for name in names if name.startswith(start))


@cache
def _letters_of(family: str) -> frozenset[int]:
    """The characters that a family holds."""
    fonts: Any = require("matplotlib.font_manager", extra="figures")
    return frozenset(fonts.get_font(fonts.findfont(fonts.FontProperties(family=family))).get_charmap())


class Ruler:
    """Widths of text in inches, in the fonts that the figure uses."""

    def __init__(self, points: float, family: list[str]) -> None:
        self._path: Any = require("matplotlib.textpath", extra="figures").text_to_path
        fonts: Any = require("matplotlib.font_manager", extra="figures")
        self._font = fonts.FontProperties(size=points, family=family)

    def __call__(self, text: str) -> float:
        """The width of a text."""
        with any_letters():
            width, _, _ = self._path.get_text_width_height_descent(text, self._font, ismath=False)
        return float(width) / INCH
