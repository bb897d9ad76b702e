"""`msdscore encoders`, `metrics` and `benchmarks`: list the registries."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.progress import print_json

OneName = Annotated[str | None, typer.Argument(help="Show all fields of this entry.")]
BenchmarkName = Annotated[str, typer.Argument(help="Name of a benchmark.")]
benchmarks = typer.Typer(help="List the benchmarks, show all fields of one, or list its items.")


def encoders(name: OneName = None, json: options.Json = False) -> None:
    """List the encoders, or show all fields of one."""
    from msdscore.encoders.registry import find_row, list_encoders

    rows = _facts([find_row(name)] if name else list_encoders())
    rows = [row | {"options": dict(row["options"])} for row in rows]
    printed = [row | {"parameters": f"{row['parameters']} M" if row["parameters"] else ""} for row in rows]
    _print(name, rows, printed, ("name", "family", "parameters", "context", "licence", "trained_on"), as_json=json)


def metrics(name: OneName = None, json: options.Json = False) -> None:
    """List the metrics, or show all fields of one."""
    from msdscore.lab.metrics.registry import METRICS, list_metrics

    rows = _facts([METRICS.find(name)] if name else list_metrics(), without=("loader",))
    _print(name, rows, rows, ("name", "title", "needs", "argument", "extra"), as_json=json)


@benchmarks.callback(invoke_without_command=True)
def listing(context: typer.Context, json: options.Json = False) -> None:
    """List the benchmarks."""
    from msdscore.lab.benchmarks.registry import benchmarks as known

    if context.invoked_subcommand is None:
        rows = _facts(known())
        _print(None, rows, rows, ("name", "kind", "size", "licence", "protocols", "source"), as_json=json)


@benchmarks.command()
def show(name: BenchmarkName, json: options.Json = False) -> None:
    """Show all fields of a benchmark: expected files, protocols and citation."""
    from msdscore.lab.benchmarks.registry import benchmark

    row = benchmark(name)
    hidden = ("reader", "rows", "rows_name", "figures", "credits", "statistics")
    _print(name, _facts([row]), _facts([row], without=hidden), (), as_json=json)


@benchmarks.command()
def items(
    name: BenchmarkName,
    root: Annotated[Path, typer.Option("--root", help="Folder of the data, as for `msdscore bench`.")],
    option: options.ReaderOption = [],
) -> None:
    """List the items as JSON lines (id, image, captions), in the order of a score file."""
    from msdscore.lab.benchmarks.base import image_key, image_names
    from msdscore.lab.benchmarks.registry import load

    folder = root / name if (root / name).is_dir() else root
    listed = load(name, folder, **dict(options.parsed(option))).items
    names = image_names(item.image for item in listed)
    for item in listed:
        row = {"id": item.id, "image": names[image_key(item.image)], "captions": item.captions}
        print_json(row)


def _facts(rows: Iterable[Any], *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [
        {field.name: getattr(row, field.name) for field in fields(row) if field.name not in without} for row in rows
    ]


def _print(
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
