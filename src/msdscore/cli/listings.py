"""Tables on standard output; `msdscore encoders` and `msdscore cite` list a registry, and print BibTeX entries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from msdscore.cli import options
from msdscore.cli.progress import print_json, tell, visible

OneName = Annotated[str | None, typer.Argument(help="Show all fields of this entry.")]


def encoders(name: OneName = None, json: options.Json = False) -> None:
    """List the encoders, or show all fields of one."""
    from msdscore.encoders.registry import find_row, list_encoders

    rows = entry_fields([find_row(name)] if name else list_encoders())
    rows = [row | {"options": dict(row["options"])} for row in rows]
    printed = [row | {"parameters": f"{row['parameters']} M" if row["parameters"] else ""} for row in rows]
    print_entries(
        name, rows, printed, ("name", "family", "parameters", "context", "licence", "trained_on"), as_json=json
    )


def entry_fields(rows: Iterable[Any], *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the fields of registry entries as dictionaries."""
    return [
        {field.name: getattr(row, field.name) for field in fields(row) if field.name not in without} for row in rows
    ]


def print_entries(
    name: str | None,
    rows: list[dict[str, Any]],
    printed: list[dict[str, Any]],
    columns: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Print all fields of one row if a name was passed, else the columns of all rows; JSON always has all fields."""
    if as_json:
        print_json(rows[0] if name else rows)
    elif name:
        fields_table(printed[0])
    else:
        rows_table(printed, columns)


def cite(
    result: Annotated[
        str, typer.Argument(help="Output of score, bench or study, or a signature; default: software and paper only.")
    ] = "",
) -> None:
    """Print BibTeX entries of the software, the paper and the encoder in the signature of a result.

    Sentences for your paper, with the signature and, for a scored file, the mean with its interval, are printed to
    standard error: `msdscore cite FILE > refs.bib` shows them and writes the entries.
    """
    from msdscore.report.citation import bibtex, means, sentence, signatures_in

    signatures = signatures_in(result) if result else []
    typer.echo(bibtex(signatures))
    if signatures:
        tell("\n".join(filter(None, (sentence(signatures), means(result)))))


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
