"""Grids of results as Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from msdscore.errors import unknown_name
from msdscore.lab.benchmarks.results.grids import NONE, Grid, markdown

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
    """One record per cell, so that benchmarks with different figures share the columns; intervals as two numbers."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value", "low", "high"])
    for grid in grids:
        for row in grid.rows:
            for column, value, low, high in _records(grid.columns[1:], row[1:]):
                writer.writerow([grid.title, row[0], column, value, low, high])
    return buffer.getvalue()


def _records(columns: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Column, value and interval of the cells; the cell of an interval belongs to the figure before it.

    >>> list(_records(("accuracy", "95 % interval", "rank"), ("72.0", "[69.7, 74.4]", "1 [1, 2]")))
    [('accuracy', '72.0', '69.7', '74.4'), ('rank', '1', '1', '2')]
    """
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if column.endswith("interval"):
            continue
        after = cells[at + 1] if at + 1 < len(cells) and columns[at + 1].endswith("interval") else ""
        match = _INTERVAL.search(cell) or _INTERVAL.search(after)
        value = _INTERVAL.sub("", cell).strip()
        name = f"{columns[at - 1]}, {column}" if columns.count(column) > 1 else column  # such as ranks, one per metric
        yield name, "" if value == NONE else value, match[1] if match else "", match[2] if match else ""


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
