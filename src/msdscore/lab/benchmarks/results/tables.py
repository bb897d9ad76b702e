"""Grids of results as Markdown, LaTeX or CSV."""

import csv
import io
from collections.abc import Callable, Collection, Sequence

from msdscore.errors import unknown_name
from msdscore.lab.benchmarks.results.grids import Grid, markdown

_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    "‖": r"\textbar{}\textbar{}",
}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def latex(grid: Grid) -> str:
    """A `tabular` for booktabs, with title and notes as comments."""
    kept = [f"% {line}" for line in (grid.title, *grid.notes)]
    rows = [_row(row, {at for place, at in grid.best if place == number}) for number, row in enumerate(grid.rows)]
    spec = "l" + "r" * (len(grid.columns) - 1)
    begin, end = f"\\begin{{tabular}}{{{spec}}}", "\\end{tabular}"
    return "\n".join([*kept, begin, "\\toprule", _row(grid.columns), "\\midrule", *rows, "\\bottomrule", end, ""])


def escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> escape("tau_c 95 %")
    'tau\\_c 95 \\%'
    """
    return "".join(_TEX.get(letter, letter) for letter in text)


def _row(cells: Sequence[str], best: Collection[int] = ()) -> str:
    shown = (f"\\textbf{{{escape(cell)}}}" if at in best else escape(cell) for at, cell in enumerate(cells))
    return " & ".join(shown) + r" \\"


def _csv(grids: Sequence[Grid]) -> str:
    """One record per cell, so that benchmarks with different figures share the columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for grid in grids:
        for row in grid.rows:
            for column, cell in zip(grid.columns[1:], row[1:], strict=True):
                writer.writerow([grid.title, row[0], column, cell])
    return buffer.getvalue()


STYLES: dict[str, Callable[[Sequence[Grid]], str]] = {
    "markdown": lambda grids: "\n".join(map(markdown, grids)),
    "latex": lambda grids: "\n".join(map(latex, grids)),
    "csv": _csv,
}


def render(grids: Sequence[Grid], style: str) -> str:
    """All grids in one of the known styles."""
    if style not in STYLES:
        raise unknown_name("format", style, STYLES)
    return STYLES[style](grids)
