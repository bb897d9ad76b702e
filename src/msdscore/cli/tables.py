"""Tables on standard output."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msdscore.cli.progress import visible

if TYPE_CHECKING:
    from msdscore.explain.explanation import Explanation
    from msdscore.lab.benchmarks.results.grids import Grid
    from msdscore.report.demo import Shown


def rows_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print one line per row, with the selected columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*(Text(_text(row.get(column))) for column in columns))
    console().print(table)


def fields_table(row: Mapping[str, Any]) -> None:
    """Print one line per field."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in row.items():
        if value not in (None, "", {}, ()):
            table.add_row(name.replace("_", " "), Text(_text(value)))
    console().print(table)


def grid_table(grid: "Grid") -> None:
    """Print a grid of results with its title above and its notes below.

    On a narrow terminal the columns are split into several tables, each with the row names, so that no number is
    wrapped or truncated.
    """
    screen, rows = console(), [[visible(cell) for cell in row] for row in grid.rows]
    headers = [column.replace("/", " ") for column in grid.columns]
    widths = [max(map(cell_len, cells)) + 1 for cells in zip(headers, *rows, strict=True)]
    tables = [[0]]  # indices of columns; every table has the first
    for at in range(1, len(widths)):
        if len(tables[-1]) > 1 and sum(widths[column] for column in tables[-1]) + widths[at] > screen.width:
            tables.append([0])
        tables[-1].append(at)
    for number, columns in enumerate(tables):
        title = grid.title if number == 0 else None
        table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
        for at in columns:
            table.add_column(headers[at], justify="right" if at else "left", no_wrap=True)
        for line, row in enumerate(rows):
            table.add_row(*(Text(row[at], style="bold" if (line, at) in grid.best else "") for at in columns))
        screen.print(table)
    for note in grid.notes:
        screen.print(visible(note), style="dim", markup=False, highlight=False, soft_wrap=True)


def console() -> Console:
    """Return the console for tables; lines are not wrapped or truncated unless it is a terminal."""
    screen = Console()
    return screen if screen.is_terminal else Console(width=10_000)


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1_000_000:
        return f"{value / 1e6:,.0f} M"
    if isinstance(value, list | tuple):
        return visible(", ".join(map(str, value)))
    return "" if value is None else visible(str(value))


def demo_table(shown: "Sequence[Shown]") -> None:
    """Print the demo captions of each photograph from best to worst, with coloured words."""
    from msdscore.explain.look import word_limit

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("photograph", "Soft-MSD", "match", "", "caption"):
        table.add_column(name, justify="right" if name in ("Soft-MSD", "match") else "left")
    for entry in shown:
        limit = word_limit(entry.explained)
        for rank, (kind, item) in enumerate(entry.ranked):
            name = f"[bold]{entry.photograph.name}[/]" if rank == 0 else ""
            match = "" if item.score.match is None else f"{item.score.match:.2f}"
            table.add_row(name, f"{item.score.soft_msd:+.3f}", match, f"[dim]{kind}[/]", coloured(item, limit))
        table.add_row()
    console().print(table)


def coloured(item: "Explanation", limit: float) -> Text:
    """Return the caption with coloured words."""
    from msdscore.explain.look import spans

    text = Text()
    for span in spans(item, limit):
        text.append(visible(span.text), style=on_screen(span.back, span.ink) if span.back else "")
    return text


def on_screen(back: str, ink: str) -> str:
    """Return a Rich style; Rich only supports six-digit colours.

    >>> on_screen("#c44800", "#fff")
    '#ffffff on #c44800'
    """
    return f"#{ink[1:] * 2} on {back}"
