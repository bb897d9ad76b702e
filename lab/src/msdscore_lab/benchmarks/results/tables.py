"""Grids of results as Markdown or LaTeX."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from msdscore.errors import unknown_name
from msdscore_lab.benchmarks.results.grids import Grid, markdown

_MINUS = re.compile(r"(?<![\w.-])-(?=\d)")
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


STYLES: dict[str, Callable[[Grid], str]] = {"markdown": markdown, "latex": latex}
SUFFIXES = {".md": "markdown", ".tex": "latex"}  # file suffix to style


def render(grids: Sequence[Grid], style: str) -> str:
    """Render grids in one of `STYLES`."""
    if style not in STYLES:
        raise unknown_name("format", style, STYLES)
    return "\n".join(map(STYLES[style], grids))


def select_columns(grid: Grid, names: Sequence[str]) -> Grid:
    """Return the grid with its first column and the named columns; `interval` selects the columns of intervals."""
    headings = ["interval" if name.endswith("interval") else name.removesuffix(" ↓") for name in grid.columns]
    for name in names:
        if name not in headings:
            raise unknown_name("column", name, headings[1:])
    selected = [0, *(headings.index(name) for name in names)]
    best = frozenset((row, selected.index(column)) for row, column in grid.best if column in selected)
    rows = tuple(tuple(row[column] for column in selected) for row in grid.rows)
    chosen = tuple(grid.columns[column] for column in selected)
    return replace(grid, columns=chosen, rows=rows, best=best)
