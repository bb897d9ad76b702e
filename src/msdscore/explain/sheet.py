"""Captions of several pictures on one sheet: a row each, the picture beside its caption in coloured words."""

from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.explain.draw import (
    CAPTION_POINTS,
    GAP,
    GREY,
    INDENT,
    LINE,
    MARGIN,
    blank_page,
    draw_caption,
    draw_picture,
    draw_word_key,
)
from msdscore.explain.overlay import thumbnail, word_scale
from msdscore.explain.terms import Attribution
from msdscore.explain.typeset import any_letters, families, set_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = 1.1  # inches, width of a picture
TEXT = 4.2  # inches, width of a caption
PIXELS = 240  # longest side of a picture
DPI = 110  # dots per inch of what a logger shows
_NOTE, _FOOT = 0.16, 0.3  # inches: the score under a caption, the key under all


def sheet(items: Sequence[Attribution]) -> "Figure":
    """One row per explanation: its picture, its caption on one scale of colours, MSD and match."""
    scale = word_scale(items)
    lines = [set_lines(item.score.caption, item.units, TEXT - INDENT, CAPTION_POINTS) for item in items]
    pictures = [thumbnail(item.picture, PIXELS) for item in items]
    tall = [PICTURE * float(np.clip(picture.height / picture.width, 0.4, 1.6)) for picture in pictures]
    heights = [max(high, len(some) * LINE + _NOTE) + GAP for high, some in zip(tall, lines, strict=True)]
    tops = [MARGIN, *(MARGIN + height for height in accumulate(heights))]
    page = blank_page(PICTURE + TEXT + 2 * MARGIN + GAP, tops[-1] + _FOOT)
    left = MARGIN + PICTURE + GAP
    for item, some, top, high, picture in zip(items, lines, tops, tall, pictures, strict=False):
        draw_picture(page.axes(MARGIN, top, PICTURE, high), picture)
        draw_caption(page, (left, top), some, scale, families(item.score.caption))
        match = "" if item.score.match is None else f", match {item.score.match:.2f}"
        page.text(left + INDENT, top + len(some) * LINE + 0.03, f"MSD {item.score.msd:+.3f}{match}", color=GREY)
    draw_word_key(page, left, tops[-1] + 0.05, scale)
    return page.figure


def sheet_pixels(items: Sequence[Attribution]) -> npt.NDArray[np.uint8]:
    """The sheet as pixels, height by width by three, for loggers that take pictures."""
    place = BytesIO()
    with any_letters():
        sheet(items).savefig(place, format="png", dpi=DPI)
    return np.asarray(Image.open(place).convert("RGB"))
