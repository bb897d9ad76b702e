"""Tables on standard output."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from msdscore.cli.progress import visible

if TYPE_CHECKING:
    from msdscore.explain.explanation import Explanation, Explanations
    from msdscore.report.demo import Photograph


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


def demo_table(shown: "Sequence[tuple[Photograph, Explanations]]") -> None:
    """Print the demo captions of each photograph from best to worst, with coloured words."""
    from msdscore.explain.look import word_limit
    from msdscore.report.demo import best_first

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("photograph", "Soft-MSD", "match", "", "caption"):
        table.add_column(name, justify="right" if name in ("Soft-MSD", "match") else "left")
    for photograph, explained in shown:
        limit = word_limit(explained)
        for rank, (kind, item) in enumerate(best_first(explained)):
            name = f"[bold]{photograph.name}[/]" if rank == 0 else ""
            match = f"{item.score.match:.2f}" if item.score.has_match else ""
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
