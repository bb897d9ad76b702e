"""The figure of an explanation, at the width of a paper's column: words, maps, and the score's decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from msdscore.errors import require
from msdscore.explain.colours import Role, css, ink, ramp
from msdscore.explain.overlay import (
    ColourScale,
    MapLegend,
    map_legend,
    map_roles,
    overlay,
    overlays,
    sum_parts,
    thumbnail,
    title_of,
    word_colour,
    word_scale,
)
from msdscore.explain.terms import Attribution
from msdscore.explain.typeset import NO_GLYPH, Line, families, lacks_letters, set_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 3.4  # inches, one column of a two-column paper
MARGIN = 0.06
INDENT = 0.02  # room for the box of a line's first word
GAP = 0.08
CAPTION_POINTS, LABEL_POINTS, SMALL_POINTS = 9.0, 7.0, 6.0
LINE = 0.2  # inches, a line of the caption
FOOT = 0.16  # inches, a note under all captions
KEY_LINE = 0.13  # height of a line under the bar
_IN_ONE_LINE = 3  # parts of a bar that one line can name
MOST_ACROSS = 2  # captions side by side: the width of a page of a two-column paper
PICTURE_PIXELS = 480  # longest side of a panel's picture: 400 dpi at a third of a column
GREY = "#555"
PLAIN: tuple[Role, float] = ("penalty", 0.0)


@dataclass(frozen=True, slots=True)
class Page:
    """A figure on which things are placed in inches from the top left corner."""

    figure: Any
    width: float
    height: float

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Bare axes at a place."""
        low = self.height - top - height
        axes = self.figure.add_axes((left / self.width, low / self.height, width / self.width, height / self.height))
        axes.set_axis_off()
        return axes

    def text(self, left: float, top: float, text: str, points: float = LABEL_POINTS, **style: Any) -> None:
        """Text whose top left corner (or as `style` says) is at a place; dollar signs are dollar signs."""
        style = {"va": "top", "ha": "left", "color": "#111"} | style
        where = (left / self.width, 1 - top / self.height)
        self.figure.text(*where, text, fontsize=points, parse_math=False, **style)


def figure(items: Sequence[Attribution]) -> "Figure":
    """One cell per caption, two side by side: coloured words, three maps with legends, the score as a sum."""
    lines = [
        set_lines(item.score.caption, item.units, COLUMN - 2 * (MARGIN + INDENT), CAPTION_POINTS) for item in items
    ]
    across = min(MOST_ACROSS, len(items))
    cell = _CellLayout(
        caption=0.0,
        picture=_panel(len(map_roles(items)))
        * float(np.clip(items[0].picture.height / items[0].picture.width, 0.4, 1.6)),
        words=word_scale(items),
        maps={role: map_legend(items, role) for role in map_roles(items)},
        sum=_span(items),
        more_lines=int(len(sum_parts(items[0])) >= _IN_ONE_LINE),
    )
    foot = FOOT if lacks_letters(item.score.caption for item in items) else 0.0
    # Each row of cells is as high as its longest caption needs.
    rows = [replace(cell, caption=LINE * max(map(len, lines[at : at + across]))) for at in range(0, len(items), across)]
    tops = list(accumulate((row.height for row in rows), initial=0.0))
    page = blank_page(across * COLUMN, tops[-1] + foot)
    pictures = {role: overlays(items, role, longest=PICTURE_PIXELS) for role in map_roles(items)}
    for number, item in enumerate(items):
        row, column = divmod(number, across)
        place = column * COLUMN + MARGIN, tops[row]
        _draw_cell(
            page, place, item, rows[row], lines[number], {role: pictures[role][number] for role in map_roles(items)}
        )
    if foot:
        page.text(MARGIN, tops[-1] + 0.04, NO_GLYPH, SMALL_POINTS, color=GREY)
    return page.figure


@dataclass(frozen=True, slots=True)
class _CellLayout:
    """What the cells of all captions have in common: heights in inches, and what their colours mean."""

    caption: float
    picture: float
    words: ColourScale
    maps: dict[Role, MapLegend]
    sum: tuple[float, float]
    more_lines: int = 0  # under the bar

    @property
    def height(self) -> float:
        """Height of the whole cell."""
        return MARGIN + self.caption + 0.39 + self.picture + 0.20 + 0.46 + KEY_LINE * self.more_lines


def _draw_cell(
    page: Page,
    place: tuple[float, float],
    item: Attribution,
    cell: _CellLayout,
    lines: Sequence[Line],
    pictures: dict[Role, Any],
) -> None:
    left, start = place
    draw_caption(page, (left, start + MARGIN), lines, cell.words, families(item.score.caption))
    top = start + MARGIN + cell.caption + 0.02
    draw_word_key(page, left, top, cell.words)
    panel = _panel(len(map_roles(items)))
    for number, role in enumerate(MAP_ROLES):
        at = left + number * (panel + GAP)
        page.text(at, top + 0.22, title_of(item, role), color=css(role, 1.0), weight="bold")
        draw_picture(page.axes(at, top + 0.37, panel, cell.picture), pictures[role])
        _draw_legend(page, at, top + 0.40 + cell.picture, panel, cell.maps[role])
    _draw_sum(page, left, top + 0.40 + cell.picture + 0.20, item, cell.sum)


def _panel(count: int) -> float:
    """The width of one of several panels side by side in a column."""
    return (COLUMN - 2 * MARGIN - (count - 1) * GAP) / count


def word_figure(item: Attribution, columns: int = 4) -> "Figure":
    """Small pictures of where each content word looks, the least supported word first."""
    units = item.ranked
    panel = _panel(columns)
    panel_height = panel * float(np.clip(item.picture.height / item.picture.width, 0.4, 1.6))
    step = panel_height + 0.2
    rows = max(1, -(-len(units) // columns))
    page = blank_page(COLUMN, rows * step + 0.36)
    scale = word_scale([item])
    picture = thumbnail(item.picture, PICTURE_PIXELS)
    for number, unit in enumerate(units):
        left = MARGIN + (number % columns) * (panel + GAP)
        top = MARGIN + (number // columns) * step
        role, strength = word_colour(unit, scale)
        page.text(
            left,
            top,
            f"{_short(unit.text)}  {signed(unit.gap or 0.0, 1)}",
            weight="bold",
            family=families(unit.text),
            color=css(role, max(strength, 0.7)),
        )
        leaning = item.leaning(unit)
        tinted = overlay(picture, leaning, item.patches, "leaning", ColourScale(float(leaning.max())))
        draw_picture(page.axes(left, top + 0.15, panel, panel_height), tinted)
    foot = "number: the word's gap in nats; above 0 the picture does not support it"
    page.text(MARGIN, rows * step + 0.1, foot, SMALL_POINTS - 0.5, color=GREY)
    page.text(
        MARGIN, rows * step + 0.21, "green: where the word looks, each picture to its own maximum", 5.5, color=GREY
    )
    return page.figure


def blank_page(width: float, height: float) -> Page:
    """A white page of this width and height in inches."""
    module: ModuleType = require("matplotlib.figure", extra="figures")
    return Page(module.Figure(figsize=(width, height), facecolor="white"), width, height)


def draw_caption(
    page: Page, place: tuple[float, float], lines: Sequence[Line], scale: ColourScale, family: list[str]
) -> None:
    """The caption in coloured words, from a place (left, top) on."""
    left, top = place
    for number, line in enumerate(lines):
        for placed in line:
            role, strength = PLAIN if placed.unit is None else word_colour(placed.unit, scale)
            box = {"boxstyle": "round,pad=0.12,rounding_size=0.15", "facecolor": css(role, strength), "linewidth": 0}
            page.text(
                left + INDENT + placed.left,
                top + (number + 0.5) * LINE,
                placed.text,
                CAPTION_POINTS,
                va="center",
                family=family,
                color=ink(role, strength) if strength else "#111",
                bbox=box if strength > 0.05 else None,
            )


def draw_word_key(page: Page, left: float, top: float, scale: ColourScale) -> None:
    """The colours of words: blue below zero, white at it, orange above."""
    shades = np.concatenate([ramp("support", np.linspace(1, 0, 32)), ramp("penalty", np.linspace(0, 1, 32))])
    page.axes(left + 0.68, top + 0.05, 0.7, 0.07).imshow(shades[None], aspect="auto")
    style = {"color": GREY, "va": "center"}
    page.text(left + 0.65, top + 0.085, f"supported {signed(-scale.limit, 1)}", SMALL_POINTS, ha="right", **style)
    text = f"{signed(scale.limit, 1)} nats, not supported; white is 0"
    page.text(left + 1.41, top + 0.085, text, SMALL_POINTS, **style)


def draw_picture(axes: Any, picture: Any) -> None:
    """Draw the picture so that it fills the axes."""
    axes.imshow(np.asarray(picture), aspect="auto", interpolation="antialiased")


def _draw_legend(page: Page, left: float, top: float, width: float, legend: MapLegend) -> None:
    page.axes(left, top, width, 0.05).imshow(legend.shades(64)[None], aspect="auto")
    page.text(left, top + 0.065, legend.low, SMALL_POINTS, color=GREY)
    # The unit stands under the other maps; with two signs there is no room for it.
    high = legend.high.removesuffix(" nats") if legend.below else legend.high
    page.text(left + width, top + 0.065, high, SMALL_POINTS, color=GREY, ha="right")


def _span(items: Sequence[Attribution]) -> tuple[float, float]:
    """The ends of the axis on which all captions' sums are drawn."""
    ends = [0.0]
    for item in items:
        place = item.score.similarity
        ends.append(place)
        for _, size, _ in sum_parts(item):
            place += size
            ends.append(place)
    low, high = min(ends), max(ends)
    pad = 0.04 * ((high - low) or 1.0)
    return low - pad, high + pad


def _draw_sum(page: Page, left: float, top: float, item: Attribution, span: tuple[float, float]) -> None:
    score, width = item.score, COLUMN - 2 * MARGIN
    name = "MSD" if score.candidates == 1 else "Soft-MSD"
    page.text(left, top, f"{name} {signed(score.soft_msd, 3)}", LABEL_POINTS + 1, weight="bold")
    # With four parts the whole formula is wider than a cell; its numbers are not.
    formula = equation(item) if len(sum_parts(item)) < _IN_ONE_LINE else equation(item).split(" = ")[1]
    page.text(left + width, top + 0.015, formula, SMALL_POINTS, ha="right", color=GREY)
    axes = page.axes(left, top + 0.16, width, 0.14)
    axes.set_xlim(*span)
    axes.set_ylim(0, 1)
    place = score.similarity
    axes.barh(0.75, place, height=0.5, color="#999", linewidth=0)
    for _, size, role in sum_parts(item):
        axes.barh(0.25, size, left=place, height=0.5, color=css(role, 0.85), linewidth=0)
        place += size
    axes.axvline(0, color="#111", linewidth=0.6)
    axes.plot([place, place], [0, 1], color="#111", linewidth=1.6, solid_capstyle="butt")
    _draw_sum_key(page, left, top + 0.33, item)


def _draw_sum_key(page: Page, left: float, top: float, item: Attribution) -> None:
    """What the parts of the bar are, two in a line where there are many."""
    parts = [("similarity", item.score.similarity, "#666")]
    parts += [(name, size, css(role, 1.0)) for name, size, role in sum_parts(item)]
    across = len(parts) if len(parts) <= _IN_ONE_LINE else 2
    for number, (name, size, colour) in enumerate(parts):
        line, column = divmod(number, across)
        at = left + (COLUMN - 2 * MARGIN) * column / max(1, across - 1)
        side = "left" if column == 0 else "right" if column == across - 1 else "center"
        style = {"ha": side, "color": colour, "weight": "bold"}
        page.text(at, top + KEY_LINE * line, f"{name} {signed(size, 3)}", SMALL_POINTS, **style)


def equation(item: Attribution) -> str:
    """The score as its formula, with the numbers put in."""
    score, told = item.score, item.config.information
    names, values = (
        "g − α·u·d",
        f"{score.similarity:.3f} − {item.alpha:g}·{score.uncertainty:.2f}·({score.divergence:.2f})",
    )
    if told:
        names += " + γ·u·i"
        values += f" + {told:g}·{score.uncertainty:.2f}·({score.information or 0.0:.2f})"
    return f"{names} = {values}".replace("-", "−")


def signed(value: float, digits: int) -> str:
    """A number with its sign, typeset.

    >>> signed(-0.5, 2), signed(1, 1)
    ('−0.50', '+1.0')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


def _short(text: str, most: int = 12) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
