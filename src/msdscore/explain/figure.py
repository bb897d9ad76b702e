"""Explanations as Matplotlib figures at the width of a paper's column: words, maps, and the score as a sum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import accumulate
from textwrap import wrap
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.errors import require
from msdscore.explain.colours import Role, css
from msdscore.explain.document import in_words
from msdscore.explain.overlay import (
    ColourScale,
    MapLegend,
    equation,
    map_legend,
    map_roles,
    overlay,
    overlays,
    thumbnail,
    title_of,
    waterfall,
    waterfall_span,
)
from msdscore.explain.terms import Attribution, Unit
from msdscore.explain.typeset import NO_GLYPH, Line, Ruler, any_letters, families, lacks_letters, set_lines
from msdscore.explain.words import legend, spans, word_colour, word_scale
from msdscore.scoring.config import Paper

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
MOST_ACROSS = 2  # captions side by side: the width of a page of a two-column paper
IMAGE_PIXELS = 480  # longest side of a panel's image: 400 dpi at a third of a column
SHEET_IMAGE, SHEET_TEXT, SHEET_PIXELS, SHEET_DPI = 1.1, 4.2, 240, 110  # of a sheet, as loggers show it
GREY = "#555"


@dataclass(frozen=True, slots=True)
class Page:
    """A figure on which things are placed in inches from the top left corner."""

    figure: Any
    width: float
    height: float

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Bare axes at a position."""
        low = self.height - top - height
        axes = self.figure.add_axes((left / self.width, low / self.height, width / self.width, height / self.height))
        axes.set_axis_off()
        return axes

    def text(self, left: float, top: float, text: str, points: float = LABEL_POINTS, **style: Any) -> None:
        """Text whose top left corner (or as `style` says) is at a position; dollar signs are dollar signs."""
        style = {"va": "top", "ha": "left", "color": "#111"} | style
        where = (left / self.width, 1 - top / self.height)
        self.figure.text(*where, text, fontsize=points, parse_math=False, **style)

    def image(self, left: float, top: float, width: float, height: float, pixels: Any) -> None:
        """An image that fills a box."""
        self.axes(left, top, width, height).imshow(np.asarray(pixels), aspect="auto", interpolation="antialiased")


@dataclass(frozen=True, slots=True)
class _Cell:
    """What the cells of all captions of a row share: heights, and what their colours mean."""

    items: tuple[Attribution, ...]
    image: float
    maps: dict[Role, MapLegend]
    span: tuple[float, float]
    caption: float = 0.0
    remarks: float = 0.0

    @property
    def height(self) -> float:
        return MARGIN + self.caption + 0.39 + self.image + 0.20 + 0.48 + self.remarks


def figure(items: Sequence[Attribution]) -> "Figure":
    """One cell per caption, two side by side: coloured words, maps with legends, the score as a sum, remarks."""
    across, scale = min(MOST_ACROSS, len(items)), word_scale(items)
    lines = [set_lines(spans(item, scale), COLUMN - 2 * (MARGIN + INDENT), CAPTION_POINTS) for item in items]
    remarks = [_remarks(item) for item in items]
    roles = map_roles(items)
    cell = _Cell(
        tuple(items),
        image=_panel(len(roles)) * _shape(items[0].image),
        maps={role: map_legend(items, role) for role in roles},
        span=waterfall_span(items),
    )
    # Each row of cells is as high as its longest caption needs.
    rows = [
        replace(
            cell,
            caption=LINE * max(map(len, lines[at : at + across])),
            remarks=SMALL_LINE * max(map(len, remarks[at : at + across])),
        )
        for at in range(0, len(items), across)
    ]
    foot = FOOT if lacks_letters(item.score.caption for item in items) else 0.0
    tops = list(accumulate((row.height for row in rows), initial=0.0))
    page = _blank_page(across * COLUMN, tops[-1] + foot)
    images = {role: overlays(items, role, longest=IMAGE_PIXELS) for role in roles}
    for number, item in enumerate(items):
        row, column = divmod(number, across)
        corner = column * COLUMN + MARGIN, tops[row]
        own = {role: images[role][number] for role in roles}
        _draw_cell(page, corner, item, rows[row], lines[number], own)
    if foot:
        page.text(MARGIN, tops[-1] + 0.04, NO_GLYPH, SMALL_POINTS, color=GREY)
    return page.figure


def _draw_cell(
    page: Page,
    corner: tuple[float, float],
    item: Attribution,
    cell: _Cell,
    lines: Sequence[Line],
    images: dict[Role, Any],
) -> None:
    left, start = corner
    _draw_caption(page, (left, start + MARGIN), lines, families(item.score.caption))
    top = start + MARGIN + cell.caption + 0.02
    _draw_word_key(page, left, top, cell.items, KEY_POINTS)
    panel = _panel(len(images))
    for number, (role, image) in enumerate(images.items()):
        at = left + number * (panel + GAP)
        page.text(at, top + 0.22, title_of(item, role), color=css(role, 1.0), weight="bold")
        page.image(at, top + 0.37, panel, cell.image, image)
        _draw_legend(page, at, top + 0.40 + cell.image, panel, cell.maps[role])
    under = top + 0.40 + cell.image + 0.20
    _draw_sum(page, left, under, item, cell.span)
    for number, line in enumerate(_remarks(item)):
        page.text(left, under + 0.47 + number * SMALL_LINE, line, SMALL_POINTS)


def word_figure(item: Attribution, columns: int = 4) -> "Figure":
    """Small images of where each judged word looks, the least supported word first."""
    units, panel = item.ranked, _panel(columns)
    step = panel * _shape(item.image) + 0.2
    rows = max(1, -(-len(units) // columns))
    page = _blank_page(COLUMN, rows * step + 0.36)
    scale, image = word_scale([item]), thumbnail(item.image, IMAGE_PIXELS)
    for number, unit in enumerate(units):
        left = MARGIN + (number % columns) * (panel + GAP)
        top = MARGIN + (number // columns) * step
        role, strength = word_colour(unit, scale)
        name = unit.text if len(unit.text) <= 12 else unit.text[:11] + "…"
        colour = css(role, max(strength, 0.7)) if strength else GREY
        page.text(left, top, f"{name}  {_number(unit)}", weight="bold", family=families(unit.text), color=colour)
        leaning = item.leaning(unit)
        tinted = overlay(image, leaning, item.patches, "leaning", ColourScale(float(leaning.max())))
        page.image(left, top + 0.15, panel, step - 0.2, tinted)
    paper = "the word's gap in nats; above 0 the image does not support it"
    p_value = "p-value, the share of true words that look as unsupported"
    notes = f"number: {paper}" if isinstance(item.form, Paper) else f"number: {p_value}"
    for number, note in enumerate((notes, "green: where the word looks, each image to its own maximum")):
        page.text(MARGIN, rows * step + 0.1 + 0.11 * number, note, SMALL_POINTS - 0.5, color=GREY)
    return page.figure


def sheet(items: Sequence[Attribution]) -> "Figure":
    """Captions of several images: one row per explanation, the image beside its caption, MSD and match."""
    scale = word_scale(items)
    lines = [set_lines(spans(item, scale), SHEET_TEXT - INDENT, CAPTION_POINTS) for item in items]
    images = [thumbnail(item.image, SHEET_PIXELS) for item in items]
    tall = [SHEET_IMAGE * _shape(image) for image in images]
    heights = [max(high, len(own) * LINE + FOOT) + GAP for high, own in zip(tall, lines, strict=True)]
    tops = [MARGIN, *(MARGIN + height for height in accumulate(heights))]
    page = _blank_page(SHEET_IMAGE + SHEET_TEXT + 2 * MARGIN + GAP, tops[-1] + 0.3)
    left = MARGIN + SHEET_IMAGE + GAP
    for item, own, top, high, image in zip(items, lines, tops, tall, images, strict=False):
        page.image(MARGIN, top, SHEET_IMAGE, high, image)
        _draw_caption(page, (left, top), own, families(item.score.caption))
        match = "" if item.score.match is None else f"match {item.score.match:.2f}, {item.score.reading}; "
        page.text(left + INDENT, top + len(own) * LINE + 0.03, f"{match}MSD {item.score.msd:+.3f}", color=GREY)
    _draw_word_key(page, left, tops[-1] + 0.05, items, SMALL_POINTS)
    return page.figure


def sheet_pixels(items: Sequence[Attribution]) -> npt.NDArray[np.uint8]:
    """The sheet as pixels, height by width by three, for loggers that take images."""
    buffer = BytesIO()
    with any_letters():
        sheet(items).savefig(buffer, format="png", dpi=SHEET_DPI)
    return np.asarray(Image.open(buffer).convert("RGB"))


def _blank_page(width: float, height: float) -> Page:
    """A white page of this width and height in inches."""
    module: ModuleType = require("matplotlib.figure", extra="figures")
    return Page(module.Figure(figsize=(width, height), facecolor="white"), width, height)


def _panel(count: int) -> float:
    """The width of one of several panels side by side in a column."""
    return (COLUMN - 2 * MARGIN - (count - 1) * GAP) / count


def _shape(image: Image.Image) -> float:
    """Height by width as it is drawn; extreme formats are squeezed."""
    return float(np.clip(image.height / image.width, 0.4, 1.6))


def _draw_caption(page: Page, corner: tuple[float, float], lines: Sequence[Line], family: list[str]) -> None:
    left, top = corner
    for number, line in enumerate(lines):
        for placed in line:
            box = {"boxstyle": "round,pad=0.12,rounding_size=0.15", "facecolor": placed.back, "linewidth": 0}
            page.text(
                left + INDENT + placed.left,
                top + (number + 0.5) * LINE,
                placed.text,
                CAPTION_POINTS,
                va="center",
                family=family,
                color=placed.ink or "#111",
                bbox=box if placed.back else None,
            )


def _draw_word_key(page: Page, left: float, top: float, items: Sequence[Attribution], points: float) -> None:
    """What the colours of words say."""
    ruler = Ruler(points, families(""))
    at = left + 0.03
    for text, back, ink in legend(items):
        box = {"boxstyle": "round,pad=0.15,rounding_size=0.15", "facecolor": back, "linewidth": 0}
        page.text(at, top + 0.085, text, points, va="center", color=ink, bbox=box)
        at += ruler(text) + 0.09


def _draw_legend(page: Page, left: float, top: float, width: float, legend: MapLegend) -> None:
    page.axes(left, top, width, 0.05).imshow(legend.shades(64)[None], aspect="auto")
    page.text(left, top + 0.065, legend.low, SMALL_POINTS, color=GREY)
    # The unit stands under the other maps; with two signs there is no room for it.
    high = legend.high.removesuffix(" nats") if legend.below else legend.high
    page.text(left + width, top + 0.065, high, SMALL_POINTS, color=GREY, ha="right")


def _draw_sum(page: Page, left: float, top: float, item: Attribution, span: tuple[float, float]) -> None:
    """The headline, and a bar from zero to the score with a lane for each part."""
    score, width = item.score, COLUMN - 2 * MARGIN
    total = f"{'MSD' if score.candidates == 1 else 'Soft-MSD'} {_signed(score.soft_msd)}"
    head = total if score.match is None else f"match {score.match:.2f}: {score.reading}"
    page.text(left, top, head, LABEL_POINTS + 1, weight="bold")
    right = equation(item) if score.match is None else total
    page.text(left + width, top + 0.015, right, SMALL_POINTS, ha="right", color=GREY)
    steps = waterfall(item)
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


def _remarks(item: Attribution) -> list[str]:
    return [line for remark in in_words(item) for line in wrap(remark, LETTERS, subsequent_indent="   ")]


def _number(unit: Unit) -> str:
    return f"{unit.p_value:.2g}" if unit.p_value is not None else f"{unit.gap or 0.0:+.1f}".replace("-", "−")


def _signed(value: float) -> str:
    """A number with its sign, typeset."""
    return f"{value:+.3f}".replace("-", "−")
