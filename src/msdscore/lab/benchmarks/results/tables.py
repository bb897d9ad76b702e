"""Grids of results as Markdown, LaTeX or CSV, and a figure of the headlines."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from msdscore.errors import require, unknown_name
from msdscore.explain.save import rendered
from msdscore.lab.benchmarks.results.grids import NONE, Grid, markdown
from msdscore.lab.benchmarks.results.result import Result

_INTERVAL = re.compile(r"\[([-+]?[\d.]+), ([-+]?[\d.]+)\]")
_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "−": "$-$",
    "‖": r"\textbar{}\textbar{}",
}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}

_WIDTH, _ROW, _MARGIN = 4.2, 0.28, 1.1  # inches: a panel, a metric, title and axis
_OURS, _WRONG = "#1f5fa8", "#b0b0b0"


def latex(grid: Grid) -> str:
    """Return a `tabular` for booktabs, with title and notes as comments."""
    kept = [f"% {line}" for line in (grid.title, *grid.notes)]
    rows = [_row(row, {at for place, at in grid.best if place == number}) for number, row in enumerate(grid.rows)]
    spec = "l" + "r" * (len(grid.columns) - 1)
    begin, end = f"\\begin{{tabular}}{{{spec}}}", "\\end{tabular}"
    return "\n".join([*kept, begin, "\\toprule", _row(grid.columns), "\\midrule", *rows, "\\bottomrule", end, ""])


def escape(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> escape("tau_c 95 %")
    'tau\\_c 95 \\%'
    """
    return "".join(_TEX.get(letter, letter) for letter in text)


def _row(cells: Sequence[str], best: Collection[int] = ()) -> str:
    shown = (f"\\textbf{{{escape(cell)}}}" if at in best else escape(cell) for at, cell in enumerate(cells))
    return " & ".join(shown) + r" \\"


def _csv(grids: Sequence[Grid]) -> str:
    """Return one record per cell, so that benchmarks with different figures share the columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value", "low", "high"])
    for grid in grids:
        for row in grid.rows:
            for column, value, low, high in _records(grid.columns[1:], row[1:]):
                writer.writerow([grid.title, row[0], column, value, low, high])
    return buffer.getvalue()


def _records(columns: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield column, value and interval of the cells; the cell of an interval belongs to the previous figure.

    A heading that occurs several times, such as the rank in each metric, is preceded by the number that it belongs to.

    >>> list(_records(("accuracy", "95 % interval", "rank"), ("72.0", "[69.7, 74.4]", "1 [1, 2]")))
    [('accuracy', '72.0', '69.7', '74.4'), ('rank', '1', '1', '2')]
    """
    figure = ""
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if column.endswith("interval"):
            continue
        repeated = columns.count(column) > 1
        figure = figure if repeated else column
        after = cells[at + 1] if at + 1 < len(cells) and columns[at + 1].endswith("interval") else ""
        match = _INTERVAL.search(cell) or _INTERVAL.search(after)
        value = _INTERVAL.sub("", cell).strip()
        name = f"{figure}, {column}" if repeated else column
        yield name, "" if value == NONE else value, match[1] if match else "", match[2] if match else ""


STYLES: dict[str, Callable[[Sequence[Grid]], str]] = {
    "markdown": lambda grids: "\n".join(map(markdown, grids)),
    "latex": lambda grids: "\n".join(map(latex, grids)),
    "csv": _csv,
}


SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}  # of files, and their styles


def render(grids: Sequence[Grid], style: str) -> str:
    """Render all grids in one of the styles."""
    if style not in STYLES:
        raise unknown_name("format", style, STYLES)
    return STYLES[style](grids)


def select_columns(grid: Grid, names: Sequence[str]) -> Grid:
    """Return the grid with its first column and the columns of these headings; `interval` is short for its heading."""
    headings = ["interval" if column.endswith("interval") else column for column in grid.columns]
    for name in names:
        if name not in headings:
            raise unknown_name("column", name, headings[1:])
    chosen = [0, *(headings.index(name) for name in names)]
    best = frozenset((row, chosen.index(at)) for row, at in grid.best if at in chosen)
    rows = tuple(tuple(row[at] for at in chosen) for row in grid.rows)
    return replace(grid, columns=tuple(grid.columns[at] for at in chosen), rows=rows, best=best)


def draw(results: Sequence[Result], kind: str) -> bytes:
    """Return one panel per result as bytes of a file format (png, svg or pdf)."""
    rows = max(len(result.metrics) for result in results)
    module: Any = require("matplotlib.figure", extra="figures")
    size = (_WIDTH * len(results), _MARGIN + _ROW * rows)
    figure = module.Figure(figsize=size, facecolor="white", layout="constrained")
    for axis, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        _draw_panel(axis, result)
    return rendered(figure, kind)


def _draw_panel(axis: Any, result: Result) -> None:
    metrics = [metric for metric in result.metrics if metric.figures]
    for place, metric in enumerate(metrics):
        head = metric.figures[0]
        value, scale = head.value * head.scale, head.scale
        ends = [] if head.interval is None else [head.interval.low * scale, head.interval.high * scale]
        if ends and np.isfinite(ends).all():
            axis.plot(ends, (place, place), color=_OURS, linewidth=1.5)
        axis.plot(value, place, "o", color=_OURS, markersize=5)
        for wrong in (figure for figure in metric.control if figure.name == head.name):
            axis.plot(wrong.value * scale, place, "x", color=_WRONG, markersize=5)
    axis.set_yticks(range(len(metrics)), [metric.title for metric in metrics], fontsize=8)
    axis.invert_yaxis()
    axis.set_title(f"{result.title}, {result.protocol}", fontsize=9)
    name = metrics[0].figures[0].name if metrics else "figure"
    axis.set_xlabel(f"{name}, 95 % interval; ×: wrong image", fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
