"""`msdscore encoders` and `msdscore cite`: list a registry, and print BibTeX entries."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.progress import print_json, tell

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
    from msdscore.cli.tables import fields_table, rows_table

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
