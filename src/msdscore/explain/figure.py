"""Explanations as Matplotlib figures at the width of a paper's column: words, maps, and the score as a sum.

Captions are broken into lines of positioned words, measured with fonts that have their letters.
"""

import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from io import BytesIO
from itertools import accumulate
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.errors import require
from msdscore.explain import look
from msdscore.explain.terms import Attribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches, but for points and pixels.
COLUMN = 3.4  # one column of a two-column paper
MARGIN = 0.06
INDENT = 0.02  # room for the box of a line's first word
GAP = 0.08
CAPTION_POINTS, LABEL_POINTS, SMALL_POINTS, KEY_POINTS = 9.0, 7.0, 6.0, 5.2
LINE, SMALL_LINE = 0.2, 0.115  # a line of the caption, and of a remark
FOOT = 0.16  # a note under all captions
LETTERS = 76  # of a remark that fit a line
MOST_ACROSS = 2  # captions per row: the width of a page of a two-column paper
IMAGE_PIXELS = 480  # longest side of a panel's image: 400 dpi at a third of a column
SHEET_IMAGE, SHEET_TEXT, SHEET_PIXELS, SHEET_DPI = 1.1, 4.2, 240, 110  # of a sheet, as loggers show it
GREY = "#555"
WIDER = 0.4  # of the height of a letter, by which a wide one exceeds its placeholder box
MOST_LINES = 12  # a paragraph longer than this is better read as a page
INCH = 72.0
Line = list[tuple[float, look.TextPiece]]  # parts of a caption with their offsets in inches from the start of the line
BASE = "DejaVu Sans"  # comes with Matplotlib: Latin, Greek, Cyrillic, Hebrew, Arabic
# Families with further scripts, if they are installed; the first that has a letter is used.
FURTHER = (
    "Noto Sans CJK", "Noto Sans", "Noto Emoji", "Arial Unicode", "PingFang", "Hiragino Sans", "Microsoft YaHei",
    "Malgun Gothic", "Nirmala UI", "Segoe UI", "Symbola", "WenQuanYi", "Droid Sans Fallback",
)  # fmt: skip
NO_GLYPH = "some letters are in no installed font; install Noto fonts, or save as .html"


class Page:
    """A white figure with positions in inches from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        make: Any = require("matplotlib.figure", extra="figures").Figure
        self.figure, self.width, self.height = make(figsize=(width, height), facecolor="white"), width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Add axes without decoration at a position."""
        low = self.height - top - height
        axes = self.figure.add_axes((left / self.width, low / self.height, width / self.width, height / self.height))
        axes.set_axis_off()
        return axes

    def text(self, left: float, top: float, text: str, points: float = LABEL_POINTS, **style: Any) -> None:
        """Add text with its top left corner (or as set in `style`) at a position; dollar signs are literal."""
        style = {"va": "top", "ha": "left", "color": "#111"} | style
        where = (left / self.width, 1 - top / self.height)
        self.figure.text(*where, text, fontsize=points, parse_math=False, **style)

    def image(self, left: float, top: float, width: float, height: float, pixels: Any) -> None:
        """Add an image that fills a box."""
        self.axes(left, top, width, height).imshow(np.asarray(pixels), aspect="auto", interpolation="antialiased")


def figure(items: Sequence[Attribution], *, warn: bool = True) -> "Figure":
    """Draw one cell per caption, two per row: coloured words, maps with legends, the score as a sum, remarks.

    A last line says if no font has some letter, unless `warn` is false.
    """
    across, limit, maps = min(MOST_ACROSS, len(items)), look.word_limit(items), look.maps_of(items)
    span = look.waterfall_span(items)
    lines = [set_lines(look.spans(item, limit), COLUMN - 2 * (MARGIN + INDENT), CAPTION_POINTS) for item in items]
    remarks = [
        [line for remark in look.remarks(item, items) for line in wrap(remark, LETTERS, subsequent_indent="   ")]
        for item in items
    ]
    panel = _panel(len(maps[0]))
    high = panel * _shape(items[0].image)
    # Each row of cells is as high as its longest caption and its longest remarks need.
    starts = range(0, len(items), across)
    captions = [LINE * max(map(len, lines[at : at + across])) for at in starts]
    below = [SMALL_LINE * max(map(len, remarks[at : at + across])) for at in starts]
    heights = [MARGIN + own + 0.39 + high + 0.20 + 0.48 + under for own, under in zip(captions, below, strict=True)]
    tops = list(accumulate(heights, initial=0.0))
    foot = FOOT if warn and lacks_letters(item.score.caption for item in items) else 0.0
    page = Page(across * COLUMN, tops[-1] + foot)
    for number, item in enumerate(items):
        row, column = divmod(number, across)
        left, top = column * COLUMN + MARGIN, tops[row] + MARGIN
        _draw_caption(page, (left, top), lines[number], font_families(item.score.caption))
        top += captions[row] + 0.02
        _draw_word_key(page, left, top, items, KEY_POINTS)
        small = look.thumbnail(item.image, IMAGE_PIXELS)
        for index, drawn in enumerate(maps[number].values()):
            at = left + index * (panel + GAP)
            page.text(at, top + 0.22, drawn.title, color=look.css(drawn.role, 1.0), weight="bold")
            page.image(at, top + 0.37, panel, high, look.overlay(small, item.patches, drawn))
            _draw_legend(page, at, top + 0.40 + high, panel, drawn)
        _draw_sum(page, left, top + 0.40 + high + 0.20, item, span)
        for index, line in enumerate(remarks[number]):
            page.text(left, top + 0.40 + high + 0.20 + 0.47 + index * SMALL_LINE, line, SMALL_POINTS)
    if foot:
        page.text(MARGIN, tops[-1] + 0.04, NO_GLYPH, SMALL_POINTS, color=GREY)
    return page.figure


def word_figure(item: Attribution, columns: int = 4) -> "Figure":
    """Draw small maps of the regions of each judged word, the least supported word first."""
    units, panel = item.ranked, _panel(columns)
    step = panel * _shape(item.image) + 0.2
    rows = max(1, -(-len(units) // columns))
    page = Page(COLUMN, rows * step + 0.36)
    limit, image = look.word_limit([item]), look.thumbnail(item.image, IMAGE_PIXELS)
    for number, unit in enumerate(units):
        left = MARGIN + (number % columns) * (panel + GAP)
        top = MARGIN + (number // columns) * step
        role, strength = look.word_colour(unit, limit, item.doubt)
        name = unit.text if len(unit.text) <= 12 else unit.text[:11] + "…"
        colour = look.css(role, max(strength, 0.7)) if strength else GREY
        known = f"{unit.p_value:.2g}" if unit.p_value is not None else f"{unit.gap or 0.0:+.1f}".replace("-", "−")
        page.text(left, top, f"{name}  {known}", weight="bold", family=font_families(unit.text), color=colour)
        page.image(left, top + 0.15, panel, step - 0.2, look.overlay(image, item.patches, look.word_map(item, unit)))
    notes = f"number: {item.form.word_note}"
    for number, note in enumerate((notes, "green: where the word looks, each image to its own maximum")):
        page.text(MARGIN, rows * step + 0.1 + 0.11 * number, note, SMALL_POINTS - 0.5, color=GREY)
    return page.figure


def sheet_pixels(items: Sequence[Attribution]) -> npt.NDArray[np.uint8]:
    """Captions of several images, one row per explanation, the image next to its caption, MSD and match.

    As pixels, height by width by three, for loggers that take images.
    """
    limit = look.word_limit(items)
    lines = [set_lines(look.spans(item, limit), SHEET_TEXT - INDENT, CAPTION_POINTS) for item in items]
    images = [look.thumbnail(item.image, SHEET_PIXELS) for item in items]
    tall = [SHEET_IMAGE * _shape(image) for image in images]
    heights = [max(high, len(own) * LINE + FOOT) + GAP for high, own in zip(tall, lines, strict=True)]
    tops = [MARGIN, *(MARGIN + height for height in accumulate(heights))]
    page = Page(SHEET_IMAGE + SHEET_TEXT + 2 * MARGIN + GAP, tops[-1] + 0.3)
    left = MARGIN + SHEET_IMAGE + GAP
    for item, own, top, high, image in zip(items, lines, tops, tall, images, strict=False):
        page.image(MARGIN, top, SHEET_IMAGE, high, image)
        _draw_caption(page, (left, top), own, font_families(item.score.caption))
        match = "" if item.score.match is None else f"match {item.score.match:.2f}, {item.score.reading}; "
        page.text(left + INDENT, top + len(own) * LINE + 0.03, f"{match}MSD {item.score.msd:+.3f}", color=GREY)
    _draw_word_key(page, left, tops[-1] + 0.05, items, SMALL_POINTS)
    buffer = BytesIO()
    with any_letters():
        page.figure.savefig(buffer, format="png", dpi=SHEET_DPI)
    return np.asarray(Image.open(buffer).convert("RGB"))


def _panel(count: int) -> float:
    """Return the width of one of several panels in a row."""
    return (COLUMN - 2 * MARGIN - (count - 1) * GAP) / count


def _shape(image: Image.Image) -> float:
    """Height by width as it is drawn; extreme formats are squeezed."""
    return float(np.clip(image.height / image.width, 0.4, 1.6))


def _draw_caption(page: Page, corner: tuple[float, float], lines: Sequence[Line], family: list[str]) -> None:
    left, top = corner
    for number, line in enumerate(lines):
        for at, own in line:
            box = {"boxstyle": "round,pad=0.12,rounding_size=0.15", "facecolor": own.back, "linewidth": 0}
            style = {"va": "center", "family": family, "color": own.ink or "#111", "bbox": box if own.back else None}
            page.text(left + INDENT + at, top + (number + 0.5) * LINE, own.text, CAPTION_POINTS, **style)


def _draw_word_key(page: Page, left: float, top: float, items: Sequence[Attribution], points: float) -> None:
    """Draw the legend of word colours."""
    measure = ruler(points, font_families(""))
    at = left + 0.03
    for text, back, ink in look.legend(items):
        box = {"boxstyle": "round,pad=0.15,rounding_size=0.15", "facecolor": back, "linewidth": 0}
        page.text(at, top + 0.085, text, points, va="center", color=ink, bbox=box)
        at += measure(text) + 0.09


def _draw_legend(page: Page, left: float, top: float, width: float, drawn: look.Map) -> None:
    page.axes(left, top, width, 0.05).imshow(drawn.shades(64)[None], aspect="auto")
    page.text(left, top + 0.065, drawn.low, SMALL_POINTS, color=GREY)
    # The unit is under the other maps; with two signs there is no space for it.
    high = drawn.high.removesuffix(" nats") if drawn.below else drawn.high
    page.text(left + width, top + 0.065, high, SMALL_POINTS, color=GREY, ha="right")


def _draw_sum(page: Page, left: float, top: float, item: Attribution, span: tuple[float, float]) -> None:
    """The headline, and a bar from zero to the score with a lane for each part."""
    score, width = item.score, COLUMN - 2 * MARGIN
    total = f"{'MSD' if score.candidates == 1 else 'Soft-MSD'} {_signed(score.soft_msd)}"
    head = total if score.match is None else f"{100 * score.match:.0f} %: {score.reading} match"
    if not item.readable:
        head = "cannot be judged"
    page.text(left, top, head, LABEL_POINTS + 1, weight="bold")
    right = look.equation(item) if score.match is None else total
    page.text(left + width, top + 0.015, right, SMALL_POINTS, ha="right", color=GREY)
    steps = look.waterfall(item)
    axes = page.axes(left, top + 0.16, width, 0.15)
    axes.set_xlim(*span)
    axes.set_ylim(len(steps), 0)
    for lane, step in enumerate(steps):
        axes.barh(lane + 0.5, step.size, left=step.start, height=1.0, color=step.colour, linewidth=0)
    axes.axvline(0, color="#111", linewidth=0.6)
    axes.axvline(score.soft_msd, color="#111", linewidth=1.6)
    for number, step in enumerate(steps):
        side = "left" if number == 0 else "right" if number == len(steps) - 1 else "center"
        at = left + width * number / max(1, len(steps) - 1)
        colour = "#666" if number == 0 else step.colour
        page.text(at, top + 0.34, f"{step.name} {_signed(step.size)}", KEY_POINTS, ha=side, color=colour, weight="bold")


def _signed(value: float) -> str:
    """A number with its sign, typeset."""
    return f"{value:+.3f}".replace("-", "−")


def set_lines(pieces: Sequence[look.TextPiece], width: float, points: float) -> list[Line]:
    """The words and marks of a caption on lines of `width` inches; cut with an ellipsis after `MOST_LINES`.

    A word that is longer than a line is broken. Captions in scripts that run from right to left begin at the right.
    """
    caption = "".join(piece.text for piece in pieces)
    measure = ruler(points, font_families(caption))
    space = (measure(" n") - measure("n")) * 1.3
    lines: list[Line] = [[]]
    cursor, gap = 0.0, 0.0
    for piece in pieces:
        if piece.number < 0:
            gap = space
            continue
        parts = [""]
        for char in piece.text if measure(piece.text) > width else [piece.text]:
            if parts[-1] and measure(parts[-1] + char) > width:
                parts.append("")
            parts[-1] += char
        for number, text in enumerate(parts):
            wide = measure(text)
            if lines[-1] and (number or cursor + gap + wide > width):
                lines.append([])
                cursor = gap = 0.0
            gap = gap if lines[-1] else 0.0
            lines[-1].append((cursor + gap, replace(piece, text=text)))
            cursor, gap = cursor + gap + wide, 0.0
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], [(0.0, look.TextPiece("… (the page form shows all)"))]]
    if runs_from_the_right(caption):
        lines = [[(width - left - measure(piece.text), piece) for left, piece in line] for line in lines]
    return lines


def runs_from_the_right(text: str) -> bool:
    """Whether the first letter with a direction belongs to a script that runs from right to left.

    >>> runs_from_the_right("12 dogs"), runs_from_the_right("كلب dog")
    (False, True)
    """
    directions = (unicodedata.bidirectional(char) for char in text)
    return next((way != "L" for way in directions if way in ("L", "R", "AL")), False)


def font_families(text: str) -> list[str]:
    """Return font families for a text: the base, and one more for every letter that the previous ones lack."""
    chosen = [BASE]
    for char in _letters(text):
        if not any(ord(char) in _letters_of(family) for family in chosen):
            holder = next((family for family in _further() if ord(char) in _letters_of(family)), None)
            chosen += [] if holder is None else [holder]
    return chosen


def lacks_letters(texts: Iterable[str]) -> bool:
    """Return whether a letter is in none of the installed fonts."""
    return any(
        all(ord(char) not in _letters_of(family) for family in font_families(text))
        for text in texts
        for char in _letters(text)
    )


@contextmanager
def any_letters() -> Iterator[None]:
    """Allow letters that no font has: they are drawn as boxes, and the figure says so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from", category=UserWarning)
        yield


def _letters(text: str) -> list[str]:
    """Characters that need a glyph; joiners and variation selectors do not."""
    return [
        char for char in dict.fromkeys(text) if not char.isspace() and unicodedata.category(char) not in ("Cf", "Mn")
    ]


@cache
def _further() -> tuple[str, ...]:
    fonts: Any = require("matplotlib.font_manager", extra="figures")
    names = sorted({entry.name for entry in fonts.fontManager.ttflist})
    return tuple(name for start in FURTHER for name in names if name.startswith(start))


@cache
def _letters_of(family: str) -> frozenset[int]:
    """Return the characters of a family."""
    fonts: Any = require("matplotlib.font_manager", extra="figures")
    return frozenset(fonts.get_font(fonts.findfont(fonts.FontProperties(family=family))).get_charmap())


def ruler(points: float, family: list[str]) -> Callable[[str], float]:
    """Return a function that computes the width of a text in inches, in the fonts of the figure."""
    path: Any = require("matplotlib.textpath", extra="figures").text_to_path
    font = require("matplotlib.font_manager", extra="figures").FontProperties(size=points, family=family)

    def measure(text: str) -> float:
        # The viewer's font draws letters that are not installed here; wide ones need more space than their boxes.
        wide = [char for char in text if unicodedata.east_asian_width(char) in "WF" and lacks_letters([char])]
        with any_letters():
            drawn = float(path.get_text_width_height_descent(text, font, ismath=False)[0])
        return (drawn + WIDER * points * len(wide)) / INCH

    return measure
