"""Matplotlib figures of explanations, one column of a paper wide: words, maps, and the score as a sum.

Captions are broken into lines of separately positioned words, whose widths are measured in the fonts of the figure.
"""

import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
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
from msdscore.explain.attribution import Attribution
from msdscore.explain.maps import Map, maps_of, overlay, thumbnail
from msdscore.io.targets import MARK
from msdscore.scoring.results import Score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Lengths are in inches, font sizes in points.
COLUMN = 3.4  # one column of a two-column paper
MARGIN = 0.06
INDENT = 0.02  # padding for the box of the first word of a line
GAP = 0.08
CAPTION_POINTS, LABEL_POINTS, SMALL_POINTS, KEY_POINTS = 9.0, 7.0, 6.0, 5.2
LINE, SMALL_LINE = 0.2, 0.115  # height of a line of the caption, and of a remark
LETTERS = 76  # characters per line of a remark
MOST_ACROSS = 2  # captions per row: the width of a page of a two-column paper
IMAGE_PIXELS = 480  # longest side of the image of a panel: 400 dpi at a third of a column
DPI, SCREEN_DPI = 300, 110
FIGURES = (".png", ".svg", ".pdf")  # suffixes of figure files
GREY = "#555"
BOLDER = 1.15  # width of bold text relative to plain text, at most
WIDER = 0.4  # fraction of the font size by which a wide character exceeds its placeholder box
MOST_LINES = 12  # longer captions are truncated; the HTML page shows them in full
INCH = 72.0
Line = list[tuple[float, look.TextPiece]]  # parts of a caption with their offsets in inches from the start of the line
BASE = "DejaVu Sans"  # comes with Matplotlib: Latin, Greek, Cyrillic, Hebrew, Arabic
# Fonts for other scripts, used if installed; the first one that has a character is chosen.
FURTHER = (
    "Noto Sans CJK", "Noto Sans", "Noto Emoji", "Arial Unicode", "PingFang", "Hiragino Sans", "Microsoft YaHei",
    "Malgun Gothic", "Nirmala UI", "Segoe UI", "Symbola", "WenQuanYi", "Droid Sans Fallback",
)  # fmt: skip
NO_GLYPH = "some characters have no font; install Noto fonts, or save as .html"


class Page:
    """A white figure; positions are in inches from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        make: Any = require("matplotlib.figure", extra="figures").Figure
        self.figure, self.width, self.height = make(figsize=(width, height), facecolor="white"), width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Add axes without decoration."""
        bottom = self.height - top - height
        axes = self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))
        axes.set_axis_off()
        return axes

    def text(self, left: float, top: float, text: str, points: float = LABEL_POINTS, **style: Any) -> None:
        """Add text, by default with its top left corner at the position; dollar signs are literal."""
        style = {"va": "top", "ha": "left", "color": "#111"} | style
        self.figure.text(left / self.width, 1 - top / self.height, text, fontsize=points, parse_math=False, **style)

    def image(self, left: float, top: float, width: float, height: float, pixels: Any) -> None:
        """Add an image that fills a box."""
        self.axes(left, top, width, height).imshow(np.asarray(pixels), aspect="auto", interpolation="antialiased")


def figure(items: Sequence[Attribution]) -> "Figure":
    """Draw one cell per caption, two per row: coloured words, maps with legends, the score as a sum, remarks.

    Captions may be of several images.
    """
    across, limit, maps = min(MOST_ACROSS, len(items)), look.word_limit(items), maps_of(items)
    span = look.waterfall_span(items)
    lines = [set_lines(look.spans(item, limit), COLUMN - 2 * (MARGIN + INDENT), CAPTION_POINTS) for item in items]
    remarks = [_remarks(item, items) for item in items]
    images = [_panel_width(len(maps[0])) * _aspect(item.image) for item in items]
    # The longest caption, the highest image and the longest remarks of a row determine its height.
    rows = [slice(start, start + across) for start in range(0, len(items), across)]
    captions = [LINE * max(map(len, lines[row])) for row in rows]
    parts = zip(captions, rows, strict=True)
    heights = [
        MARGIN + above + 0.39 + max(images[row]) + 0.68 + SMALL_LINE * max(map(len, remarks[row]))
        for above, row in parts
    ]
    tops = list(accumulate(heights, initial=0.0))
    page = Page(across * COLUMN, tops[-1])
    for number, item in enumerate(items):
        row, column = divmod(number, across)
        left, top = column * COLUMN + MARGIN, tops[row] + MARGIN
        _draw_caption(page, (left, top), lines[number], families(item.score.caption))
        top += captions[row] + 0.02
        _draw_word_legend(page, left, top, items, KEY_POINTS)
        _draw_maps(page, left, top, item, maps[number].values())
        bottom = top + 0.40 + max(images[rows[row]]) + 0.20
        _draw_sum(page, left, bottom, item, span)
        for index, line in enumerate(remarks[number]):
            page.text(left, bottom + 0.47 + index * SMALL_LINE, line, SMALL_POINTS)
    return page.figure


def rendered(drawn: "Figure", kind: str) -> bytes:
    """Return a Matplotlib figure as bytes of a format, without a date, so that equal inputs produce equal bytes.

    Letters of an SVG are text if some of them are in no installed font, for the fonts of the viewer; in other formats
    they are boxes, with one warning.
    """
    kind = kind.lower().removeprefix(".")
    quiet = {"png": {"Software": MARK}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    rc_context: Any = require("matplotlib", extra="figures").rc_context
    # Names inside an SVG are drawn at random unless salted.
    for fonttype in ("path", "none"):
        buffer = BytesIO()
        with missing_glyphs() as missing, rc_context({"svg.hashsalt": "msdscore", "svg.fonttype": fonttype}):
            drawn.savefig(buffer, format=kind, dpi=DPI, metadata=quiet[kind])
        if not missing or kind != "svg":
            break
    if missing and kind != "svg":
        warnings.warn(NO_GLYPH, UserWarning, stacklevel=2)
    return buffer.getvalue()


@contextmanager
def missing_glyphs() -> Iterator[list[str]]:
    """Collect Matplotlib's warnings of characters that are in no installed font, instead of showing each."""
    missing = list[str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield missing
    for warning in caught:
        if " missing from " in str(warning.message):
            missing.append(str(warning.message))
        else:
            warnings.warn(warning.message, warning.category, stacklevel=3)


def figure_pixels(items: Sequence[Attribution]) -> npt.NDArray[np.uint8]:
    """Return a `figure` as RGB pixels (height, width, 3), for experiment loggers."""
    buffer = BytesIO()
    with missing_glyphs():
        figure(items).savefig(buffer, format="png", dpi=SCREEN_DPI)
    return np.asarray(Image.open(buffer).convert("RGB"))


def _panel_width(count: int) -> float:
    """Return the width of each of `count` panels in a row."""
    return (COLUMN - 2 * MARGIN - (count - 1) * GAP) / count


def _aspect(image: Image.Image) -> float:
    """Return the height of an image relative to its width as drawn; extreme formats are squeezed."""
    return float(np.clip(image.height / image.width, 0.4, 1.6))


def _draw_caption(page: Page, corner: tuple[float, float], lines: Sequence[Line], family: list[str]) -> None:
    left, top = corner
    for number, line in enumerate(lines):
        for offset, piece in line:
            box = {"boxstyle": "round,pad=0.12,rounding_size=0.15", "facecolor": piece.back, "linewidth": 0}
            style = {
                "va": "center",
                "family": family,
                "color": piece.ink or "#111",
                "bbox": box if piece.back else None,
            }
            page.text(left + INDENT + offset, top + (number + 0.5) * LINE, piece.text, CAPTION_POINTS, **style)


def _draw_word_legend(page: Page, left: float, top: float, items: Sequence[Attribution], points: float) -> None:
    measure, left = ruler(points, [BASE]), left + 0.03
    for text, back, ink in look.legend(items):
        box = {"boxstyle": "round,pad=0.15,rounding_size=0.15", "facecolor": back, "linewidth": 0}
        page.text(left, top + 0.085, text, points, va="center", color=ink, bbox=box)
        left += measure(text) + 0.09


def _draw_maps(page: Page, left: float, top: float, item: Attribution, maps: Collection[Map]) -> None:
    """Draw maps next to each other, each with its title and legend."""
    image, width = thumbnail(item.image, IMAGE_PIXELS), _panel_width(len(maps))
    height = width * _aspect(item.image)
    for index, drawn in enumerate(maps):
        x = left + index * (width + GAP)
        page.text(x, top + 0.22, drawn.title, color=look.css(drawn.role, 1.0), weight="bold")
        page.image(x, top + 0.37, width, height, overlay(image, item.patches, drawn))
        legend = top + 0.40 + height
        page.axes(x, legend, width, 0.05).imshow(drawn.shades(64)[None], aspect="auto")
        page.text(x, legend + 0.065, drawn.low, SMALL_POINTS, color=GREY)
        page.text(x + width, legend + 0.065, drawn.high, SMALL_POINTS, color=GREY, ha="right")


def _remarks(item: Attribution, items: Sequence[Attribution]) -> list[str]:
    """Return the lines below a caption; the warnings that withhold its verdict first."""
    withheld = item.score.withheld if item.score.has_match and item.readable else ()
    remarks = [*(f"no verdict: {warning}" for warning in withheld), *look.remarks(item, items)]
    return [line for remark in remarks for line in wrap(remark, LETTERS, subsequent_indent="   ")]


def _draw_sum(page: Page, left: float, top: float, item: Attribution, span: tuple[float, float]) -> None:
    """Draw the headline, and the score as a waterfall chart with one bar per part."""
    score, width = item.score, COLUMN - 2 * MARGIN
    total = f"{'MSD' if score.candidates == 1 else 'Soft-MSD'} {_signed(score.soft_msd)}"
    headline = total
    if score.has_match:
        space = width - ruler(SMALL_POINTS, [BASE])(total) - GAP
        headline = _headline(score, space / BOLDER, LABEL_POINTS + 1)
    page.text(left, top, headline if item.readable else "cannot be judged", LABEL_POINTS + 1, weight="bold")
    if score.has_match:
        page.text(left + width, top + 0.015, total, SMALL_POINTS, ha="right", color=GREY)
    steps = look.waterfall(item)
    axes = page.axes(left, top + 0.16, width, 0.15)
    axes.set_xlim(*span)
    axes.set_ylim(len(steps), 0)
    for number, step in enumerate(steps):
        axes.barh(number + 0.5, step.size, left=step.start, height=1.0, color=step.colour, linewidth=0)
    axes.axvline(0, color="#111", linewidth=0.6)
    axes.axvline(score.soft_msd, color="#111", linewidth=1.6)
    for number, step in enumerate(steps):
        side = "left" if number == 0 else "right" if number == len(steps) - 1 else "center"
        x = left + width * number / max(1, len(steps) - 1)
        colour = "#666" if number == 0 else step.colour
        page.text(x, top + 0.34, f"{step.name} {_signed(step.size)}", KEY_POINTS, ha=side, color=colour, weight="bold")


def _headline(score: Score, width: float, points: float) -> str:
    """Return the headline, or its first half if all of it is too wide: the remarks say the rest."""
    first, _, _ = score.headline.partition(" · " if score.verdict else ": ")
    return score.headline if ruler(points, [BASE])(score.headline) <= width else first


def _signed(value: float) -> str:
    """Format a number with its sign, with a typographic minus."""
    return f"{value:+.3f}".replace("-", "−")


def set_lines(pieces: Sequence[look.TextPiece], width: float, points: float) -> list[Line]:
    """Break the words and marks of a caption into lines of `width` inches; truncate after `MOST_LINES`.

    A word that is longer than a line is split. Captions in right-to-left scripts are aligned to the right.
    """
    caption = "".join(piece.text for piece in pieces)
    measure = ruler(points, families(caption))
    space = (measure(" n") - measure("n")) * 1.3
    lines: list[Line] = [[]]
    cursor, gap = 0.0, 0.0
    for piece in pieces:
        if piece.number < 0:
            gap = space
            continue
        for number, text in enumerate(_parts(piece.text, width, measure)):
            length = measure(text)
            if lines[-1] and (number or cursor + gap + length > width):
                lines.append([])
                cursor = gap = 0.0
            gap = gap if lines[-1] else 0.0
            lines[-1].append((cursor + gap, replace(piece, text=text)))
            cursor, gap = cursor + gap + length, 0.0
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], [(0.0, look.TextPiece("… (the HTML page shows the whole caption)"))]]
    # The first character with a direction decides, as in the Unicode algorithm for paragraphs.
    directions = (unicodedata.bidirectional(char) for char in caption)
    if next((way for way in directions if way in ("L", "R", "AL")), "L") != "L":
        lines = [[(width - left - measure(piece.text), piece) for left, piece in line] for line in lines]
    return lines


def _parts(word: str, width: float, measure: Callable[[str], float]) -> list[str]:
    """Split a word that is wider than a line."""
    if measure(word) <= width:
        return [word]
    parts = [""]
    for char in word:
        if parts[-1] and measure(parts[-1] + char) > width:
            parts.append("")
        parts[-1] += char
    return parts


def families(text: str) -> list[str]:
    """Return the font families of a text: the base, and those of `FURTHER` if it has letters outside ASCII.

    Matplotlib draws each character in the first family that has it.
    """
    return [BASE] if text.isascii() else [BASE, *_installed()]


@cache
def _installed() -> tuple[str, ...]:
    """Return the installed families of `FURTHER`."""
    fonts: Any = require("matplotlib.font_manager", extra="figures")
    names = sorted({entry.name for entry in fonts.fontManager.ttflist})
    return tuple(name for start in FURTHER for name in names if name.startswith(start))


def ruler(points: float, family: list[str]) -> Callable[[str], float]:
    """Return a function that computes the width of a text in inches, in the fonts of the figure."""
    path: Any = require("matplotlib.textpath", extra="figures").text_to_path
    font = require("matplotlib.font_manager", extra="figures").FontProperties(size=points, family=family)

    def measure(text: str) -> float:
        with missing_glyphs() as missing:
            drawn = float(path.get_text_width_height_descent(text, font, ismath=False)[0])
        # Missing glyphs are drawn by the viewer's font; wide ones need more space than their placeholder boxes.
        wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text) if missing else 0
        return (drawn + WIDER * points * wide) / INCH

    return measure
