"""A caption broken into lines of placed words, measured with the figure's own font."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msdscore.errors import require
from msdscore.explain.terms import Explanation, Unit

MOST_LINES = 12  # a paragraph longer than this is better read as a page
INCH = 72.0


@dataclass(frozen=True, slots=True)
class Placed:
    """Text on a line, `left` inches from its start; marks and plain text have no unit."""

    text: str
    left: float
    unit: Unit | None


Line = tuple[Placed, ...]


def set_lines(item: Explanation, width: float, points: float) -> list[Line]:
    """The caption's words and marks on lines of `width` inches; cut with an ellipsis after `MOST_LINES`."""
    measure = _Ruler(points)
    space = measure(" n") - measure("n")
    lines: list[list[Placed]] = [[]]
    cursor, end = 0.0, 0
    for unit in item.units:
        wide = measure(unit.text)
        gap = space * 1.3 if unit.start > end and lines[-1] else 0.0
        if lines[-1] and cursor + gap + wide > width:
            lines.append([])
            cursor, gap = 0.0, 0.0
        lines[-1].append(Placed(unit.text, cursor + gap, unit if unit.content else None))
        cursor, end = cursor + gap + wide, unit.end
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], [Placed("… (the page form shows all)", 0.0, None)]]
    return [tuple(line) for line in lines]


@contextmanager
def any_letters() -> Iterator[None]:
    """Let captions hold letters that the figure's font lacks: boxes stand for them, and the page form shows them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from", category=UserWarning)
        yield


class _Ruler:
    """Widths of text in inches, in the font that the figure uses."""

    def __init__(self, points: float) -> None:
        self._path: Any = require("matplotlib.textpath", extra="figures").text_to_path
        fonts: Any = require("matplotlib.font_manager", extra="figures")
        self._font = fonts.FontProperties(size=points)
        self._points = points

    def __call__(self, text: str) -> float:
        with any_letters():
            width, _, _ = self._path.get_text_width_height_descent(text, self._font, ismath=False)
        return float(width) / INCH
