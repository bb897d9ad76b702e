"""Grids of results as Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from msdscore.errors import unknown_name
from msdscore_lab.benchmarks.results.grids import NONE, Grid, markdown

_MINUS = re.compile(r"(?<![\w.-])-(?=\d)")
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
    "<": "$<$",
    ">": "$>$",
}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def latex(grid: Grid) -> str:
    """Return a `tabular` for booktabs, with title and notes as comments."""
    comments = [f"% {line}" for line in (grid.title, *grid.notes)]
    rows = [
        _row(row, {column for row_index, column in grid.best if row_index == index})
        for index, row in enumerate(grid.rows)
    ]
    spec = "l" + "r" * (len(grid.columns) - 1)
    begin, end = f"\\begin{{tabular}}{{{spec}}}", "\\end{tabular}"
    return "\n".join([*comments, begin, "\\toprule", _row(grid.columns), "\\midrule", *rows, "\\bottomrule", end, ""])


def escape(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> escape("tau_c 95 %"), escape("-0.5 of vit-b-16")
    ('tau\\_c 95 \\%', '$-$0.5 of vit-b-16')
    """
    return "".join(_TEX.get(letter, letter) for letter in _MINUS.sub("−", text))


def _row(cells: Sequence[str], best: Collection[int] = ()) -> str:
    escaped = (f"\\textbf{{{escape(cell)}}}" if column in best else escape(cell) for column, cell in enumerate(cells))
    return " & ".join(escaped) + r" \\"


def _csv(grids: Sequence[Grid]) -> str:
    """Return one record per cell, so that benchmarks with different figures share the columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value", "low", "high"])
    for grid in grids:
        for index, row in enumerate(grid.rows):
            cells = [
                f"{grid.exact[index, column]:.6g}" if (index, column) in grid.exact else cell
                for column, cell in enumerate(row)
            ]
            for column, value, low, high in _records(grid.columns[1:], cells[1:]):
                writer.writerow([grid.title, row[0], column.removesuffix(" ↓"), value, low, high])
    return buffer.getvalue()


def _records(columns: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield column, value and interval of the cells; the cell of an interval belongs to the previous figure.

    A heading that occurs several times, such as the rank in each metric, is prefixed with the name of its metric.

    >>> list(_records(("accuracy", "95 % interval", "rank"), ("72.0", "[69.7, 74.4]", "1 [1, 2]")))
    [('accuracy', '72.0', '69.7', '74.4'), ('rank', '1', '1', '2')]
    """
    figure = ""
    for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if column.endswith("interval"):
            continue
        repeated = columns.count(column) > 1
        figure = figure if repeated else column
        next_cell = cells[index + 1] if index + 1 < len(cells) and columns[index + 1].endswith("interval") else ""
        match = _INTERVAL.search(cell) or _INTERVAL.search(next_cell)
        value = _INTERVAL.sub("", cell).strip()
        name = f"{figure}, {column}" if repeated else column
        yield name, "" if value == NONE else value, match[1] if match else "", match[2] if match else ""


STYLES: dict[str, Callable[[Sequence[Grid]], str]] = {
    "markdown": lambda grids: "\n".join(map(markdown, grids)),
    "latex": lambda grids: "\n".join(map(latex, grids)),
    "csv": _csv,
}


SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}  # file suffix to style


def render(grids: Sequence[Grid], style: str) -> str:
    """Render grids in one of `STYLES`."""
    if style not in STYLES:
        raise unknown_name("format", style, STYLES)
    return STYLES[style](grids)


def select_columns(grid: Grid, names: Sequence[str]) -> Grid:
    """Return the grid with its first column and the named columns; `interval` selects the columns of intervals."""
    headings = ["interval" if name.endswith("interval") else name.removesuffix(" ↓") for name in grid.columns]
    for name in names:
        if name not in headings:
            raise unknown_name("column", name, headings[1:])
    selected = [0, *(headings.index(name) for name in names)]
    best = frozenset((row, selected.index(column)) for row, column in grid.best if column in selected)
    exact = {(row, selected.index(column)): grid.exact[row, column] for row, column in grid.exact if column in selected}
    rows = tuple(tuple(row[column] for column in selected) for row in grid.rows)
    chosen = tuple(grid.columns[column] for column in selected)
    return replace(grid, columns=chosen, rows=rows, best=best, exact=exact)
