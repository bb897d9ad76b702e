"""Sizes that a picture is resized to by models which take pictures of any size: geometry alone, no pixels."""

import math
from dataclasses import dataclass

from msdscore.encoders.base import View

Size = tuple[int, int]  # width, height

_FINEST = 1e-5  # of the scale, at which the search of the published preprocessor stops


def naflex_size(size: Size, *, patch: int, most: int) -> Size:
    """The largest size in whole patches, at most `most` of them, that keeps the shape (SigLIP 2, NaFlex).

    The scale is searched by halving as in the published preprocessor, so that sizes agree to the patch.

    >>> naflex_size((640, 480), patch=16, most=256)
    (288, 224)
    """
    low, high = _FINEST / 10, 100.0
    while high - low >= _FINEST:
        middle = (low + high) / 2
        width, height = _whole(size, middle, patch)
        if width * height <= most * patch * patch:
            low = middle
        else:
            high = middle
    return _whole(size, low, patch)


def _whole(size: Size, scale: float, patch: int) -> Size:
    width, height = (max(1, math.ceil(side * scale / patch)) * patch for side in size)
    return width, height


def smart_size(size: Size, *, factor: int, least: int, most: int) -> Size:
    """Sides in multiples of `factor` with an area of `least` to `most` pixels, near the shape (Qwen2-VL).

    >>> smart_size((640, 480), factor=28, least=3136, most=12845056)
    (644, 476)
    """
    width, height = size
    across, down = (round(side / factor) * factor for side in size)
    if across * down > most:
        shrink = math.sqrt(width * height / most)
        across, down = (math.floor(side / shrink / factor) * factor for side in size)
    elif across * down < least:
        grow = math.sqrt(least / (width * height))
        across, down = (math.ceil(side * grow / factor) * factor for side in size)
    return max(factor, across), max(factor, down)


def best_canvas(size: Size, canvases: list[Size]) -> Size:
    """The canvas that shows most of a picture's pixels, and among those the one with least padding (LLaVA, anyres).

    >>> best_canvas((640, 480), [(384, 384), (768, 384), (768, 768)])
    (768, 768)
    """
    width, height = size

    def shown(canvas: Size) -> int:
        scale = min(canvas[0] / width, canvas[1] / height)
        return min(int(width * scale) * int(height * scale), width * height)

    # max keeps the first of equals, as the published rule does.
    return max(canvases, key=lambda canvas: (shown(canvas), shown(canvas) - canvas[0] * canvas[1]))


def fit_on(size: Size, canvas: Size) -> View:
    """The picture as large as it fits, in the middle of the canvas.

    >>> fit_on((640, 480), (768, 768))
    View(size=(640, 480), resized=(768, 576), offset=(0, -96), canvas=(768, 768))
    """
    across, down = canvas[0] / size[0], canvas[1] / size[1]
    if across < down:
        resized = (canvas[0], min(math.ceil(size[1] * across), canvas[1]))
    else:
        resized = (min(math.ceil(size[0] * down), canvas[0]), canvas[1])
    offset = (-((canvas[0] - resized[0]) // 2), -((canvas[1] - resized[1]) // 2))
    return View(size, resized, offset, canvas)


@dataclass(frozen=True, slots=True)
class Crop:
    """The part of a mosaic of patches that shows the picture: `left` and `top` cells are cut off on both sides."""

    left: int
    top: int


def unpadded(size: Size, cells: Size) -> Crop:
    """How many cells (columns, rows) of a canvas hold padding alone, counted as LLaVA's packing does.

    >>> unpadded((640, 480), (54, 54))
    Crop(left=0, top=7)
    """
    width, height = size
    columns, rows = cells
    if width / height > columns / rows:
        return Crop(0, (rows - int(round(height * columns / width, 7))) // 2)
    return Crop((columns - int(round(width * rows / height, 7))) // 2, 0)


def shrunk(cells: Size, *, side: int, most: int) -> Size:
    """Columns and rows after the pooling that keeps a mosaic near `most` tiles of `side` cells per side.

    >>> shrunk((162, 162), side=27, most=9)
    (81, 81)
    """
    columns, rows = cells
    ratio = math.sqrt(columns * rows / (most * side * side))
    return (int(columns // ratio), int(rows // ratio)) if ratio > 1.1 else cells
