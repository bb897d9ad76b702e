"""Tables of results on standard output."""

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from msdscore.cli.progress import console, visible
from msdscore_lab.benchmarks.results.grids import Grid


def grid_table(grid: Grid) -> None:
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
