"""Tables on standard output."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from msdscore.benchmarks.grid import Grid


def rows_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """One line a row, the chosen columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    Console().print(table)


def fields_table(row: Mapping[str, Any]) -> None:
    """One line a field."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in row.items():
        if value not in (None, "", {}, ()):
            table.add_row(name.replace("_", " "), _text(value))
    Console().print(table)


def grid_table(grid: "Grid") -> None:
    """A grid of results with its title above and its notes below; a pipe gets lines that are never cut."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    table = Table(box=None, header_style="bold", pad_edge=False, title=grid.title, title_justify="left")
    for place, column in enumerate(grid.columns):
        table.add_column(column.replace("/", " "), justify="right" if place else "left", no_wrap=place == 0)
    for row in grid.rows:
        table.add_row(*row)
    console.print(table)
    for note in grid.notes:
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1_000_000:
        return f"{value / 1e6:,.0f} M"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
